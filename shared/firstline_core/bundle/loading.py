"""Loads the models and the score of a bundle with their processing; a trial run detects wrong declarations.

A loaded model computes the task's outputs from the bundle's input. It is synchronous and thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from firstline_core.bundle.manifest import Manifest, Model, Score
from firstline_core.bundle.store import Bundle
from firstline_core.errors import InferenceError, InvalidTensorError, ModelLoadError, RequestError
from firstline_core.processing.boxes import InputSize
from firstline_core.processing.compile import Preprocess, Step, compile_preprocess
from firstline_core.processing.decoding import PreparedTensor
from firstline_core.processing.image_header import NO_COST, ImageCost
from firstline_core.processing.steps import CenterCrop, Decode, Graph, InputSpec, Layout, Resize, Windows
from firstline_core.processing.trial import trial_input
from firstline_core.processing.windows import WINDOWS, combine_windows
from firstline_core.protocol.tensors import shown
from firstline_core.runtime.base import RowByRow, Runtime, fits, pick_port
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.select import RuntimeOptions, load_runtime
from firstline_core.tasks.base import ModelOutputs, Postprocess, Prediction, Scores, Task
from firstline_core.tasks.classification import Classification, temper
from firstline_core.telemetry.logs import logger
from firstline_core.types import (
    DATATYPES,
    PROBABILITIES,
    Arrays,
    InferRequest,
    Tensor,
    all_finite,
    row_count,
)

_HIGHEST = np.finfo(np.float32).max

log = logger(__name__)


def declared_input(request: InferRequest, manifest: Manifest) -> Tensor:
    """Returns the request's tensor for the bundle's one input.

    Raises:
        InvalidTensorError: the request has other inputs, or names an output that the bundle does not have.
    """
    name = manifest.input.name
    if len(request.inputs) != 1 or request.inputs[0].name != name:
        given = ", ".join(shown(tensor.name) for tensor in request.inputs[:5])
        raise InvalidTensorError(f"Model '{manifest.name}' takes one input, '{name}'; the request has: {given}.")
    if request.outputs:
        names = [spec.name for spec in manifest.task.outputs]
        for output in request.outputs:
            if output.name not in names:
                raise InvalidTensorError(
                    f"Model '{manifest.name}' has no output {shown(output.name)}; it has: {', '.join(names)}."
                )
    return request.inputs[0]


class LoadedModel:
    """One model of a bundle, ready to run. `load_model` creates it.

    Attributes:
        digest: of the model, see `Model.digest`.
        decodes_images: whether its preprocessing has image or audio steps.
        batch: of the model, see `Model.batch`; `run` obeys it.
        task: of the bundle.
        declared: the declaration that the outputs satisfy.
        input: of the model, for which `prepare` makes rows.
        output_names: of the model's outputs that `run` reads.
        passed_over: of an edge variant: the preferred variants that do not load here, each with the reason.
        batch_s: measured seconds of batches by number of rows; empty without measurements.
    """

    passed_over: tuple[str, ...] = ()
    batch_s: Mapping[int, float] = MappingProxyType({})

    def __init__(
        self,
        *,
        model: Model,
        manifest: Manifest,
        runtime: Runtime,
        pre: Preprocess,
        post: Postprocess,
        resources: ExitStack[None],
    ) -> None:
        self.model = model
        self.digest = model.digest
        self.batch = model.batch
        self.task = manifest.task
        self.runtime = runtime
        self.declared = manifest.outputs_of(model)
        self._spec = manifest.input
        self._dtype = DATATYPES[manifest.input.datatype]
        self._floats = self._dtype.kind == "f"
        self._pixels_pass = any(isinstance(step, Decode) for step in model.preprocess)
        self._pre, self._post = pre, post
        self.decodes_images = pre.decoder is not None
        self.input = pick_port(runtime.inputs, model.input, f"Model '{model.id}'", "input", only=True)
        self.output_names = post.reads
        self._resources = resources

    def prepare(self, tensor: Tensor, cost: ImageCost | None = None) -> Arrays:
        """Preprocesses a bundle input into rows for `run`.

        Args:
            tensor: as declared in the manifest; encoded images may also be pixels, UINT8 [rows, height, width,
                channels].
            cost: from `image_cost`, of this tensor; None to read the headers of its images now.

        Returns:
            The model's inputs by name, and the arrays that its postprocessing needs, such as `GEOMETRY`. If clips are
            cut into windows, the input is (rows, windows, ...).

        Raises:
            InvalidTensorError: not this bundle's input; the message names the row if possible.
            PayloadTooLargeError: an image over a limit.
        """
        if isinstance(tensor, PreparedTensor):
            if self.input.name in tensor.rows:
                return tensor.rows
            if tensor.sent is None:
                raise InvalidTensorError(f"These rows were prepared for a model without an input '{self.input.name}'.")
            tensor = tensor.sent  # the same model on another executor may name its input otherwise
        self._check(tensor)
        if cost is None and self._pre.decoder is not None:
            cost = self._pre.decoder.cost(tensor)
        rows, side = self._pre.run(tensor, cost, self._post.needs)
        shape = rows.shape if self._pre.windows is None else rows.shape[1:]
        if not fits(shape, self.input.shape):
            raise InvalidTensorError(
                f"Input '{tensor.name}' becomes rows of shape {list(shape[1:])}, but model '{self.model.id}' "
                f"takes {_sizes(self.input.shape[1:])}."
            )
        return {self.input.name: rows, **side}

    def image_cost(self, tensor: Tensor) -> ImageCost:
        """Returns what decoding the rows of a bundle input costs, from their headers; `NO_COST` for numbers.

        Raises:
            InvalidTensorError, PayloadTooLargeError: see `prepare`, as far as the headers tell.
        """
        if self._pre.decoder is None or tensor.array.dtype.kind not in "Ou":  # `prepare` refuses others
            return NO_COST
        self._check(tensor)
        return self._pre.decoder.cost(tensor)

    def run(self, rows: Arrays) -> Arrays:
        """Runs the model.

        Args:
            rows: from `prepare`; those of several requests may be joined.

        Returns:
            The canonical outputs of the task.

        Raises:
            InvalidTensorError: rows that are not from `prepare`.
            InferenceError: the runtime failed, or the output is not as the bundle declares it.
        """
        return self._checked(self.compute(rows)).outputs

    def predict(self, tensor: Tensor) -> Prediction:
        """Prepares and runs, see `prepare` and `run`; with the evidence for scores."""
        return self._checked(self.compute(self.prepare(tensor)))

    def finish(self, raw: Arrays, rows: Arrays) -> Arrays:
        """Postprocesses the outputs of a model that ran elsewhere, like `run`.

        Args:
            raw: the model's outputs by name.
            rows: from `prepare`.

        Raises:
            InferenceError: see `run`.
        """
        return self._checked(self._post.run(raw, rows)).outputs

    def _checked(self, prediction: Prediction) -> Prediction:
        if problem := self.declared.fault(prediction.outputs):
            raise InferenceError(
                f"Model '{self.model.id}' gave {problem}; such an input is outside of what it computes, "
                "or the bundle's postprocessing does not fit the model."
            )
        return prediction

    def compute(self, rows: Arrays) -> Prediction:
        """Like `run`, without the check of the values, for made-up inputs."""
        return self._post.run(self.runtime.run(self.feeds(rows)), rows)

    def feeds(self, rows: Arrays) -> Arrays:
        """Returns the part of the rows from `prepare` that the model itself takes."""
        feed = rows[self.input.name]
        return {self.input.name: feed.reshape(-1, *feed.shape[2:]) if WINDOWS in rows else feed}

    def close(self) -> None:
        """Frees the model and its graphs; calling it twice is harmless."""
        self._resources.close()

    def _check(self, tensor: Tensor) -> None:
        spec = self._spec
        if tensor.name != spec.name:
            raise InvalidTensorError(f"The model's input is '{spec.name}', not '{tensor.name}'.")
        if tensor.array.ndim == 0 or tensor.array.shape[0] == 0:
            raise InvalidTensorError(f"Input '{spec.name}' has no rows; send at least one.")
        if self._pixels_pass and spec.datatype == "BYTES" and tensor.datatype == "UINT8":
            return  # pixels of any size: preprocessing checks their axes
        if tensor.datatype != spec.datatype:
            alternative = " (encoded images) or UINT8 pixels" if self._pixels_pass else ""
            raise InvalidTensorError(
                f"Input '{spec.name}' is {spec.datatype}{alternative}, but was sent as {tensor.datatype}."
            )
        if not fits(tensor.shape, spec.shape):
            raise InvalidTensorError(
                f"Input '{spec.name}' has shape {list(tensor.shape)}, but the model takes {_sizes(spec.shape)}."
            )
        if self._floats and not all_finite(tensor.array):
            raise self._not_finite(tensor)

    def _not_finite(self, tensor: Tensor) -> InvalidTensorError:
        finite = np.isfinite(tensor.array)
        row = int(np.argmin(finite.reshape(len(finite), -1).all(axis=1)))
        return InvalidTensorError(f"Row {row} of input '{tensor.name}' has NaN or infinity; send finite numbers.")


def _sizes(shape: tuple[int, ...]) -> str:
    return f"[{', '.join('any' if size < 0 else str(size) for size in shape)}]"


class Scorer(Protocol):
    """Scores rows: higher means that the edge answer is more likely to be accepted.

    Args:
        outputs: canonical outputs of n rows.
        evidence: see `Prediction`.

    Returns:
        (n,) float32.

    Raises:
        InvalidTensorError: the score needs evidence that the model does not give.
    """

    def __call__(self, outputs: Arrays, evidence: Arrays, /) -> Scores: ...


def scorer(task: Task, declared: Score) -> Scorer:
    """Returns the function of a score without a graph."""
    if (learned := declared.learned) is not None:
        return lambda outputs, evidence: 1 - learned.losses(task.features(outputs, evidence))
    if declared.kind == "graph":
        raise ValueError("a score graph is loaded from its bundle")
    if declared.kind == "learned":
        raise ValueError("a learned score has its weights")
    return partial(task.score, declared.kind, temperature=declared.temperature)


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
        _warm_up(loaded, bundle.manifest.input)
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
    undo: ExitStack[None] = ExitStack()
    with undo:
        resources: ExitStack[None] = undo.enter_context(ExitStack())
        resources.callback(runtime.close)

        def load_graph(step: Graph) -> Step:
            graph = load_runtime(bundle.file(step.artefact), "onnx", options)
            resources.callback(graph.close)
            return _graph_step(_batched(graph, model), step.artefact.file)

        post = bundle.manifest.task.postprocess(
            ModelOutputs(
                f"Model '{model.id}'",
                model.postprocess,
                runtime.outputs,
                model.output,
                partial(_image_size, model, runtime),
                load_graph,
                bundle.read,
            )
        )
        post = _of_windows(post, model, bundle.manifest.task)
        pre = compile_preprocess(model.preprocess, bundle.manifest.input, load_graph, options.images, bundle.read)
        pre.check(post.needs)
        loaded = LoadedModel(
            model=model,
            manifest=bundle.manifest,
            runtime=_batched(runtime, model),
            pre=pre,
            post=post,
            resources=resources,
        )
        undo.pop_all()  # no failure: the model now owns the resources
    return loaded


def _of_windows(post: Postprocess, model: Model, task: Task) -> Postprocess:
    """Returns a postprocessing that combines the answers to a clip's windows into one answer for the clip."""
    steps = [step for step in model.preprocess if isinstance(step, Windows)]
    if not steps:
        return post
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


