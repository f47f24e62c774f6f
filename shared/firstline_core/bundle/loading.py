"""Loads the models and the score of a bundle with their processing. A trial run detects wrong declarations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firstline_core.bundle.loaded_model import LoadedInput, LoadedModel
from firstline_core.bundle.manifest import Manifest, Model, Score
from firstline_core.bundle.store import Bundle
from firstline_core.errors import InferenceError, InvalidTensorError, ModelLoadError, RequestError, about
from firstline_core.processing import steps as ops
from firstline_core.processing.compile import ArrayFunction, Preprocess, check_needs, compile_preprocess
from firstline_core.processing.geometry import InputSize
from firstline_core.processing.text import TextEncoder, read_encoder
from firstline_core.processing.windows import WINDOWS, combine_windows
from firstline_core.runtime.base import RowByRow, Runtime, pick_port
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.select import RuntimeOptions, load_runtime
from firstline_core.tasks.base import ModelOutputs, Postprocess, Prediction, Scores, Task
from firstline_core.tasks.classification import Classification, temper
from firstline_core.tasks.installed import BUILT_IN
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import counted
from firstline_core.types import DATATYPES, PROBABILITIES, Arrays, row_count

_HIGHEST = np.finfo(np.float32).max

log = logger(__name__)


Scorer = Callable[[Arrays, Arrays], Scores]
"""Scores n rows by their canonical outputs and evidence, (n,): higher means that the edge answer is more likely to be
accepted.

Raises:
    InvalidTensorError: the score needs evidence that the model does not give.
"""


def scorer(task: Task, declared: Score) -> Scorer:
    """Returns the function of a score without a graph."""
    if (learned := declared.learned) is not None:
        return lambda outputs, evidence: 1 - learned.losses(task.features(outputs, evidence))
    if declared.kind == "graph":
        raise ValueError("a score graph is loaded from its bundle")
    own = partial(task.score, declared.kind, temperature=declared.temperature)
    return own if task.kind in BUILT_IN else lambda outputs, evidence: _finite(own(outputs, evidence))


def _finite(scores: Scores) -> Scores:
    """Returns scores without infinity, such as the log-odds of a probability of 1: JSON cannot represent it."""
    return np.clip(scores, -_HIGHEST, _HIGHEST)


def load_model(bundle: Bundle, model: Model, options: RuntimeOptions) -> LoadedModel:
    """Loads one model of the bundle with its processing, and runs it once to detect a wrong declaration.

    Raises:
        ModelLoadError: a file is absent or does not load, the steps do not fit, or an output does not have the
            shape that the task declares.
    """
    if missing := bundle.missing(model):
        raise ModelLoadError(f"Model '{model.id}' cannot be loaded: {bundle.path} has no {', '.join(missing)}.")
    runtime = load_runtime(bundle.file(model.artefact), model.runtime, options)
    loaded = load_around(runtime, bundle, model, options)
    try:
        _warm_up(loaded)
    except ModelLoadError:
        loaded.close()
        raise
    return loaded


def load_around(runtime: Runtime, bundle: Bundle, model: Model, options: RuntimeOptions) -> LoadedModel:
    """Combines a runtime with the model's processing. The runtime is closed with the result, or if this fails.

    The model and its graphs run row by row if the manifest says `batch: 1`.

    Raises:
        ModelLoadError: a graph is absent or does not load, or the steps do not fit.
    """
    what, task = f"Model '{model.id}'", bundle.manifest.task
    resources: ExitStack[None] = ExitStack()
    resources.callback(runtime.close)

    def load_graph(step: ops.Graph) -> ArrayFunction:
        graph = load_runtime(bundle.file(step.artefact), "onnx", options)
        resources.callback(graph.close)
        return _graph_step(graph if model.batch is None else RowByRow(graph), step.artefact.file)

    @cache
    def load_encoder(step: ops.Tokenize) -> TextEncoder:
        return read_encoder(step, bundle.read(step.artefact))

    compile_steps = partial(
        compile_preprocess,
        load_graph=load_graph,
        limits=options.decoding,
        load_encoder=lambda step: load_encoder(step.without_part),
    )
    try:
        if model.batch is not None:
            runtime = RowByRow(runtime, model.without_rows)
        size = partial(_image_size, model, runtime)
        with about("postprocess"):
            post = task.postprocess(
                ModelOutputs(what, model.postprocess, runtime.outputs, model.output, size, load_graph, bundle.read)
            )
        with about("preprocess"):
            post = _of_windows(post, model, task)
        inputs = _loaded_inputs(bundle.manifest, model, runtime, compile_steps, post.needs)
        return LoadedModel(
            model=model, manifest=bundle.manifest, runtime=runtime, inputs=inputs, post=post, resources=resources
        )
    except BaseException:
        resources.close()
        raise


def _of_windows(post: Postprocess, model: Model, task: Task) -> Postprocess:
    """Returns a postprocessing that combines the answers to a clip's windows into one answer for the clip."""
    steps = [step for step in model.presteps if isinstance(step, ops.Windows)]
    if not steps:
        return post
    if len(model.inputs) > 1:
        raise ModelLoadError("Preprocessing: windows need a model with one input.")
    combine = steps[0].combine
    if post.needs or any(spec.datatype != "FP32" for spec in task.outputs):
        raise ModelLoadError(f"Preprocessing: windows cannot combine the outputs of the task {task.kind}.")
    if combine == "max" and not (isinstance(task, Classification) and task.independent):
        raise ModelLoadError(
            "Preprocessing: windows with combine=max need independent labels; the largest probabilities of labels that "
            "exclude each other do not sum to 1."
        )

    def run(raw: Arrays, rows: Arrays) -> Prediction:
        counts = rows[WINDOWS]
        [(name, clips)] = [(name, array) for name, array in rows.items() if name != WINDOWS]
        each = post.run(raw, {name: clips.reshape(-1, *clips.shape[2:])})

        def of_clips(arrays: Arrays) -> Arrays:
            by_clip = {key: array.reshape(*clips.shape[:2], *array.shape[1:]) for key, array in arrays.items()}
            return {key: combine_windows(array, counts, combine) for key, array in by_clip.items()}

        return Prediction(of_clips(each.outputs), of_clips(each.evidence))

    return post._replace(run=run)


