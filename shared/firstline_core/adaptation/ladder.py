"""A bundle's variants on one device, as rungs: the best first, each further one cheaper."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class Rung(Struct, frozen=True):
    """One variant, with what it costs on this device.

    Attributes:
        variant: its id in the bundle.
        row_ms: one row takes, processing included.
        energy_mj: one row takes, measured or modelled, beyond the idle device; None where nobody knows.
        memory_bytes: that loading it takes, at most; 0 where nobody knows.
        merit: how good its answers are, the larger the better: the share of rows that its certificate lets it keep,
            or its accuracy. Only the order counts.
    """

    variant: str
    row_ms: float
    energy_mj: float | None = None
    memory_bytes: int = 0
    merit: float = 0.0


def ladder(rungs: Iterable[Rung]) -> tuple[Rung, ...]:
    """The rungs worth standing on: the best first, and each further one quicker and thriftier than all before it.

    Others are no way out of anything: to step down to what is slower, or takes more energy, makes a late device later
    and a hot one hotter. Memory decides nothing here, for whatever stands above a rung can be unloaded.

    Raises:
        ValueError: there is no rung.
    """
    kept: list[Rung] = []
    for rung in sorted(rungs, key=lambda rung: (-rung.merit, rung.row_ms)):
        if not any(_undercuts(better, rung) for better in kept):
            kept.append(rung)
    if not kept:
        raise ValueError("a ladder needs a rung")
    return tuple(kept)


def _undercuts(better: Rung, rung: Rung) -> bool:
    """Whether the better one is as quick, or as thrifty; energy only where both are known."""
    if better.row_ms <= rung.row_ms:
        return True
    return better.energy_mj is not None and rung.energy_mj is not None and better.energy_mj <= rung.energy_mj
