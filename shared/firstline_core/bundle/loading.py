"""Loads the models and the score of a bundle with their processing, and checks the inputs of requests for them.

A trial run detects wrong declarations.

A loaded model computes the task's outputs from the bundle's input. It is synchronous and thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from firstline_core.bundle.manifest import Manifest, Model, Score
from firstline_core.bundle.store import Bundle
from firstline_core.errors import InferenceError, InvalidTensorError, ModelLoadError, RequestError, about, listed
from firstline_core.processing import audio_header, image_header, text
from firstline_core.processing import steps as ops
from firstline_core.processing.boxes import InputSize
from firstline_core.processing.compile import Preprocess, Step, check_needs, compile_preprocess
from firstline_core.processing.decoding import LIGHT_BYTES, DecodingCost, MeasuredFile, MeasuredInputs, PreparedRows
from firstline_core.processing.text import Shared, TextEncoder, read_encoder
from firstline_core.processing.trial import made_up_row
from firstline_core.processing.windows import WINDOWS, combine_windows
from firstline_core.protocol.limits import DEFAULT_LIMITS
from firstline_core.protocol.tensors import shown, sizes
from firstline_core.runtime.base import RowByRow, Runtime, cast_feed, fits, pick_port
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.select import RuntimeOptions, load_runtime
from firstline_core.tasks.base import ModelOutputs, Postprocess, Prediction, Scores, Task
from firstline_core.tasks.classification import Classification, temper
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import counted
from firstline_core.types import (
    DATATYPES,
    PROBABILITIES,
    Array,
    Arrays,
    InferRequest,
    Tensor,
    TensorSpec,
    all_finite,
    row_count,
)

_HIGHEST = np.finfo(np.float32).max
_NAMES_SHOWN = 20
# Kinds of numbers by the kind that they may become; see `cast_feed`.
_CONVERTED_FROM = {"f": "fiu", "i": "iu", "u": "iu"}
_CHECK_FORMAT = {"image": image_header.check_format, "audio": audio_header.check_format, "text": text.check_encoding}

log = logger(__name__)


class LoadedInput(Struct, frozen=True, eq=False):
    """An input of a loaded model.

    Attributes:
        spec: the bundle's input that feeds it.
        port: the model's input.
        pre: from one to the other.
        takes_pixels: whether encoded images may also be sent as pixels, UINT8 [rows, height, width, channels].
        side: names of the arrays for the postprocessing that this input gives, see `processing/compile.py`.
    """

    spec: ops.InputSpec
    port: TensorSpec
    pre: Preprocess
    takes_pixels: bool
    side: tuple[str, ...]

    def check(self, inputs: Arrays) -> Tensor:
        """Returns the bundle's input in its declared datatype.

        Raises:
            InvalidTensorError: it is absent, or not as declared.
        """
        spec = self.spec
        array = inputs.get(spec.name)
        if array is None:
            raise InvalidTensorError(f"The model needs input '{spec.name}'; it was given: {', '.join(inputs)}.")
        return check_input(spec, array, takes_pixels=self.takes_pixels)

    def prepare(self, tensor: Tensor, costs: tuple[MeasuredFile, ...], model: str, shared: Shared) -> Arrays:
        """Returns the rows of the model's input, and the side arrays, by name.

        Args:
            tensor: from `check`.
            costs: of its files.
            model: id, for messages.
            shared: with the other inputs, of this request.

        Raises:
            InvalidTensorError: the rows do not fit the model.
        """
        (rows, side), port = self.pre.run(tensor, costs, self.side, shared), self.port
        if port.datatype == "BYTES":
            rows = rows.reshape(len(rows), *(1,) * (len(port.shape) - 1))  # [n] or [n, 1] strings
        shape = rows.shape if self.pre.windows is None else rows.shape[1:]
        if not fits(shape, port.shape):
            raise InvalidTensorError(
                f"Input '{tensor.name}' becomes rows of shape {list(shape[1:])}, but model '{model}' takes "
                f"{sizes(port.shape[1:])}; change the steps before it"
                f"{': decode sets the channels, resize the height and width.' if self.takes_pixels else '.'}"
            )
        return {port.name: rows, **side}


def _computes_much(loaded: LoadedInput) -> bool:
    """Returns whether the steps of an input of numbers may hold more memory than is left uncounted."""
    rows = (DEFAULT_LIMITS.rows, *loaded.spec.shape[1:])
    return bool(loaded.pre.steps) and (-1 in rows or loaded.pre.steps_bytes(rows) > LIGHT_BYTES)


class LoadedModel:
    """One model of a bundle, ready to run. `load_model` creates it.

    Attributes:
        digest: of the model, see `Model.digest`.
        decodes_images: whether its preprocessing has image or audio steps.
        has_costs: whether `decoding_cost` matters: it reads files, or has steps on many numbers.
        batch: of the model, see `Model.batch`; `run` obeys it.
        by_row: whether rows gain nothing by being joined, because the model runs one at a time.
        task: of the bundle.
        declared: the declaration that the outputs satisfy.
        inputs: of the model, for which `prepare` makes rows.
        input_names: of the bundle's inputs that the model reads.
        output_names: of the model's outputs that `run` reads.
        passed_over: of an edge variant: the preferred variants that do not load here, each with the reason.
        batch_s: measured seconds of batches by number of rows; empty without measurements.
        row_s: measured seconds of a run of one prepared row, of a model of images in threads; 0 without a measurement.
    """

    passed_over: tuple[str, ...] = ()
    batch_s: Mapping[int, float] = MappingProxyType({})
    row_s: float = 0.0

    def __init__(
        self,
        *,
        model: Model,
        manifest: Manifest,
        runtime: Runtime,
        inputs: tuple[LoadedInput, ...],
        post: Postprocess,
        resources: ExitStack[None],
    ) -> None:
        self.model = model
        self.digest = model.digest
        self.batch = model.batch
        self.by_row = model.batch is not None or any(spec.shape[0] == 1 for spec in runtime.inputs)
        self.task = manifest.task
        self.runtime = runtime
        self.declared = manifest.outputs_of(model)
        self.inputs = inputs
        self.input_names = model.input_names
        self._decoders = tuple([each for each in inputs if each.pre.decoder is not None])
        self.decodes_images = bool(self._decoders)
        self._computing = tuple([each for each in inputs if _computes_much(each)])
        self.has_costs = bool(self._decoders or self._computing)
        self._post = post
        self.output_names = post.reads
        self._resources = resources

    def prepare(self, inputs: Arrays) -> Arrays:
        """Preprocesses the bundle's inputs into rows for `run`.

        Numbers are converted to the declared datatype if they keep their values within rounding: floats of another
        width, whole numbers of another width or as floats.

        Args:
            inputs: by name, as declared in the manifest; others than those that the model reads are ignored. Encoded
                images may also be pixels, UINT8 [rows, height, width, channels]. The headers of files are read
                unless these are `MeasuredInputs`.

        Returns:
            The model's inputs by name, and the arrays that its postprocessing needs, such as `GEOMETRY`. If clips are
            cut into windows, the input is (rows, windows, ...).

        Raises:
            InvalidTensorError: not this bundle's inputs; the message names the row if possible.
            PayloadTooLargeError: an image over a limit.
        """
        if isinstance(inputs, PreparedRows):
            if not [each for each in self.inputs if each.port.name not in inputs]:
                return inputs
            if inputs.sent is None:
                raise InvalidTensorError(
                    f"These rows were prepared for a model without an input '{self.inputs[0].port.name}'."
                )
            inputs = inputs.sent  # the same model on another executor may name its inputs otherwise
        costs: Iterator[tuple[MeasuredFile, ...]] = iter(())
        if self._decoders:
            cost = inputs.cost if isinstance(inputs, MeasuredInputs) else self.decoding_cost(inputs)
            costs = iter(cost.files)
        rows: dict[str, Array] = {}
        shared: Shared = {}
        for each in self.inputs:
            of_input = next(costs) if self._decoders and each.pre.decoder is not None else ()
            rows |= each.prepare(each.check(inputs), of_input, self.model.id, shared)
        return rows

    def decoding_cost(self, inputs: Arrays) -> DecodingCost:
        """Returns what preparing the rows of a request costs, from the headers of files and the shapes of numbers.

        Raises:
            InvalidTensorError, PayloadTooLargeError: see `prepare`, as far as the headers tell.
        """
        files = [
            each.pre.decoder.check_and_measure(each.check(inputs))
            for each in self._decoders
            if each.pre.decoder is not None
        ]
        given = [each for each in self._computing if each.spec.name in inputs]
        return DecodingCost(tuple(files), sum([each.pre.steps_bytes(inputs[each.spec.name].shape) for each in given]))

    def trial_inputs(self) -> Arrays | None:
        """Returns one row of zeros of each of the bundle's inputs that the model reads; None for free sizes."""
        return self._made_up(typical=False)

    def typical_inputs(self) -> Arrays | None:
        """Returns one row in the form that clients send, see `made_up_row`; None for free sizes."""
        return self._made_up(typical=True)

    def _made_up(self, *, typical: bool) -> Arrays | None:
        made: dict[str, Array] = {}
        for each, declared in zip(self.inputs, self.model.inputs, strict=True):
            if each.spec.name not in made:
                row = made_up_row(each.spec, declared.preprocess, each.port.shape, typical=typical)
                if row is None:
                    return None
                made[each.spec.name] = row
        return made

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

    def predict(self, inputs: Arrays) -> Prediction:
        """Prepares and runs, see `prepare` and `run`; with the evidence for scores."""
        return self._checked(self.compute(self.prepare(inputs)))

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
        feeds: dict[str, Array] = {}
        for each in self.inputs:
            feed = rows[each.port.name]
            feeds[each.port.name] = feed.reshape(-1, *feed.shape[2:]) if WINDOWS in rows else feed
        return feeds

    def close(self) -> None:
        """Frees the model and its graphs; calling it twice is harmless."""
        self._resources.close()


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
    undo: ExitStack[None] = ExitStack()
    with undo:
        resources: ExitStack[None] = undo.enter_context(ExitStack())
        resources.callback(runtime.close)
        if model.batch is not None:
            runtime = RowByRow(runtime, model.without_rows)

        def load_graph(step: ops.Graph) -> Step:
            graph = load_runtime(bundle.file(step.artefact), "onnx", options)
            resources.callback(graph.close)
            return _graph_step(graph if model.batch is None else RowByRow(graph), step.artefact.file)

        @cache
        def load_encoder(step: ops.Tokenize) -> TextEncoder:
            return read_encoder(step, bundle.read(step.artefact))

        def compile_steps(steps: Sequence[ops.PreStep], spec: ops.InputSpec) -> Preprocess:
            return compile_preprocess(
                steps, spec, load_graph, options.decoding, lambda step: load_encoder(step.without_part)
            )

        with about("postprocess"):
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
        with about("preprocess"):
            post = _of_windows(post, model, bundle.manifest.task)
        loaded = LoadedModel(
            model=model,
            manifest=bundle.manifest,
            runtime=runtime,
            inputs=_loaded_inputs(bundle.manifest, model, runtime, compile_steps, post.needs),
            post=post,
            resources=resources,
        )
        undo.pop_all()  # no failure: the model now owns the resources
    return loaded


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
    image = next((each for each in model.inputs if _has_image_steps(each)), model.inputs[0])
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