def _image_size(model: Model, runtime: Runtime) -> InputSize:
    """Returns the size of the images that a model takes."""
    shape = pick_port(runtime.inputs, model.input, f"Model '{model.id}'", "input", only=True).shape
    channels_first = any(isinstance(step, Layout) and step.to == "NCHW" for step in model.preprocess)
    height, width = (shape[2:] if channels_first else shape[1:3]) if len(shape) == 4 else (-1, -1)
    if min(height, width) < 1:
        last = [step for step in model.preprocess if isinstance(step, CenterCrop | Resize)][-1:]
        if not last or isinstance(last[0], CenterCrop):
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
    outputs = {spec.name: spec for spec in task.outputs}
    reads = [spec.name for spec in graph.inputs]
    if len(outputs) == 1 and len(reads) == 1:
        feeds = dict(zip(reads, outputs, strict=True))  # the name does not matter
    elif unknown := [name for name in reads if name not in outputs]:
        graph.close()
        raise ModelLoadError(f"Score graph {file} reads '{unknown[0]}', and the outputs are {', '.join(outputs)}.")
    else:
        feeds = {name: name for name in reads}
    result = pick_port(graph.outputs, "", f"Graph {declared.graph.file}", "output", only=True).name
    # A certificate scores one row at a time, so a graph whose rows depend on each other must do so on the device too.
    by_row = RowByRow(graph)

    def score(outputs: Arrays, _evidence: Arrays, /) -> NDArray[np.float32]:
        if declared.temperature != 1.0 and PROBABILITIES in outputs:
            outputs = {**outputs, PROBABILITIES: temper(outputs[PROBABILITIES], declared.temperature)}
        found = by_row.run({name: outputs[output] for name, output in feeds.items()})[result]
        if found.size != row_count(outputs):
            raise InferenceError(f"Score graph {file.name} gave {found.size} scores for {row_count(outputs)} rows.")
        # JSON cannot represent infinity, the log-odds of a probability of 1, as score or threshold.
        return np.clip(found.reshape(-1).astype(np.float32, copy=False), -_HIGHEST, _HIGHEST)

    classes = len(bundle.manifest.labels)
    try:
        trial = {
            name: np.full((2, *spec.shape[1:]), 1 / max(classes, 1), DATATYPES[spec.datatype])
            for name, spec in outputs.items()
        }
        if not np.array_equal(score(trial, {}), score(trial, {}), equal_nan=True):
            raise InferenceError("it gives the same answer different scores; export it without random numbers.")
    except (InferenceError, InvalidTensorError) as error:
        graph.close()
        what = f"{classes} classes" if classes else "the task's outputs"
        raise ModelLoadError(f"Score graph {file} does not score {what}: {error}") from error
    return score


def _batched(runtime: Runtime, model: Model) -> Runtime:
    return runtime if model.batch is None else RowByRow(runtime)


def _graph_step(graph: Runtime, file: str) -> Step:
    feed = pick_port(graph.inputs, "", f"Graph {file}", "input", only=True).name
    output = pick_port(graph.outputs, "", f"Graph {file}", "output", only=True).name
    return lambda array: graph.run({feed: array})[output]


def _warm_up(loaded: LoadedModel, spec: InputSpec) -> None:
    """Runs zeros through processing and model. The first run also includes the runtimes' lazy initialisation."""
    trial = trial_input(spec, loaded.model.preprocess, loaded.input.shape)
    try:
        if trial is not None:
            loaded.compute(loaded.prepare(trial))
    except (InferenceError, RequestError) as error:
        raise ModelLoadError(f"Model '{loaded.model.id}' fails on a trial run: {error}") from error
