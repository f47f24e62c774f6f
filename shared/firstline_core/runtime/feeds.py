"""Checks of the runtimes' inputs: names, shapes, row counts and datatypes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from firstline_core.errors import InvalidTensorError
from firstline_core.types import Array, TensorSpec


def check_feeds(feeds: Mapping[str, Array], inputs: Sequence[TensorSpec]) -> None:
    """Checks names and shapes, and that all feeds have the same number of rows, at least one.

    Raises:
        InvalidTensorError: names the input and both shapes.
    """
    if len(feeds) != len(inputs) or [spec for spec in inputs if spec.name not in feeds]:
        raise InvalidTensorError(
            f"The model takes {_names(spec.name for spec in inputs)}, but was fed {_names(feeds) or 'nothing'}."
        )
    rows = None
    for spec in inputs:
        shape = feeds[spec.name].shape
        if not fits(shape, spec.shape):
            wanted = ", ".join(["rows", *("any" if size < 0 else str(size) for size in spec.shape[1:])])
            raise InvalidTensorError(f"Model input '{spec.name}' takes [{wanted}], but was fed {list(shape)}.")
        if shape[0] == 0:
            raise InvalidTensorError(f"Model input '{spec.name}' was fed no rows.")
        if rows is not None and shape[0] != rows:
            raise InvalidTensorError(f"Model input '{spec.name}' was fed {shape[0]} rows and another input {rows}.")
        rows = shape[0]


def fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Returns whether the axes after the rows match; -1 matches any size.

    The first axis counts rows: the runtime handles a fixed batch size, not the caller.
    """
    if shape[1:] == wanted[1:]:
        return len(shape) == len(wanted)
    return len(shape) == len(wanted) and all(
        want in (-1, have) for want, have in zip(wanted[1:], shape[1:], strict=True)
    )


def all_finite(array: Array) -> bool:
    """Returns whether all numbers are finite.

    A finite sum of squares proves it in one pass without a temporary array. Otherwise large numbers may be the reason,
    and each number is checked.
    """
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def cast_feed(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """Returns the array in the model's dtype, C-contiguous, if the cast loses no meaning.

    Floats may change their width and integers may become floats if none becomes infinite. Integers may change their
    width if every value fits; floats do not become integers.

    Raises:
        InvalidTensorError: a cast that would lose meaning.
    """
    if array.dtype == dtype:
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)
    if dtype.kind == "f" and array.dtype.kind in "fiub":
        with np.errstate(over="ignore"):  # reported below
            cast = np.ascontiguousarray(array, dtype=dtype)
        if not np.can_cast(array.dtype, dtype) and (np.isinf(cast) & np.isfinite(array)).any():
            raise InvalidTensorError(
                f"Model input '{name}' takes {dtype}, up to {float(np.finfo(dtype).max):g}, but was fed values up to "
                f"{float(np.abs(array[np.isfinite(array)].astype(np.float64)).max()):g}."
            )
        return cast
    if dtype.kind in "iu" and array.dtype.kind in "iub":
        limits = np.iinfo(dtype)
        if array.size and not (limits.min <= int(array.min()) and int(array.max()) <= limits.max):
            raise InvalidTensorError(
                f"Model input '{name}' takes {dtype}, from {limits.min} to {limits.max}, but was fed values from "
                f"{int(array.min())} to {int(array.max())}."
            )
        return np.ascontiguousarray(array, dtype=dtype)
    raise InvalidTensorError(f"Model input '{name}' takes {dtype}, but was fed {array.dtype}.")


def _names(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names)