def _has_image_steps(declared: ops.ModelInput) -> bool:
    return any(isinstance(step, ops.Decode | ops.CenterCrop | ops.Resize) for step in declared.preprocess)


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
        what = f"{classes} classes" if classes else "the task's outputs"
        raise ModelLoadError(f"Score graph {file} does not score {what}: {error}") from error
    return score


def _graph_step(graph: Runtime, file: str) -> Step:
    feed = pick_port(graph.inputs, "", f"Graph {file}", "input", only=True).name
    output = pick_port(graph.outputs, "", f"Graph {file}", "output", only=True).name
    return lambda array: graph.run({feed: array})[output]


def _warm_up(loaded: LoadedModel) -> None:
    """Runs zeros through processing and model. The first run also includes the runtimes' lazy initialisation."""
    trial = loaded.trial_inputs()
    try:
        if trial is not None:
            with about("preprocess"):
                rows = loaded.prepare(trial)
            loaded.compute(rows)
    except (InferenceError, RequestError) as error:
        raise ModelLoadError(f"Model '{loaded.model.id}' fails on a trial run: {error}") from error


def declared_inputs(
    request: InferRequest, manifest: Manifest, needed: Sequence[str], *, checked_later: Collection[str] | None = None
) -> Arrays:
    """Returns the request's inputs by name, in the manifest's order.

    Args:
        request: from a client.
        manifest: of its bundle.
        needed: names of the inputs without which no answer is possible.
        checked_later: names of the inputs that `LoadedModel.prepare` checks; None for those that are needed. All others
            are checked here against their declaration, because they are for a model that runs elsewhere.

    Raises:
        InvalidTensorError: an input is missing, unknown, repeated, not as declared, or has another number of rows than
            the others, or the request names an output that the bundle does not have.
    """
    given: dict[str, Array] = {}  # loops, because comprehensions are calls before Python 3.12
    inputs: dict[str, Array] = {}
    for tensor in request.inputs:
        given[tensor.name] = tensor.array
    for spec in manifest.inputs:
        if spec.name in given:
            inputs[spec.name] = given[spec.name]
    has_all = len(inputs) == len(manifest.inputs) or inputs.keys() >= {*needed}
    if len(inputs) != len(request.inputs) or not has_all:
        raise _other_inputs(request, manifest, needed)
    if len(inputs) > 1:
        _check_rows(inputs)
    checked = needed if checked_later is None else checked_later
    if len(inputs) > len(checked):
        _check_unread(manifest, {name: array for name, array in inputs.items() if name not in checked})
    for output in request.outputs:
        if output.name not in manifest.output_names:
            raise InvalidTensorError(
                f"Model '{manifest.name}' has no output {shown(output.name)}"
                f"{listed(output.name, manifest.output_names, 'it has:')}"
            )
    return inputs


