"""The variants of a bundle on one device as rungs, best first, and the choice of one for a request.

The choice is a rung that meets the deadline, and of several the one with the least energy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from msgspec import Struct

_PATIENT_RUNS = 4.0  # with time for this many runs of the best variant, a request gives way to more urgent ones


class Rung(Struct, frozen=True):
    """One variant with its cost on this device.

    Attributes:
        variant: id in the bundle.
        row_ms: time of one row, processing included.
        energy_mj: energy of one row beyond the idle device, measured or modelled; None if unknown.
        memory_bytes: peak while the variant loads; 0 if unknown.
        merit: answer quality, larger is better: the share of rows that the certificate keeps, or the accuracy. Only
            the order matters.
        sources: by figure: "profile", "load" if it was measured then, "stated" for the owner's costs, None if unknown.
    """

    variant: str
    row_ms: float
    energy_mj: float | None = None
    memory_bytes: int = 0
    merit: float = 0.0
    sources: Mapping[str, str | None] = {}


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


class EnergyPrices(Struct, frozen=True):
    """Energy of an answer, in millijoules per row.

    Attributes:
        run_mj: by rung: energy of a run.
        escalated: by rung: share of rows that its certificate does not keep, so that the full model is asked.
        escalation_mj: energy to send a row and to receive its answer.
    """

    run_mj: tuple[float, ...]
    escalated: tuple[float, ...]
    escalation_mj: float

    def expected_mj(self, rung: int, link_ms: float, spare_ms: float) -> float:
        """Returns the expected energy; the price of an escalation rises as the link's time fills the spare time.

        The link is shared, so fewer requests should use it as it gets slow. The price is divided by the share of the
        spare time that remains, as the waiting time of a queue is by its idle share.
        """
        escalated = self.escalated[rung]
        if not escalated:
            return self.run_mj[rung]
        remaining = 1 - link_ms / spare_ms if spare_ms > 0 else 0.0
        return self.run_mj[rung] + escalated * self.escalation_mj / remaining if remaining > 0 else math.inf


def choose_rung(
    runs_ms: Sequence[float],
    busy: float,
    waits_ms: Sequence[float],
    left_ms: float,
    link_ms: float = math.inf,
    *,
    prices: EnergyPrices | None = None,
) -> int:
    """Returns the rung that answers a request, relative to the best one that may be used.

    If there is time to also ask the full model, any rung meets the deadline. The one with the least expected energy is
    taken; without known energies the busier the device, the further down. Otherwise the best rung that finishes in time
    is taken, or the next one if all threads are busy and the request can wait for several runs.

    Args:
        runs_ms: by rung: time of the request.
        busy: share (0 to 1) of the model threads that are busy.
        waits_ms: by rung: queueing time.
        left_ms: time until the deadline, without the reserve for writing the answer.
        link_ms: time within which the full model mostly answers; infinite if it is not asked or this is unknown.
        prices: energies of the same rungs; None if one of them is unknown.

    Returns:
        The rung; the one that finishes first if none meets the deadline.
    """
    last = len(runs_ms) - 1
    done_ms = [wait_ms + run_ms for wait_ms, run_ms in zip(waits_ms, runs_ms, strict=True)]
    with_link = [rung for rung in range(last + 1) if done_ms[rung] + link_ms <= left_ms]
    if prices is not None and with_link:
        return min(with_link, key=lambda rung: prices.expected_mj(rung, link_ms, left_ms - done_ms[rung]))
    for rung in with_link:
        if rung >= math.ceil(busy * last):
            return rung
    can_wait = math.isfinite(link_ms) and busy >= 1 and left_ms > _PATIENT_RUNS * runs_ms[0]
    first = min(last, int(can_wait))
    for rung in chain(range(first, last + 1), range(first)):
        if done_ms[rung] <= left_ms:
            return rung
    return min(range(last + 1), key=done_ms.__getitem__)
