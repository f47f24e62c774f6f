"""Functions of outputs and labels about which only names, datatypes and shapes are known. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstline_core.errors import ConfigError, InferenceError
from firstline_core.telemetry.wording import counted
from firstline_core.types import DATATYPES, Array, Arrays, TensorSpec, all_finite, row_count

LABEL = "label"
"""The truth of tasks with classes: INT64 [rows], the number of a class; of independent labels BOOL [rows, labels]."""
UNLABELLED = -1
"""The label of a row without one."""

_SHOWN = 8
_FP32_BYTES, _DIGITS = 4, 7


def not_finite(outputs: Arrays) -> str:
    """Returns which output has NaN or infinity, as a noun; "" if none has."""
    bad = [name for name, array in outputs.items() if array.dtype.kind == "f" and not all_finite(array)]
    return f"NaN or infinity in '{bad[0]}'" if bad else ""


def shaped(found: Array, spec: TensorSpec, rows: int, what: str) -> Array:
    """Returns an output of a model in the declared datatype and shape, if it has the same numbers in the same order.

    Args:
        found: the output.
        spec: its declaration.
        rows: number of rows.
        what: the model, for messages.

    Raises:
        InferenceError: it does not fit the declaration.
    """
    dtype, shape = DATATYPES[spec.datatype], (rows, *spec.shape[1:])
    if found.dtype != dtype and not np.can_cast(found.dtype, dtype, "same_kind"):
        raise InferenceError(f"{what} gave '{spec.name}' as {found.dtype}, but the bundle declares {spec.datatype}.")
    same_size = found.size == np.prod(shape) and found.shape[:1] == (rows,)
    if not same_size or in_other_layout(found.shape[1:], shape[1:]):
        raise InferenceError(
            f"{what} gave '{spec.name}' {list(found.shape)} for {counted(rows, 'row')}, but the bundle declares "
            f"{list(spec.shape)}."
        )
    with np.errstate(over="ignore"):  # the check of the values finds infinity
        return found.astype(dtype, copy=False).reshape(shape)


def in_other_layout(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Returns whether a shape has the sizes of another one in another order; axes of one do not count."""
    found, expected = ([size for size in sizes if size != 1] for sizes in (shape, wanted))
    return found != expected and sorted(found) == sorted(expected)


def of_shape(found: Array, shape: tuple[int, ...], what: str, wanted: str) -> Array:
    """Returns an output of a model, or what its postprocessing made of it, if it has the right shape.

    Args:
        found: the output.
        shape: the number of rows, and the sizes that the bundle declares.
        what: the model, for messages.
        wanted: the declaration of the bundle, and the correction to make.

    Raises:
        InferenceError: it has another shape.
    """
    if found.shape != shape:
        raise InferenceError(f"{what} gave {list(found.shape)} for {counted(shape[0], 'row')}, but {wanted}.")
    return found


def zeros(spec: TensorSpec, rows: int) -> Array:
    """Returns made-up rows of an output: 0, or empty text."""
    dtype = DATATYPES[spec.datatype]
    return np.full((rows, *spec.shape[1:]), b"" if dtype.hasobject else 0, dtype)


def numbers_of(specs: Iterable[TensorSpec]) -> tuple[str, ...]:
    """Returns the names of the outputs of numbers."""
    return tuple([spec.name for spec in specs if spec.datatype not in ("BYTES", "BOOL")])


def measures(outputs: Iterable[Array], rows: int) -> NDArray[np.float32]:
    """Returns mean, deviation and logarithm of the largest size of each output of numbers, (rows, 3 * outputs)."""
    columns: list[NDArray[np.float64]] = [np.zeros((rows, 0))]
    for output in outputs:
        values = output.reshape(rows, -1).astype(np.float64)
        columns += [each[:, None] for each in (values.mean(axis=1), values.std(axis=1))]
        columns.append(np.log1p(np.abs(values).max(axis=1))[:, None])
    return np.concatenate(columns, axis=1).astype(np.float32)


def largest_difference(expected: Arrays, actual: Arrays, specs: Iterable[TensorSpec]) -> float:
    """Returns the largest difference of a number, relative to the largest number of its output or to 1.

    It is infinite if elements of BYTES or booleans differ.
    """
    worst = 0.0
    for spec in specs:
        wanted, found = expected[spec.name], actual[spec.name]
        if numbers_of([spec]):
            size = max(1.0, float(np.abs(wanted.astype(np.float64)).max(initial=0)))
            difference = np.abs(wanted.astype(np.float64) - found.astype(np.float64))
            worst = max(worst, float(difference.max(initial=0)) / size)
        elif not np.array_equal(wanted, found):
            return float("inf")
    return worst


def numbered(names: Iterable[str]) -> NDArray[np.int64]:
    """Returns the number of each name among the different ones, in the order of their first occurrence."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)


def labelled_rows(truth: Arrays) -> NDArray[np.bool_]:
    """Returns which rows have a label, (n,): neither `UNLABELLED` nor NaN."""
    if LABEL in truth and truth[LABEL].dtype.kind == "i":
        return np.asarray(truth[LABEL] != UNLABELLED, np.bool_)
    known = np.ones(row_count(truth), np.bool_)
    for array in truth.values():
        if array.dtype.kind == "f":
            known &= np.isfinite(array).reshape(len(known), -1).all(axis=1)
    return known


def some_labelled(truth: Arrays, what: str) -> NDArray[np.bool_]:
    """Returns `labelled_rows`.

    Raises:
        ConfigError: no row has a label; names what needs them.
    """
    known = labelled_rows(truth)
    if not known.any():
        raise ConfigError(f"{what} needs labelled rows; the data has none.")
    return known


def taken(arrays: Arrays, rows: NDArray[np.bool_]) -> Arrays:
    """Returns some of the rows."""
    return {name: array[rows] for name, array in arrays.items()}


def nested(array: Array) -> Any:
    """Returns nested lists, with texts as strings and without the digits that FP32 and FP16 do not hold."""
    plain: list[Any]
    if array.dtype.hasobject:
        plain = [_text(element) for element in array.reshape(-1)]
    elif array.dtype.kind == "f" and array.dtype.itemsize <= _FP32_BYTES:
        plain = [float(f"{value:.{_DIGITS}g}") for value in array.reshape(-1).tolist()]
    else:
        return array.tolist()
    return np.array(plain, object).reshape(array.shape).tolist()


def beginning(array: Array) -> str:
    """Returns the first elements of a row's output as text."""
    values = np.ravel(array)
    shown = " ".join(_short(value) for value in values[:_SHOWN].tolist())
    return f"{shown} ..." if values.size > _SHOWN else shown


def _text(element: bytes) -> str:
    return element.decode("utf-8", "replace")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _text(value) if isinstance(value, bytes) else str(value)