def _other_inputs(request: InferRequest, manifest: Manifest, needed: Sequence[str]) -> InvalidTensorError:
    known = [spec.name for spec in manifest.inputs]
    sent = ", ".join([shown(tensor.name) for tensor in request.inputs[:_NAMES_SHOWN]])
    if len(known) == 1:
        return InvalidTensorError(
            f"Model '{manifest.name}' takes one input, '{known[0]}'; the request has: {sent}. Rename or remove it."
        )
    enough = "" if len(needed) == len(known) else f" ({', '.join(map(repr, needed))} at least)"
    return InvalidTensorError(
        f"Model '{manifest.name}' takes the inputs {', '.join(map(repr, known))}{enough}, each once; the request has: "
        f"{sent}."
    )


def _check_rows(inputs: Arrays) -> None:
    first, *others = inputs
    rows = inputs[first].shape[:1]
    for name in others:
        if inputs[name].shape[:1] != rows:
            raise InvalidTensorError(
                f"Input '{first}' has shape {list(inputs[first].shape)} and input '{name}' {list(inputs[name].shape)}; "
                "all inputs of a request have the same number of rows, their first axis."
            )


def _check_unread(manifest: Manifest, inputs: Arrays) -> None:
    """Checks the inputs that no model of this tier reads: the declaration, and the format of each file or text."""
    for name, array in inputs.items():
        spec = manifest.input(name)
        steps = [
            step for model in manifest.models for each in model.inputs if each.name == name for step in each.preprocess
        ]
        tensor = check_input(spec, array, takes_pixels=any(isinstance(step, ops.Decode) for step in steps))
        if tensor.array.dtype.hasobject:
            for row, element in enumerate(tensor.array):
                _CHECK_FORMAT[spec.kind](element, f"Row {row} of input '{name}'")


