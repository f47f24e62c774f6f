"""The most memory that steps on numbers hold, known before they run. Pure.

The bounds follow from the arrays that `signals.py`, `standardize.py` and `compile.py` make.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from firstline_core.processing import steps as ops
from firstline_core.processing.signals import BLOCK_VALUES, frame_count, welch_hop

Shape = tuple[int, ...]

_FP32_BYTES, _FP64_BYTES = 4, 8
_OBJECTS_BYTES = 1 << 14  # of a step, whatever its arrays


class Memory(NamedTuple):
    """The most memory of a number of rows: `row_bytes` for each row, and `once_bytes` for the row that is computed.

    The rows before the first step are not counted.
    """

    row_bytes: int
    once_bytes: int


def steps_memory(steps: Sequence[ops.PreStep], shape: Shape) -> Memory:
    """Returns the memory of steps on numbers.

    Args:
        steps: in order. Those after a graph are not counted, because the shape of its result is not known.
        shape: of a row before the first step.
    """
    row_bytes = once_bytes = kept = held = 0
    for step in steps:
        if isinstance(step, ops.Graph):
            break
        result, all_rows, one_row = _of_step(step, shape)
        row_bytes, once_bytes = max(row_bytes, kept + held + all_rows), max(once_bytes, one_row)
        shape, held = result, 0 if isinstance(step, ops.Flatten) else _FP32_BYTES * math.prod(result)
        if isinstance(step, ops.Standardize):
            kept = held
    return Memory(row_bytes, once_bytes + _OBJECTS_BYTES if once_bytes + row_bytes else 0)


def _of_step(step: ops.PreStep, shape: Shape) -> tuple[Shape, int, int]:
    """Returns the shape of a row's result, the bytes of each row, and those of the row that is computed."""
    values = math.prod(shape)
    match step:
        case ops.Flatten():
            return (values,), 0, 0
        case ops.Layout():
            return (*shape[2:], *shape[:2]) if step.to == "NCHW" else shape, _FP64_BYTES * values, 0
        case ops.Observed():
            observed = step.samples * math.prod(shape[1:])
            return (max(shape[0] - step.samples, 0), *shape[1:]) if shape else (), 3 * _FP64_BYTES * observed, 0
        case ops.Standardize():
            return shape, 4 * _FP64_BYTES * values, 0
        case ops.Detrend() | ops.Welch() | ops.BandEnergies() | ops.Envelope() | ops.Mel():
            result, one_row = _of_signal(step, shape)
            # The result of the row before is held too.
            return result, _FP32_BYTES * math.prod(result), one_row + 2 * _FP64_BYTES * math.prod(result)
        case ops.Scale():
            return shape, _FP32_BYTES * values, 0
    return shape, 0, 0


def _of_signal(
    step: ops.Detrend | ops.Welch | ops.BandEnergies | ops.Envelope | ops.Mel, shape: Shape
) -> tuple[Shape, int]:
    """Returns the shape of a row's result, and the bytes in FP64 that the row takes before it."""
    samples, *others = shape or (1,)
    channels, values = math.prod(others), math.prod(shape)
    match step:
        case ops.Detrend():
            return shape, _FP64_BYTES * (4 * values + 3 * samples)
        case ops.BandEnergies():
            return (len(step.edges_hz) - 1, *others), _FP64_BYTES * (6 * values + 2 * samples)
        case ops.Envelope():
            return shape, _FP64_BYTES * (9 * values + samples)
        case ops.Welch():
            windows = frame_count(samples, step.samples, welch_hop(step))
            bins = step.samples // 2 + 1
            block = _block(windows, step.samples * channels, bins * channels)
            return (bins, *others), _FP64_BYTES * (values + 4 * step.samples + 5 * bins * channels) + block
        case ops.Mel():
            windows = frame_count(samples, step.samples, step.hop)
            block = _block(windows, step.samples * channels, (step.samples // 2 + 1 + step.bands) * channels)
            result = (windows, step.bands) if step.frames == "first" else (step.bands, windows)
            return (*result, *others), _FP64_BYTES * (values + 4 * step.samples) + block


def _block(windows: int, values: int, spectrum: int) -> int:
    """Returns the bytes of the windows that are computed at a time.

    Args:
        windows: of the row.
        values: of a window.
        spectrum: numbers of its complex spectrum, and of what follows from it.
    """
    count = min(windows, max(1, BLOCK_VALUES // max(values, 1)))
    return _FP64_BYTES * count * (2 * values + 6 * spectrum)