Compile = Callable[[Sequence[ops.PreStep], ops.InputSpec], Preprocess]


def _loaded_inputs(
    manifest: Manifest, model: Model, runtime: Runtime, compile_steps: Compile, needs: tuple[str, ...]
) -> tuple[LoadedInput, ...]:
    """Returns a model's inputs with their preprocessing.

    Raises:
        ModelLoadError: an input of the model gets no data, or the steps do not fit.
    """
    what = f"Model '{model.id}'"
    inputs: list[LoadedInput] = []
    for declared in model.inputs:
        spec, port = manifest.input(declared.name), pick_port(runtime.inputs, declared.tensor, what, "input")
        with about("preprocess"):
            pre = compile_steps(declared.preprocess, spec)
        gives_text = spec.kind == "text" and not any(isinstance(step, ops.Tokenize) for step in declared.preprocess)
        if (port.datatype == "BYTES") != gives_text:
            raise ModelLoadError(
                f"{what}: its input '{port.name}' is {port.datatype}, and the bundle's input '{spec.name}' is of kind "
                f"{spec.kind}; strings come from a text input without tokenize, and numbers do not."
            )
        takes_pixels = any(isinstance(step, ops.Decode) for step in declared.preprocess)
        side = tuple([name for name in needs if pre.gives(name)])
        inputs.append(LoadedInput(spec, port, pre, takes_pixels, side))
    fed = [each.port.name for each in inputs]
    if unfed := [spec.name for spec in runtime.inputs if spec.name not in fed]:
        raise ModelLoadError(
            f"{what} has {len(runtime.inputs)} inputs, and {', '.join(map(repr, unfed))} get no data; feed each from "
            "an input of the bundle, or export the model so that its graph holds them as constants."
        )
    with about("preprocess"):
        check_needs([each.pre for each in inputs], needs)
    return tuple(inputs)


def _image_size(model: Model, runtime: Runtime) -> InputSize:
    """Returns the size of the images that a model takes."""
    with_images = [each for each in model.inputs if any(isinstance(step, ops.ImageStep) for step in each.preprocess)]
    image = (with_images or model.inputs)[0]
    shape = pick_port(runtime.inputs, image.tensor, f"Model '{model.id}'", "input").shape
    channels_first = any(isinstance(step, ops.Layout) and step.to == "NCHW" for step in image.preprocess)
    height, width = (shape[2:] if channels_first else shape[1:3]) if len(shape) == 4 else (-1, -1)
    if min(height, width) < 1:
        last = [step for step in image.preprocess if isinstance(step, ops.CenterCrop | ops.Resize)][-1:]
        if not last or isinstance(last[0], ops.CenterCrop):
            with about("preprocess"):
                raise ModelLoadError(f"Model '{model.id}' takes images of any size; add resize to its preprocessing.")
        width, height = last[0].width, last[0].height
    return InputSize(width, height)


