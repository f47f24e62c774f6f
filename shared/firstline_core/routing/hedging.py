"""Hedging: whether to ask the full model before the small one has answered.

Pure functions.

A hedge starts a second attempt before the first one has failed (Dean and Barroso, "The Tail at Scale", CACM 2013). Here
it saves time: if the device's own model is slow and the deadline is near, an escalation after the edge model would be
too late, and a parallel one is not.
"""

from __future__ import annotations

from dataclasses import dataclass

_HALF_LIFE_COUNT = 32.0
_LEAST_WEIGHT = 4.0
_KEEP = 2.0 ** (-1 / _HALF_LIFE_COUNT)


@dataclass(frozen=True, slots=True)
class HedgingEstimates:
    """The estimates for a request before the edge model runs.

    Args:
        left_s: time until the deadline.
        edge_s: expected time of the edge model, including its queue; infinite if never measured.
        cloud_s: time within which the gateway answers most such requests; None if unknown.
        escalation_rate: recent share of this model's requests that were escalated; None with too few observations.
    """

    left_s: float
    edge_s: float
    cloud_s: float | None
    escalation_rate: float | None


def worth_hedging(prospect: HedgingEstimates, least_rate: float) -> bool:
    """Returns whether an escalation is likely, in time if sent now, and too late if sent later."""
    if prospect.cloud_s is None or prospect.escalation_rate is None or prospect.escalation_rate < least_rate:
        return False
    return prospect.cloud_s <= prospect.left_s < prospect.edge_s + prospect.cloud_s


class DecayedShare:
    """A decaying share of true observations: the weight of each is halved after 32 further ones."""

    __slots__ = ("_hits", "_weight")

    def __init__(self) -> None:
        self._hits = self._weight = 0.0

    def add(self, *, hit: bool) -> None:
        """Adds an observation."""
        self._hits = _KEEP * self._hits + hit
        self._weight = _KEEP * self._weight + 1

    @property
    def value(self) -> float | None:
        """Returns the share; None with too few observations."""
        return self._hits / self._weight if self._weight >= _LEAST_WEIGHT else None
