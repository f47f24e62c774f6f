"""Tensors that the bundle declares, for models that no other task describes. Pure.

The loss is a comparison with tolerances, or an ONNX graph that the manifest holds. A score is an ONNX graph of the
bundle, see `manifest.Score`; without one there is no confidence.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Meta, Struct

from firstline_core.errors import InferenceError, InvalidTensorError, ModelLoadError
from firstline_core.processing.steps import Datatype
from firstline_core.runtime.base import RowByRow
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.tasks.arrays import numbers_of, zeros
from firstline_core.tasks.base import ConfiguredTask, ModelOutputs, Postprocess, Scores
from firstline_core.telemetry.wording import counted
from firstline_core.types import Arrays, TensorSpec, row_count

EDGE, FULL = "edge/", "full/"
"""Prefixes of the inputs of a loss graph, which are outputs of both models; its output is the loss, FP32 [n]."""

_Tolerance = Annotated[float, Meta(ge=0, le=1e30)]
_Graph = Annotated[bytes, Meta(max_length=1 << 20)]


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


class Tensors(ConfiguredTask, frozen=True, tag="tensors"):
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

    graph_scores: ClassVar[bool] = True

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
    def digest(self) -> str:
        return _digest(self)

    def postprocess(self, model: ModelOutputs) -> Postprocess:
        """Compiles the default postprocessing. A trial run shows whether the loss graph fits.

        Raises:
            ModelLoadError: see `Task.postprocess`; or the loss graph does not load here, or does not fit.
        """
        if self.loss_graph:
            answer = {spec.name: zeros(spec, 2) for spec in self.outputs}
            try:
                self.check_loss(answer, answer)
            except (InferenceError, InvalidTensorError) as error:
                raise ModelLoadError(f"The task's loss graph does not fit its outputs: {error}") from error
        return super().postprocess(model)

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
        outside, numbers = np.zeros(rows, np.bool_), numbers_of(self.outputs)
        for name in [spec.name for spec in self.tensors]:
            ours, theirs = edge[name], full[name]
            if name in numbers:
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
        raise InferenceError(f"it gives {found.size} numbers for {counted(rows, 'row')}.")
    return found.reshape(rows).astype(np.float32)