def check_input(spec: ops.InputSpec, array: Array, *, takes_pixels: bool) -> Tensor:
    """Returns an input in its declared datatype.

    Args:
        spec: the declaration.
        array: as sent.
        takes_pixels: whether encoded images may also be sent as pixels, UINT8 [rows, height, width, channels].

    Raises:
        InvalidTensorError: it is not as declared.
    """
    if array.ndim == 0 or array.shape[0] == 0:
        raise InvalidTensorError(f"Input '{spec.name}' has no rows; send at least one.")
    tensor = Tensor(spec.name, array)
    if takes_pixels and spec.kind == "image" and array.dtype == np.uint8:
        return tensor  # pixels of any size: preprocessing checks their axes
    if array.dtype != (dtype := DATATYPES[spec.datatype]):
        tensor = _converted(spec, tensor, dtype, takes_pixels=takes_pixels)
    if not fits(array.shape, spec.shape):
        raise InvalidTensorError(
            f"Input '{spec.name}' has shape {list(array.shape)}, but the model takes {sizes(spec.shape)}; send "
            "values in that shape."
        )
    if dtype.kind == "f" and not all_finite(tensor.array):
        raise _not_finite(tensor)
    return tensor


def _converted(spec: ops.InputSpec, tensor: Tensor, dtype: np.dtype[Any], *, takes_pixels: bool) -> Tensor:
    """Returns numbers in the declared datatype: floats of another width, whole numbers as wider ones or floats."""
    target = DATATYPES[spec.datatype].kind
    if target not in _CONVERTED_FROM or tensor.array.dtype.kind not in _CONVERTED_FROM[target]:
        alternative = " (encoded images) or UINT8 pixels" if takes_pixels and spec.kind == "image" else ""
        raise InvalidTensorError(
            f"Input '{spec.name}' is {spec.datatype}{alternative}, but was sent as {tensor.datatype}; convert it."
        )
    if target == "f" and tensor.array.dtype.kind == "f" and not all_finite(tensor.array):
        raise _not_finite(tensor)
    return Tensor(spec.name, cast_feed(spec.name, tensor.array, dtype, "Input"))


def _not_finite(tensor: Tensor) -> InvalidTensorError:
    finite = np.isfinite(tensor.array)
    row = int(np.argmin(finite.reshape(len(finite), -1).all(axis=1)))
    return InvalidTensorError(f"Row {row} of input '{tensor.name}' has NaN or infinity; send finite numbers.")
