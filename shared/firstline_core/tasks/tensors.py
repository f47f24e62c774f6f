"""Tensors that the bundle declares, for models that no other task describes. Pure.

The loss is a comparison with tolerances, or an ONNX graph that the manifest holds. A score is an ONNX graph of the
bundle, see `manifest.Score`; without one there is no confidence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from firstline_core.errors import ConfigError, InferenceError, InvalidTensorError, ModelLoadError
from firstline_core.processing.compile import compile_postprocess
from firstline_core.processing.steps import Datatype, PostStep
from firstline_core.runtime.base import RowByRow
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.tasks.base import Event, ModelOutputs, Postprocess, Prediction, Scores, event_of
from firstline_core.tasks.drawing import caption
from firstline_core.tasks.view import WHOLE, View
from firstline_core.types import DATATYPES, Array, Arrays, TensorSpec, all_finite, row_count

if TYPE_CHECKING:
    from PIL import Image

EDGE, FULL = "edge/", "full/"
"""Prefixes of the inputs of a loss graph, which are outputs of both models; its output is the loss, FP32 [n]."""

_Tolerance = Annotated[float, Meta(ge=0, le=1e30)]
_Graph = Annotated[bytes, Meta(max_length=1 << 20)]
_MEASURES = 3
_SHOWN = 8
_FP32_BYTES, _DIGITS = 4, 7


class DeclaredTensor(Struct, frozen=True, forbid_unknown_fields=True):
    """One output.

    Attributes:
        shape: -1 for the rows, then the sizes of the other axes.
    """

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    datatype: Datatype
    shape: Annotated[tuple[int, ...], Meta(min_length=1, max_length=8)]

    def __post_init__(self) -> None:
        if self.shape[0] != -1 or any(size < 1 for size in self.shape[1:]):
            raise ValueError(f"output '{self.name}' needs -1 (the rows) and then fixed sizes, got {list(self.shape)}")
        if self.name.startswith((EDGE, FULL)):
            raise ValueError(f"output name '{self.name}' begins with {EDGE} or {FULL}, which a loss graph uses")


class Tensors(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind", tag="tensors"):
    """A model with any outputs.

    The answers of edge and full model agree if every number differs by at most `absolute` + `relative` * the size of
    the full model's number, and everything else is equal; or as the loss graph says.

    Attributes:
        tensors: the outputs.
        absolute: part of the tolerance.
        relative: part of the tolerance, as a share of the full model's number.
        loss_graph: an ONNX model with inputs `edge/NAME` and `full/NAME`, each as the output NAME, and one output, the
            loss from 0 to 1 of each row; b"" for the tolerances.
    """

    kind: ClassVar[str] = "tensors"
    score_kinds: ClassVar[tuple[str, ...]] = ("none",)
    compares_evidence: ClassVar[bool] = False
    graph_scores: ClassVar[bool] = True
    quality: ClassVar[str] = "loss"
    higher_is_better: ClassVar[bool] = False
    view_options: ClassVar[tuple[str, ...]] = ()
    in_pixels: ClassVar[bool] = False

    tensors: Annotated[tuple[DeclaredTensor, ...], Meta(min_length=1, max_length=64)]
    absolute: _Tolerance = 0.0
    relative: _Tolerance = 0.0
    loss_graph: _Graph = b""

    def __post_init__(self) -> None:
        names = [tensor.name for tensor in self.tensors]
        if len(set(names)) < len(names):
            raise ValueError("the names of outputs differ")
        if self.loss_graph and (self.absolute or self.relative):
            raise ValueError("a loss graph takes the place of the tolerances; keep one of them")

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return tuple([TensorSpec(tensor.name, tensor.datatype, tensor.shape) for tensor in self.tensors])

    @property
    def evidence(self) -> tuple[TensorSpec, ...]:
        return ()

    @property
    def truth(self) -> tuple[TensorSpec, ...]:
        """Returns the form of the outputs: the label of a row is the answer that it should have."""
        return self.outputs

    @property
    def labels(self) -> tuple[str, ...]:
        return ()

    @property
    def group_names(self) -> tuple[str, ...]:
        return ()

    @property
    def events(self) -> tuple[str, ...]:
        return ()

    @property
    def digest(self) -> str:
        """Returns the sha256 over all fields."""
        return _digest(self)

    def declared(self, *, rounded: bool, cut: bool) -> Tensors:
        """Returns this task: the outputs of all models satisfy the same."""
        return self

    def fault(self, outputs: Arrays) -> str:
        """Returns what is wrong with the values of outputs of the declared shapes, as a noun; "" if nothing is."""
        bad = [name for name in self._floats if not all_finite(outputs[name])]
        return f"NaN or infinity in '{bad[0]}'" if bad else ""

    def postprocess(self, model: ModelOutputs) -> Postprocess:
        """Reads the declared outputs by name; steps are for a single output. A trial run shows whether the graph fits.

        Raises:
            ModelLoadError: see `Task.postprocess`; or the loss graph does not load here, or does not fit.
        """
        if self.loss_graph:
            zeros = {name: _zeros(spec, 2) for name, spec in self._specs.items()}
            try:
                self.check_loss(zeros, zeros)
            except (InferenceError, InvalidTensorError) as error:
                raise ModelLoadError(f"The task's loss graph does not fit its outputs: {error}") from error
        if len(self.tensors) > 1 and (model.steps or model.output):
            raise ModelLoadError(
                f"Postprocessing: {model.what} has several outputs, which have the names in the task and no steps."
            )
        alone = len(self.tensors) == 1
        names = {spec.name: model.port(model.output if alone else spec.name) for spec in self.tensors}
        steps = compile_postprocess(model.steps, model.load_graph) if model.steps else None

        def run(raw: Arrays, rows: Arrays) -> Prediction:
            outputs = {}
            for name, spec in self._specs.items():
                found = raw[names[name]] if steps is None else steps(raw[names[name]])
                outputs[name] = _shaped(found, spec, row_count(rows), model.what)
            return Prediction(outputs, {})

        return Postprocess(tuple(names.values()), run)

    def score(self, kind: str, outputs: Arrays, evidence: Arrays, *, temperature: float = 1.0) -> Scores:
        """Returns 0 for every row: without a graph there is no confidence, and no edge answer is accepted."""
        return np.zeros(row_count(outputs), np.float32)

    def needs_event(self, steps: Sequence[PostStep]) -> bool:
        return False

    def unscored(self, kind: str, steps: Sequence[PostStep]) -> str:
        return ""

    @property
    def feature_count(self) -> int:
        return _MEASURES * len(self._numbers)

    def features(self, outputs: Arrays, evidence: Arrays) -> NDArray[np.float32]:
        """Returns mean, deviation and logarithm of the largest size of each output of numbers."""
        columns: list[NDArray[np.float64]] = [np.zeros((row_count(outputs), 0))]
        for name in self._numbers:
            values = outputs[name].reshape(len(outputs[name]), -1).astype(np.float64)
            columns += [each[:, None] for each in (values.mean(axis=1), values.std(axis=1))]
            columns.append(np.log1p(np.abs(values).max(axis=1))[:, None])
        return np.concatenate(columns, axis=1).astype(np.float32)

    def supposed_losses(self, outputs: Arrays, evidence: Arrays) -> Scores:
        """Returns a half for each row: nothing is known."""
        return np.full(row_count(outputs), 0.5, np.float32)

    def groups(self, outputs: Arrays) -> Sequence[str]:
        """Returns "" for each row: tensors have no classes."""
        return [""] * row_count(outputs)

    def occurrences(self, outputs: Arrays) -> NDArray[np.int64]:
        return np.zeros((row_count(outputs), 0), np.int64)

    def loss(self, edge: Arrays, full: Arrays) -> Scores:
        """Returns 1 for rows outside of the tolerances and else 0, or what the loss graph gives, clipped to 0 to 1.

        NaN counts as 1.

        Raises:
            InferenceError: the loss graph failed, or gave another number of values than rows.
            ModelLoadError: the loss graph does not load here.
        """
        if self.loss_graph:
            given = _graph_losses(_loaded(self.loss_graph), edge, full)
            return np.clip(np.nan_to_num(given, nan=1.0), 0, 1)
        rows = row_count(full)
        outside = np.zeros(rows, np.bool_)
        for name in self._specs:
            ours, theirs = edge[name], full[name]
            if name in self._numbers:
                mine, other = ours.astype(np.float64), theirs.astype(np.float64)
                differ = ~(np.abs(mine - other) <= self.absolute + self.relative * np.abs(other))
            else:
                differ = ours != theirs
            outside |= np.asarray(differ, np.bool_).reshape(rows, -1).any(axis=1)
        return outside.astype(np.float32)

    def check_loss(self, edge: Arrays, full: Arrays) -> None:
        """Raises an error if the loss graph gives other values than 0 to 1 for these answers.

        Raises:
            InferenceError: as said, or see `loss`.
            ModelLoadError: the loss graph does not load here.
        """
        if not self.loss_graph:
            return
        given = _graph_losses(_loaded(self.loss_graph), edge, full)
        wrong = given[~((given >= 0) & (given <= 1))]
        if len(wrong):
            raise InferenceError(
                f"The loss graph of the task gives {wrong[0]:.4g}; export one whose output is in 0 to 1."
            )

    def event(self, name: str, edge: Arrays, full: Arrays) -> Event:
        event_of(name, self.group_names)
        raise AssertionError(name)

    def truth_loss(self, outputs: Arrays, truth: Arrays) -> Scores:
        known = self._labelled(truth)
        losses = np.ones(len(known), np.float32)
        if known.any():
            losses[known] = self.loss(_rows(outputs, known), _rows(truth, known))
        return losses

    def summary(self, outputs: Arrays, evidence: Arrays, truth: Arrays) -> dict[str, float]:
        """Returns the mean loss against the labels."""
        known = self._labelled(truth)
        if not known.any():
            raise ConfigError("The loss needs rows with labels; the data has none.")
        return {"loss": float(self.truth_loss(outputs, truth)[known].mean())}

    def describe(self, outputs: Arrays, row: int, view: View = WHOLE) -> dict[str, Any]:
        """Returns `outputs`: nested lists by name, with one row, in seven digits."""
        return {"outputs": {name: _listed(outputs[name][row : row + 1]) for name in self._specs}}

    def draw(self, image: Image.Image, outputs: Arrays, row: int, view: View = WHOLE) -> Image.Image:
        """Returns a copy of the image with the first elements of each output in the top left corner."""
        lines = []
        for name in self._specs:
            values = np.ravel(outputs[name][row])
            shown = " ".join(_short(value) for value in values[:_SHOWN].tolist())
            lines.append(f"{name} {shown}{' ...' if values.size > _SHOWN else ''}")
        return caption(image, "\n".join(lines))

    def difference(self, expected: Arrays, actual: Arrays) -> float:
        """Returns the largest difference of a number, relative to the largest number of its output or to 1.

        It is infinite if elements of BYTES or booleans differ.
        """
        worst = 0.0
        for name in self._specs:
            wanted, found = expected[name], actual[name]
            if wanted.shape != found.shape:
                return float("inf")
            if name not in self._numbers:
                if not np.array_equal(wanted, found):
                    return float("inf")
                continue
            ours, theirs = wanted.astype(np.float64), found.astype(np.float64)
            if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
                return float("inf")
            size = max(1.0, float(np.abs(ours).max(initial=0)))
            worst = max(worst, float(np.abs(ours - theirs).max(initial=0)) / size)
        return worst

    @property
    def _specs(self) -> dict[str, DeclaredTensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    @property
    def _numbers(self) -> tuple[str, ...]:
        return tuple([tensor.name for tensor in self.tensors if tensor.datatype not in ("BYTES", "BOOL")])

    @property
    def _floats(self) -> tuple[str, ...]:
        return tuple([tensor.name for tensor in self.tensors if tensor.datatype.startswith("FP")])

    def _labelled(self, truth: Arrays) -> NDArray[np.bool_]:
        """Returns which rows have a label, (n,): those without NaN."""
        known = np.ones(row_count(truth), np.bool_)
        for name in self._floats:
            known &= ~np.isnan(truth[name]).reshape(len(known), -1).any(axis=1)
        return known


@lru_cache(maxsize=64)
def _digest(task: Tensors) -> str:
    return hashlib.sha256(msgspec.json.encode(task)).hexdigest()


@lru_cache(maxsize=16)
def _loaded(graph: bytes) -> RowByRow:
    """Returns a loss graph, which runs with one row at a time: the loss of a row must not depend on other rows."""
    name = Path("the task's loss graph")
    return RowByRow(OnnxRuntime(name, providers=("CPUExecutionProvider",), threads=1, content=graph))


def _graph_losses(graph: RowByRow, edge: Arrays, full: Arrays) -> Scores:
    rows = row_count(full)
    feeds = {f"{prefix}{name}": array for prefix, part in ((EDGE, edge), (FULL, full)) for name, array in part.items()}
    wanted = [spec.name for spec in graph.inputs]
    if unknown := [name for name in wanted if name not in feeds]:
        raise InferenceError(f"it has an input '{unknown[0]}', but the outputs are {', '.join(feeds)}.")
    found = np.asarray(next(iter(graph.run({name: feeds[name] for name in wanted}).values())))
    if found.size != rows:
        raise InferenceError(f"it gives {found.size} numbers for {rows} rows.")
    return found.reshape(rows).astype(np.float32)


def _shaped(found: Array, spec: DeclaredTensor, rows: int, what: str) -> Array:
    """Returns an output in the declared datatype and shape; an axis of one may be missing."""
    dtype, shape = DATATYPES[spec.datatype], (rows, *spec.shape[1:])
    if found.dtype != dtype and not np.can_cast(found.dtype, dtype, "same_kind"):
        raise InferenceError(f"{what} gave '{spec.name}' as {found.dtype}, but the bundle declares {spec.datatype}.")
    if found.shape != shape and (found.size != np.prod(shape) or found.shape[:1] != (rows,)):
        raise InferenceError(
            f"{what} gave '{spec.name}' {list(found.shape)} for {rows} rows, but the bundle declares "
            f"{list(spec.shape)}."
        )
    with np.errstate(over="ignore"):  # the check of the values finds infinity
        return found.astype(dtype, copy=False).reshape(shape)


def _zeros(spec: DeclaredTensor, rows: int) -> Array:
    dtype = DATATYPES[spec.datatype]
    return np.full((rows, *spec.shape[1:]), b"" if dtype.hasobject else 0, dtype)


def _rows(arrays: Arrays, taken: NDArray[np.bool_]) -> Arrays:
    return {name: array[taken] for name, array in arrays.items()}


def _listed(array: Array) -> Any:
    """Returns nested lists, with texts as strings and without the digits that FP32 and FP16 do not hold."""
    plain: list[Any]
    if array.dtype.hasobject:
        plain = [_text(element) for element in array.reshape(-1)]
    elif array.dtype.kind == "f" and array.dtype.itemsize <= _FP32_BYTES:
        plain = [float(f"{value:.{_DIGITS}g}") for value in array.reshape(-1).tolist()]
    else:
        return array.tolist()
    return np.array(plain, object).reshape(array.shape).tolist()


def _text(element: bytes) -> str:
    return element.decode("utf-8", "replace")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _text(value) if isinstance(value, bytes) else str(value)