def load_edge(
    bundle: Bundle, options: RuntimeOptions, options_for: Callable[[Model], RuntimeOptions] | None = None
) -> LoadedModel:
    """Loads the first edge variant, in the manifest's order of preference, that is present and loads.

    Skipped variants are logged, and listed in the model's `passed_over`.

    Args:
        bundle: has the variants.
        options: for the runtimes.
        options_for: returns the options of a variant; None to use `options` for all.

    Raises:
        ModelLoadError: none loads; the message has the reason for each.
    """
    name = bundle.manifest.name
    reasons: list[str] = []
    for model in bundle.manifest.edge:
        try:
            loaded = load_model(bundle, model, options if options_for is None else options_for(model))
        except ModelLoadError as error:
            reasons.append(f"{model.id}: {error.message}")
            continue
        for reason in reasons:
            log.warning("edge variant skipped", model=name, taken=model.id, reason=reason)
        loaded.passed_over = tuple(reasons)
        return loaded
    if not reasons:
        raise ModelLoadError(f"Bundle '{name}' declares no edge variant.")
    raise ModelLoadError(f"No edge variant of bundle '{name}' can be loaded. " + " ".join(reasons))


def load_scorer(bundle: Bundle, options: RuntimeOptions) -> Scorer:
    """Loads the bundle's score.

    Raises:
        ModelLoadError: a score graph is absent, does not load, or does not return one score per row.
    """
    task, declared = bundle.manifest.task, bundle.manifest.policy.score
    if declared.graph is None:
        return scorer(task, declared)
    file = bundle.file(declared.graph)
    if not file.is_file():
        raise ModelLoadError(f"The bundle's score graph is absent: {file}.")
    graph = OnnxRuntime(file, providers=options.providers, threads=options.threads)
    try:
        return _graph_scorer(graph, file, bundle)
    except ModelLoadError:
        graph.close()
        raise


def _graph_scorer(graph: OnnxRuntime, file: Path, bundle: Bundle) -> Scorer:
    """Returns the function of a score graph; see `load_scorer`."""
    declared, outputs = bundle.manifest.policy.score, {spec.name: spec for spec in bundle.manifest.task.outputs}
    reads = [spec.name for spec in graph.inputs]
    if len(outputs) == 1 and len(reads) == 1:
        feeds = dict(zip(reads, outputs, strict=True))  # the name does not matter
    elif unknown := [name for name in reads if name not in outputs]:
        raise ModelLoadError(f"Score graph {file} reads '{unknown[0]}', and the outputs are {', '.join(outputs)}.")
    else:
        feeds = {name: name for name in reads}
    result = pick_port(graph.outputs, "", f"Score graph {file}", "output", only=True).name
    # A certificate scores one row at a time, so a graph whose rows depend on each other must do so on the device too.
    by_row = RowByRow(graph)

    def score(outputs: Arrays, _evidence: Arrays, /) -> NDArray[np.float32]:
        if declared.temperature != 1.0 and PROBABILITIES in outputs:
            outputs = {**outputs, PROBABILITIES: temper(outputs[PROBABILITIES], declared.temperature)}
        found = by_row.run({name: outputs[output] for name, output in feeds.items()})[result]
        if found.size != row_count(outputs):
            raise InferenceError(
                f"Score graph {file.name} gave {found.size} scores for {counted(row_count(outputs), 'row')}."
            )
        return _finite(found.reshape(-1).astype(np.float32, copy=False))

    classes = len(bundle.manifest.labels)
    try:
        trial = {
            name: np.full((2, *spec.shape[1:]), 1 / max(classes, 1), DATATYPES[spec.datatype])
            for name, spec in outputs.items()
        }
        if not np.array_equal(score(trial, {}), score(trial, {}), equal_nan=True):
            raise InferenceError("it gives the same answer different scores; export it without random numbers.")
    except (InferenceError, InvalidTensorError) as error:
        what = f"{classes} classes" if classes else "the task's outputs"
        raise ModelLoadError(f"Score graph {file} does not score {what}: {error}") from error
    return score


def _graph_step(graph: Runtime, file: str) -> ArrayFunction:
    feed = pick_port(graph.inputs, "", f"Graph {file}", "input", only=True).name
    output = pick_port(graph.outputs, "", f"Graph {file}", "output", only=True).name
    return lambda array: graph.run({feed: array})[output]


def _warm_up(loaded: LoadedModel) -> None:
    """Runs zeros through processing and model. The first run also includes the runtimes' lazy initialisation."""
    trial = loaded.made_up_inputs(typical=False)
    try:
        if trial is not None:
            with about("preprocess"):
                rows = loaded.prepare(trial)
            loaded.compute(rows)
    except (InferenceError, RequestError) as error:
        raise ModelLoadError(f"Model '{loaded.model.id}' fails on a trial run: {error}") from error
