"""Checks that a model's answer to a row depends on this row alone: not on other rows, earlier rows or chance.

A request shares its batch with others, and a certificate is computed one row at a time. Both rely on this property.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.store import Bundle
from firstline_core.errors import InferenceError
from firstline_core.processing.steps import Graph
from firstline_core.runtime.row_operators import RowOperator, find_row_operator
from firstline_core.types import Array, Arrays, join_rows, row_count, slice_rows, take_rows

TOLERANCE = 1e-3
"""Largest difference of two outputs that agree, see `Task.difference`."""

# A large batch shows an effect of many rows; in a small one, each row weighs more.
_BATCHES = (32, 3)
_FEWEST_ROWS = 4

Answer = Callable[[Array], Arrays]
Compare = Callable[[Arrays, Arrays], float]
Clock = Callable[[], float]


class RowDifference(NamedTuple):
    """The row whose outputs differ most, from 0, and by how much; infinite if the model failed."""

    row: int
    size: float


class RowCheck(NamedTuple):
    """The result of a check.

    Attributes:
        rows: number of rows that ran.
        depends_on: "nothing" else than the row; "batch": the answer changes with the rows that run in the same batch;
            "run": the answer changes although the row runs alone.
        difference: see `RowDifference`; of 0 and below the tolerance if the rows are independent.
        operator: the operator that probably causes the difference; None if unknown.
    """

    rows: int
    depends_on: Literal["nothing", "batch", "run"]
    difference: RowDifference
    operator: RowOperator | None = None

    def sentence(self, model: str) -> str:
        """Returns what was found and what to export differently.

        Args:
            model: its id.
        """
        if self.depends_on == "nothing":
            return f"Model '{model}' answers each of {self.rows} rows alike alone, in batches and in another order."
        row, size = self.difference
        when = "runs with other rows" if self.depends_on == "batch" else "runs alone a second time"
        how = f"by {size:.3g}" if np.isfinite(size) else "or not at all"
        cause = f": {self.operator}" if self.operator is not None else ""
        return f"Model '{model}' answers row {row} differently ({how}) when it {when}{cause}."


def check_model_rows(bundle: Bundle, loaded: LoadedModel, inputs: Arrays, *, limit_s: float = 2.0) -> RowCheck:
    """Checks a loaded model, as the manifest says that it runs, with its processing.

    Args:
        bundle: has the model's files, in which the cause of a difference is looked for.
        loaded: the model.
        inputs: of the bundle, by name; rows that differ in their magnitudes show more.
        limit_s: limits the first of four passes over the rows; fewer rows run if they take longer.

    Raises:
        InvalidTensorError: the inputs do not fit the bundle.
        InferenceError: the model fails on a single row.
    """

    def answer(positions: Array) -> Arrays:
        prediction = loaded.compute(loaded.prepare(take_rows(inputs, positions.tolist())))
        return {**prediction.outputs, **prediction.evidence}

    found = check_rows(answer, np.arange(row_count(inputs)), loaded.task.difference, limit_s=limit_s)
    if found.depends_on == "nothing":
        return found
    model = loaded.model
    files = [(bundle.file(model.artefact), model.runtime)]
    files += [
        (bundle.file(step.artefact), "onnx")
        for step in (*model.presteps, *model.postprocess)
        if isinstance(step, Graph)
    ]
    operators = (find_row_operator(file, runtime, found.depends_on) for file, runtime in files)
    return found._replace(operator=next(filter(None, operators), None))


def check_rows(
    answer: Answer, rows: Array, compare: Compare, *, limit_s: float = 2.0, now_s: Clock = time.monotonic
) -> RowCheck:
    """Runs the rows alone, alone in reverse order, together, and in small batches in another order.

    Args:
        answer: runs rows and returns one answer for each.
        rows: (n, ...); at least two show whether rows depend on each other.
        compare: returns the difference of two answers to one row, see `Task.difference`.
        limit_s: ends the first pass after four rows or more.
        now_s: the clock.

    Raises:
        InferenceError: a single row fails.
    """
    alone: list[Arrays] = []
    end_s = now_s() + limit_s
    for position in range(len(rows)):
        alone.append(answer(rows[position : position + 1]))
        if len(alone) >= _FEWEST_ROWS and now_s() > end_s:
            break
    count, expected = len(alone), join_rows(alone)
    again = join_rows([answer(rows[position : position + 1]) for position in reversed(range(count))][::-1])
    difference = _difference(expected, again, compare)
    if difference.size > TOLERANCE:
        return RowCheck(count, "run", difference)
    order = np.arange(count)
    # Other neighbours and other positions, without the random generator, which takes memory on a device.
    shuffled = np.concatenate([order[1::2], order[::2][::-1]])
    found = [
        _difference(expected, _in_batches(answer, rows, each, size), compare)
        for each, size in zip((order, shuffled), _BATCHES, strict=True)
    ]
    difference = max(found, key=lambda one: one.size)
    return RowCheck(count, "batch" if difference.size > TOLERANCE else "nothing", difference)


def _in_batches(answer: Answer, rows: Array, order: NDArray[np.intp], size: int) -> Arrays | None:
    """Returns the answers in the rows' own order; None if the model does not take several rows."""
    try:
        found = join_rows([answer(rows[order[start : start + size]]) for start in range(0, len(order), size)])
    except InferenceError:
        return None
    back = np.argsort(order)
    return {name: array[back] for name, array in found.items()}


def _difference(expected: Arrays, found: Arrays | None, compare: Compare) -> RowDifference:
    if found is None or any(array.shape != found[name].shape for name, array in expected.items()):
        return RowDifference(0, float("inf"))
    same = _same_rows(expected, found)
    sizes = [
        0.0 if same[row] else compare(slice_rows(expected, row, row + 1), slice_rows(found, row, row + 1))
        for row in range(len(same))
    ]
    worst = int(np.argmax(sizes))
    return RowDifference(worst, sizes[worst])


def _same_rows(some: Arrays, others: Arrays) -> NDArray[np.bool_]:
    """Returns for each row whether all outputs are equal; NaN, which made-up inputs may cause, equals NaN."""
    same = np.ones(row_count(some), np.bool_)
    for name, array in some.items():
        other = others[name]
        equal = array == other
        if array.dtype.kind == "f":
            equal |= np.isnan(array) & np.isnan(other)
        same &= equal.reshape(len(array), -1).all(axis=1)
    return same
