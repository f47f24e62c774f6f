"""The variants of a bundle on one device as rungs: the best first, each further one cheaper."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class Rung(Struct, frozen=True):
    """One variant with its cost on this device.

    Attributes:
        variant: id in the bundle.
        row_ms: time of one row, processing included.
        energy_mj: energy of one row beyond the idle device, measured or modelled; None if unknown.
        memory_bytes: peak while the variant loads; 0 if unknown.
        merit: answer quality, larger is better: the share of rows that the certificate keeps, or the accuracy. Only
            the order matters.
    """

    variant: str
    row_ms: float
    energy_mj: float | None = None
    memory_bytes: int = 0
    merit: float = 0.0


def build_ladder(rungs: Iterable[Rung]) -> tuple[Rung, ...]:
    """Returns the useful rungs, best first; each further rung is faster and uses less energy than all before it.

    A step down to a slower or more power-hungry variant would make a late device later and a hot one hotter. Memory
    does not count, because everything above the rung in use can be unloaded.

    Raises:
        ValueError: there is no rung.
    """
    kept: list[Rung] = []
    for rung in sorted(rungs, key=lambda rung: (-rung.merit, rung.row_ms)):
        if not any(_is_as_cheap(better, rung) for better in kept):
            kept.append(rung)
    if not kept:
        raise ValueError("a ladder needs at least one rung")
    return tuple(kept)


def _is_as_cheap(better: Rung, rung: Rung) -> bool:
    """Whether the better rung is as fast, or needs as little energy where both energies are known."""
    if better.row_ms <= rung.row_ms:
        return True
    return better.energy_mj is not None and rung.energy_mj is not None and better.energy_mj <= rung.energy_mj
