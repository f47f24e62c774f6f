"""The reading of one sensor, in three types, so that a guess is never taken for a measurement.

The unit of a value is in the name of the reading: `hottest_c`, `power_w`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from msgspec import Struct


class Measured(Struct, frozen=True, tag_field="kind", tag="measured"):
    """A value that a sensor measured.

    Attributes:
        value: finite.
        source: the file that it was read from.
    """

    value: float
    source: str

    def __post_init__(self) -> None:
        _check(self.value)


class Modelled(Struct, frozen=True, tag_field="kind", tag="modelled"):
    """A value that was computed from costs that the device's owner states, because no sensor measures it.

    Attributes:
        value: finite.
        source: its basis, in words.
    """

    value: float
    source: str

    def __post_init__(self) -> None:
        _check(self.value)


class Absent(Struct, frozen=True, tag_field="kind", tag="absent"):
    """An unknown value.

    Attributes:
        reason: a sentence that names the file.
    """

    reason: str


Reading: TypeAlias = Measured | Modelled | Absent
Readings: TypeAlias = Mapping[str, Reading]


def measured(reading: Reading) -> float | None:
    """Returns the value if a sensor measured it; None if it is modelled or absent."""
    return reading.value if isinstance(reading, Measured) else None


def known(reading: Reading) -> float | None:
    """Returns the value, measured or modelled; None if it is absent. Say which it is wherever it is shown."""
    return None if isinstance(reading, Absent) else reading.value


def describe(reading: Reading) -> str:
    """Returns the reading for people, without its unit."""
    match reading:
        case Measured(value):
            return f"{value:.6g}"
        case Modelled(value):
            return f"{value:.6g} (modelled)"
        case Absent(reason):
            return f"absent: {reason}"


def most(readings: Iterable[Reading], nothing: str) -> Reading:
    """Returns the measured reading with the largest value.

    Args:
        readings: of one quantity.
        nothing: the reason if there are no readings at all.

    Returns:
        That reading, or `Absent` with the reason of the first absent one.
    """
    return _select(max, readings, nothing)


def least(readings: Iterable[Reading], nothing: str) -> Reading:
    """Returns the measured reading with the smallest value; see `most`."""
    return _select(min, readings, nothing)


def _select(select: Callable[..., Measured], readings: Iterable[Reading], nothing: str) -> Reading:
    listed = list(readings)
    found = [reading for reading in listed if isinstance(reading, Measured)]
    if found:
        return select(found, key=lambda reading: reading.value)
    return next((reading for reading in listed if isinstance(reading, Absent)), Absent(nothing))


def _check(value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"a reading has to be finite, not {value}")
