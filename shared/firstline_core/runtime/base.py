"""The interface of all runtimes, the checks of inputs, and how models of fixed batches run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from firstline_core.errors import InvalidTensorError, ModelLoadError, about, did_you_mean
from firstline_core.telemetry.wording import counted
from firstline_core.types import Array, TensorSpec

RuntimeName = Literal["onnx", "tflite"]
"""The name of a runtime in a bundle's manifest; `select.py: RUNTIMES` says what differs between them."""

Feeds = Mapping[str, Array]
"""One array for each input of a model, by name."""


class Runtime(Protocol):
    """A loaded model. Thread-safe.

    Runtimes scale quantised inputs and outputs: callers pass and get real values of any dtype, and see FP32 specs. A
    model with a fixed batch size is run row by row or padded: callers may pass any number of rows.

    Attributes:
        ranges: smallest and largest real value of each quantised input, by name; other values are clipped.
        provider: that really executes the model, e.g. "CPUExecutionProvider" or "tflite/litert".
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ranges: Mapping[str, tuple[float, float]]
    provider: str

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Runs the model once over a batch.

        Args:
            feeds: one array for each input, rows on the first axis.

        Returns:
            One array for each output, rows on the first axis, in the order of the feeds.

        Raises:
            InvalidTensorError: a feed's name, dtype or shape is not the model's.
            InferenceError: the runtime failed on valid input.
        """
        ...

    def close(self) -> None:
        """Frees the model; calling it twice is harmless."""
        ...


def pick_port(
    specs: Sequence[TensorSpec], name: str, what: str, side: Literal["input", "output"], *, only: bool = False
) -> TensorSpec:
    """Returns the input or output that the manifest names, or the only one.

    Args:
        specs: the model's inputs, or its outputs.
        name: "" for the only one.
        what: the model, for messages.
        side: "input" or "output".
        only: refuse further ones, which would get no data.

    Raises:
        ModelLoadError: no port of that name, or several and no name.
    """
    names = ", ".join(f"'{spec.name}'" for spec in specs)
    if len(specs) > 1 and only:
        raise ModelLoadError(
            f"{what} has {len(specs)} {side}s, {names}; a bundle feeds one. Export the model with one {side}, and let "
            "its graph compute the others from it or hold them as constants."
        )
    # Labels as strings may accompany the output of a classifier.
    numbers = [spec for spec in specs if side == "output" and spec.datatype != "BYTES"]
    if not name and len(numbers or specs) == 1:
        return (numbers or specs)[0]
    for spec in specs:
        if spec.name == name:
            return spec
    if not name:
        raise ModelLoadError(
            f"{what} has {len(specs)} {side}s, {names}; name one of them as `{side}` in the recipe or manifest."
        )
    with about(side):
        raise ModelLoadError(
            f"{what} has no {side} '{name}'; it has {names}{did_you_mean(name, (spec.name for spec in specs))}"
        )


def fixed_batch(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], path: Path) -> int | None:
    """Returns the number of rows that a model takes at once; None if it is free.

    Raises:
        ModelLoadError: there is no input or no output, an input has no axis of rows, or fixed numbers of rows differ.
    """
    if not inputs or not outputs or any(not spec.shape for spec in inputs):
        raise ModelLoadError(f"{path}: a model needs inputs with rows on the first axis, and a tensor as output.")
    sizes = {spec.shape[0] for spec in inputs if spec.shape[0] > 0}
    if len(sizes) > 1:
        raise ModelLoadError(f"{path}: the inputs have fixed batch sizes that differ: {sorted(sizes)}.")
    return next(iter(sizes), None)


def check_feeds(feeds: Feeds, inputs: Sequence[TensorSpec]) -> None:
    """Checks names and shapes, and that all feeds have the same number of rows, at least one.

    Raises:
        InvalidTensorError: names the input and both shapes.
    """
    rows = None
    for spec in inputs:
        feed = feeds.get(spec.name)
        if feed is None or len(feeds) != len(inputs):
            raise InvalidTensorError(
                f"The model takes {_names(spec.name for spec in inputs)}, but was fed {_names(feeds) or 'nothing'}."
            )
        shape = feed.shape
        if not fits(shape, spec.shape):
            wanted = ", ".join(["rows", *("any" if size < 0 else str(size) for size in spec.shape[1:])])
            raise InvalidTensorError(f"Model input '{spec.name}' takes [{wanted}], but was fed {list(shape)}.")
        if shape[0] == 0:
            raise InvalidTensorError(f"Model input '{spec.name}' was fed no rows.")
        if rows is not None and shape[0] != rows:
            raise InvalidTensorError(
                f"Model input '{spec.name}' was fed {counted(shape[0], 'row')} and another input {rows:,}."
            )
        rows = shape[0]


def fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Returns whether the axes after the rows match; -1 matches any size.

    The first axis counts rows: the runtime handles a fixed batch size, not the caller.
    """
    if len(shape) != len(wanted):
        return False
    return shape[1:] == wanted[1:] or all(size in (-1, own) for size, own in zip(wanted[1:], shape[1:], strict=True))


def cast_feed(name: str, array: Array, dtype: np.dtype[Any], what: str = "Model input") -> Array:
    """Returns the array in the model's dtype, C-contiguous, if the cast loses no meaning.

    Floats may change their width and integers may become floats if none becomes infinite. Integers may change their
    width if every value fits; floats do not become integers.

    Args:
        name: of the input.
        array: to cast.
        dtype: the model's.
        what: stands before the name in messages.

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
                f"{what} '{name}' takes {dtype}, up to {float(np.finfo(dtype).max):g}, but was fed values up to "
                f"{float(np.abs(array[np.isfinite(array)].astype(np.float64)).max()):g}."
            )
        return cast
    if dtype.kind in "iu" and array.dtype.kind in "iub":
        limits = np.iinfo(dtype)
        if array.size and not (limits.min <= int(array.min()) and int(array.max()) <= limits.max):
            raise InvalidTensorError(
                f"{what} '{name}' takes {dtype}, from {limits.min} to {limits.max}, but was fed values from "
                f"{int(array.min())} to {int(array.max())}."
            )
        return np.ascontiguousarray(array, dtype=dtype)
    raise InvalidTensorError(f"{what} '{name}' takes {dtype}, but was fed {array.dtype}.")


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


class RowByRow:
    """A `Runtime` that runs another one with a single row at a time, for models whose rows depend on each other.

    Inputs and outputs without an axis of rows get one: of one row, each output is all that the model gives.
    """

    def __init__(self, runtime: Runtime, without_rows: Collection[str] = ()) -> None:
        """Wraps a runtime, which is closed with this one.

        Args:
            runtime: runs one row.
            without_rows: names of its inputs and outputs that have no axis of rows.

        Raises:
            ModelLoadError: there is no such input or output, or the model takes several rows at once and does not say
                which row an output is of.
        """
        self._runtime, self._without_rows = runtime, frozenset(without_rows)
        if unknown := self._without_rows - {spec.name for spec in (*runtime.inputs, *runtime.outputs)}:
            raise ModelLoadError(f"The model has no input and no output {_names(sorted(unknown))} without rows.")
        self.inputs, self.outputs = (
            tuple(_with_rows(spec) if spec.name in self._without_rows else spec for spec in specs)
            for specs in (runtime.inputs, runtime.outputs)
        )
        self.ranges, self.provider = runtime.ranges, runtime.provider
        if several := [spec for spec in self.inputs if without_rows and spec.shape[0] > 1]:
            raise ModelLoadError(
                f"The model takes {several[0].shape[0]} rows at once in '{several[0].name}', and its outputs have no "
                "axis of rows; export it with 1 row."
            )

    def run(self, feeds: Feeds) -> dict[str, Array]:
        check_feeds(feeds, self.inputs)
        rows = range(len(next(iter(feeds.values()))))
        found = [self._run_row({name: array[row : row + 1] for name, array in feeds.items()}) for row in rows]
        return {name: _joined([each[name] for each in found]) for name in found[0]}

    def _run_row(self, row: Feeds) -> dict[str, Array]:
        without = self._without_rows
        found = self._runtime.run({name: array[0] if name in without else array for name, array in row.items()})
        return {name: array[None] if name in without else np.atleast_1d(array) for name, array in found.items()}

    def close(self) -> None:
        self._runtime.close()


def _with_rows(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.name, spec.datatype, (-1, *spec.shape))


def _joined(parts: Sequence[Array]) -> Array:
    """Returns the rows of all parts, those of smaller sizes filled up with 0."""
    if len({part.shape[1:] for part in parts}) > 1:
        sizes = np.max([part.shape[1:] for part in parts], axis=0)
        parts = [np.pad(part, [(0, 0), *((0, size) for size in sizes - part.shape[1:])]) for part in parts]
    return np.concatenate(parts)


def run_in_batches(feeds: Feeds, size: int, run: Callable[[Feeds], dict[str, Array]]) -> dict[str, Array]:
    """Cuts the feeds into batches of exactly `size` rows and puts the outputs together again.

    The last batch is filled up with copies of its own last row, which the model has to accept anyway.

    Args:
        feeds: arrays that share their first axis, of at least one row.
        size: the model's batch size.
        run: runs one batch; its outputs have `size` rows.
    """
    rows = len(next(iter(feeds.values())))
    if rows == size:
        return run(feeds)
    batches = [run(_batch(feeds, start, size)) for start in range(0, rows, size)]
    return {name: _joined([np.atleast_1d(batch[name]) for batch in batches])[:rows] for name in batches[0]}


def _batch(feeds: Feeds, start: int, size: int) -> Feeds:
    batch = {name: array[start : start + size] for name, array in feeds.items()}
    missing = size - len(next(iter(batch.values())))
    if missing == 0:
        return batch
    return {name: np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) for name, array in batch.items()}
