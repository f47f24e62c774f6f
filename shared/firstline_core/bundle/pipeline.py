"""A loaded model with its processing: the bundle's input in, probabilities out. Sync, and safe from several threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from firstline_core.bundle.manifest import InputSpec, Manifest, Model
from firstline_core.bundle.processing import Step, compile_postprocess, compile_preprocess
from firstline_core.bundle.scorer import Scorer, scorer
from firstline_core.bundle.steps import Decode, Graph, Softmax
from firstline_core.bundle.store import Bundle
from firstline_core.bundle.trial import trial_input
from firstline_core.errors import InferenceError, InvalidTensorError, ModelLoadError, RequestError
from firstline_core.routing import confidence
from firstline_core.runtime.base import Runtime
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.ports import pick_port
from firstline_core.runtime.select import RuntimeOptions, load_runtime
from firstline_core.telemetry.logs import logger
from firstline_core.types import Array, Tensor

Probabilities = NDArray[np.float32]

_HIGHEST = np.finfo(np.float32).max

log = logger(__name__)


class Prediction(NamedTuple):
    """What a model says of rows, (n, classes) float32; `logits` is None unless `Model.shows_logits`."""

    probabilities: Probabilities
    logits: Probabilities | None


class LoadedModel:
    """One model of a bundle, ready to run. `load_model` makes it.

    Attributes:
        digest: of the model, see `Model.digest`.
        labels: the bundle's, in the order of the probabilities' columns.
        input: the model's own, which `prepare` makes rows for.
        output_name: of the model's output that `run` reads.
        passed_over: of an edge variant: the preferred ones that do not load here, each with the reason.
    """

    passed_over: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        model: Model,
        manifest: Manifest,
        runtime: Runtime,
        pre: Callable[[Tensor], Array],
        post: Step,
        to_logits: Step | None,
        resources: ExitStack[None],
    ) -> None:
        self.model = model
        self.digest = model.digest
        self.labels = manifest.labels
        self.runtime = runtime
        self._spec = manifest.input
        self._pixels_pass = any(isinstance(step, Decode) for step in model.preprocess)
        self._pre, self._post, self._to_logits = pre, post, to_logits
        self.input = pick_port(runtime.inputs, model.input, f"Model '{model.id}'", "input", only=True)
        self.output_name = pick_port(runtime.outputs, model.output, f"Model '{model.id}'", "output").name
        self._resources = resources

    def prepare(self, tensor: Tensor) -> Array:
        """Turns a bundle input into the model's input rows; what it returns, `run` can run.

        Args:
            tensor: as the manifest's input says; for encoded images also their pixels, UINT8
                [rows, height, width, channels].

        Raises:
            InvalidTensorError: not this bundle's input; names the row where one is to blame.
            PayloadTooLargeError: an image with too many pixels.
        """
        self._check(tensor)
        rows = self._pre(tensor)
        if not _fits(rows.shape, self.input.shape):
            raise InvalidTensorError(
                f"Input '{tensor.name}' becomes rows of shape {list(rows.shape[1:])}, but model '{self.model.id}' "
                f"takes {_sizes(self.input.shape[1:])}."
            )
        return rows

    def run(self, rows: Array) -> Probabilities:
        """Runs the model.

        Args:
            rows: from `prepare`; those of several requests may be put together.

        Returns:
            (n, classes) float32.

        Raises:
            InvalidTensorError: rows that `prepare` did not make.
            InferenceError: the runtime failed, or gave something else than a finite probability a label and row.
        """
        return self._run(rows).probabilities

    def predict(self, tensor: Tensor) -> Probabilities:
        """`run(prepare(tensor))`: (n, classes) float32."""
        return self.run(self.prepare(tensor))

    def predict_with_logits(self, tensor: Tensor) -> Prediction:
        """As `predict`, with the logits where the postprocessing has its softmax step."""
        return self._run(self.prepare(tensor))

    def finish(self, output: Array, rows: int) -> Probabilities:
        """What `run` makes of the model's output, where the model ran elsewhere.

        Args:
            output: of the model, as it gave it.
            rows: that it was given.

        Raises:
            InferenceError: see `run`.
        """
        return self._finite(self._post_processed(output, rows)).probabilities

    def _run(self, rows: Array) -> Prediction:
        return self._finite(self.compute(rows))

    def _finite(self, found: Prediction) -> Prediction:
        finite = np.isfinite(found.probabilities)
        if not finite.all():
            raise InferenceError(
                f"Model '{self.model.id}' gave NaN or infinity for {len(finite) - int(finite.all(axis=1).sum())} of "
                f"{len(finite)} rows; such an input is outside of what it computes."
            )
        return found

    def compute(self, rows: Array) -> Prediction:
        """As `run`, whatever the numbers: an input of zeros may well have no finite answer."""
        return self._post_processed(self.runtime.run({self.input.name: rows})[self.output_name], len(rows))

    def _post_processed(self, found: Array, rows: int) -> Prediction:
        probabilities = self._post(found)
        if probabilities.shape != (rows, len(self.labels)):
            raise InferenceError(
                f"Model '{self.model.id}' gave {list(probabilities.shape)} for {rows} rows, but the bundle has "
                f"{len(self.labels)} labels; correct the labels, the output's name or the label offset."
            )
        logits = self._to_logits(found) if self._to_logits is not None else None
        return Prediction(cast(Probabilities, probabilities), logits)

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
        if not _fits(tensor.shape, spec.shape):
            raise InvalidTensorError(
                f"Input '{spec.name}' has shape {list(tensor.shape)}, but the model takes {_sizes(spec.shape)}."
            )
        if tensor.array.dtype.kind == "f":
            finite = np.isfinite(tensor.array)
            if not finite.all():
                row = int(np.argmin(finite.reshape(len(finite), -1).all(axis=1)))
                raise InvalidTensorError(f"Row {row} of input '{spec.name}' has NaN or infinity; send finite numbers.")


def load_model(bundle: Bundle, model: Model, options: RuntimeOptions) -> LoadedModel:
    """Loads one model of the bundle with its processing, and runs it once so that a wrong declaration shows now.

    Raises:
        ModelLoadError: a file is absent or does not load, the steps do not fit, or the output is not one probability
            a label.
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
    """A model's processing around what runs it, which is closed with it, or where this fails.

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
            return _graph_step(graph, step.artefact.file)

        loaded = LoadedModel(
            model=model,
            manifest=bundle.manifest,
            runtime=runtime,
            pre=compile_preprocess(model.preprocess, bundle.manifest.input, load_graph),
            post=compile_postprocess(model.postprocess, load_graph),
            to_logits=compile_postprocess(
                [step for step in model.postprocess if not isinstance(step, Softmax)], load_graph
            )
            if model.shows_logits
            else None,
            resources=resources,
        )
        undo.pop_all()  # nothing failed, so the model keeps its resources
    return loaded


def load_edge(bundle: Bundle, options: RuntimeOptions) -> LoadedModel:
    """Loads the first edge variant, in the manifest's order of preference, that is here and loads.

    Those passed over are logged, and kept in the model's `passed_over`.

    Raises:
        ModelLoadError: none does; the message says why each did not.
    """
    name = bundle.manifest.name
    reasons: list[str] = []
    for model in bundle.manifest.edge:
        try:
            loaded = load_model(bundle, model, options)
        except ModelLoadError as error:
            reasons.append(f"{model.id}: {error.message}")
            continue
        for reason in reasons:
            log.warning("edge variant passed over", model=name, taken=model.id, reason=reason)
        loaded.passed_over = tuple(reasons)
        return loaded
    if not reasons:
        raise ModelLoadError(f"Bundle '{name}' declares no edge variant.")
    raise ModelLoadError(f"No edge variant of bundle '{name}' can be loaded. " + " ".join(reasons))


def load_scorer(bundle: Bundle, options: RuntimeOptions) -> Scorer:
    """The bundle's score.

    Raises:
        ModelLoadError: a score graph that is absent, does not load, or does not give one score a row.
    """
    declared = bundle.manifest.policy.score
    if declared.graph is None:
        return scorer(declared)
    file = bundle.file(declared.graph)
    if not file.is_file():
        raise ModelLoadError(f"The bundle's score graph is absent: {file}.")
    graph = OnnxRuntime(file, providers=options.providers, threads=options.threads)
    step = _graph_step(graph, declared.graph.file)

    def score(probabilities: Probabilities, logits: Probabilities | None = None, /) -> NDArray[np.float32]:
        if declared.temperature != 1.0:
            probabilities = confidence.temper(probabilities, declared.temperature)
        found = step(probabilities)
        if found.size != len(probabilities):
            raise InferenceError(f"Score graph {file.name} gave {found.size} scores for {len(probabilities)} rows.")
        # Infinity, the log-odds of a probability of 1, would not pass through JSON, as score or as threshold.
        return np.clip(found.reshape(-1).astype(np.float32, copy=False), -_HIGHEST, _HIGHEST)

    classes = len(bundle.manifest.labels)
    try:
        score(np.full((2, classes), 1 / classes, np.float32))
    except (InferenceError, InvalidTensorError) as error:
        graph.close()
        raise ModelLoadError(f"Score graph {file} does not score {classes} classes: {error}") from error
    return score


def _graph_step(graph: Runtime, file: str) -> Step:
    feed = pick_port(graph.inputs, "", f"Graph {file}", "input", only=True).name
    output = pick_port(graph.outputs, "", f"Graph {file}", "output", only=True).name
    return partial(_run_graph, graph, feed, output)


def _run_graph(graph: Runtime, feed: str, output: str, array: Array) -> Array:
    return graph.run({feed: array})[output]


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether the axes after the rows are as wanted, -1 meaning any."""
    return len(shape) == len(wanted) and all(
        want in (-1, have) for want, have in zip(wanted[1:], shape[1:], strict=True)
    )


def _sizes(shape: tuple[int, ...]) -> str:
    return f"[{', '.join('any' if size < 0 else str(size) for size in shape)}]"


def _warm_up(loaded: LoadedModel, spec: InputSpec) -> None:
    """Runs zeros through processing and model. The first run also pays what runtimes put off until then."""
    trial = trial_input(spec, loaded.model.preprocess, loaded.input.shape)
    try:
        if trial is not None:
            loaded.compute(loaded.prepare(trial))
    except (InferenceError, RequestError) as error:
        raise ModelLoadError(f"Model '{loaded.model.id}' fails on a trial run: {error}") from error
