"""What one sensor says. Three types, so that no guess is ever taken for a measurement.

`Absent` has no value, and whoever wants a measured one alone asks with `measured`: a modelled one is not handed on by
mistake. Which unit a value has is said by the name under which the reading stands, `hottest_c`, `power_w`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from msgspec import Struct


class Measured(Struct, frozen=True, tag_field="kind", tag="measured"):
    """A sensor said so.

    Attributes:
        value: finite.
        source: the file that it was read from.
    """

    value: float
    source: str

    def __post_init__(self) -> None:
        _check(self.value)


class Modelled(Struct, frozen=True, tag_field="kind", tag="modelled"):
    """Reckoned from what the device's owner states, because no sensor says it.

    Attributes:
        value: finite.
        source: what it was reckoned from, in words.
    """

    value: float
    source: str

    def __post_init__(self) -> None:
        _check(self.value)


class Absent(Struct, frozen=True, tag_field="kind", tag="absent"):
    """Nobody knows.

    Attributes:
        reason: why, in a sentence that names the file.
    """

    reason: str


Reading: TypeAlias = Measured | Modelled | Absent
Readings: TypeAlias = Mapping[str, Reading]


def measured(reading: Reading) -> float | None:
    """The value, where a sensor said it; None for a modelled or an absent one."""
    return reading.value if isinstance(reading, Measured) else None


def known(reading: Reading) -> float | None:
    """The value, measured or modelled; None for an absent one. Say which it is wherever it is shown."""
    return None if isinstance(reading, Absent) else reading.value


def most(readings: Iterable[Reading], nothing: str) -> Reading:
    """The measured reading with the largest value.

    Args:
        readings: of one quantity.
        nothing: why there is none, where there are no readings at all.

    Returns:
        That reading; `Absent` with the first one's reason where none was measured.
    """
    return _picked(max, readings, nothing)


def least(readings: Iterable[Reading], nothing: str) -> Reading:
    """The measured reading with the smallest value; see `most`."""
    return _picked(min, readings, nothing)


def _picked(pick: Callable[..., Measured], readings: Iterable[Reading], nothing: str) -> Reading:
    listed = list(readings)
    found = [reading for reading in listed if isinstance(reading, Measured)]
    if found:
        return pick(found, key=lambda reading: reading.value)
    return next((reading for reading in listed if isinstance(reading, Absent)), Absent(nothing))


def _check(value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"a reading has to be finite, not {value}")
