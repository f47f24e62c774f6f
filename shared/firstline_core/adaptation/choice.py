"""Chooses the rung for one request: one that meets the deadline, and of several the one with the least energy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

from msgspec import Struct

_PATIENT_RUNS = 4.0  # with time for this many runs of the best variant, a request gives way to more urgent ones


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
    wait_ms: float,
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
        wait_ms: queueing time.
        left_ms: time until the deadline, without the reserve for writing the answer.
        link_ms: time within which the full model mostly answers; infinite if it is not asked or this is unknown.
        prices: energies of the same rungs; None if one of them is unknown.

    Returns:
        The rung; the fastest if none meets the deadline.
    """
    last = len(runs_ms) - 1
    done_ms = [wait_ms + run_ms for run_ms in runs_ms]
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
    return min(range(last + 1), key=runs_ms.__getitem__)
