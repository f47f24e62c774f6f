"""Whether to ask the full model before the small one has answered. Pure.

A hedge is a second way to the answer that is started before the first one has failed (Dean and Barroso, "The Tail at
Scale", CACM 2013). Here it buys time: where the device's own model is slow and the deadline near, one after the other
would be too late for an answer that escalates, and side by side is not.
"""

from __future__ import annotations

from dataclasses import dataclass

_HALF_LIFE_COUNT = 32.0
_LEAST_WEIGHT = 4.0
_KEEP = 2.0 ** (-1 / _HALF_LIFE_COUNT)


@dataclass(frozen=True, slots=True)
class Prospect:
    """What is known of a request before the edge model runs.

    Args:
        left_s: until the full model's answer is worth nothing.
        edge_s: what the edge model will take, its turn waited for; infinite where that was never measured.
        cloud_s: within which most such requests are answered by the gateway; None where nobody can tell.
        escalation_rate: of this model's requests of late, the share that the gateway had to answer; None while few were
            seen.
    """

    left_s: float
    edge_s: float
    cloud_s: float | None
    escalation_rate: float | None


def worth_hedging(prospect: Prospect, least_rate: float) -> bool:
    """Whether asking now may be in time, asking later would not, and an escalation is likely."""
    if prospect.cloud_s is None or prospect.escalation_rate is None or prospect.escalation_rate < least_rate:
        return False
    return prospect.cloud_s <= prospect.left_s < prospect.edge_s + prospect.cloud_s


class DecayedShare:
    """How often something was so, of late: an observation loses half of its weight by 32 further ones."""

    __slots__ = ("_hits", "_weight")

    def __init__(self) -> None:
        self._hits = self._weight = 0.0

    def add(self, *, hit: bool) -> None:
        """Adds an observation."""
        self._hits = _KEEP * self._hits + hit
        self._weight = _KEEP * self._weight + 1

    @property
    def value(self) -> float | None:
        """The share; None while few were seen."""
        return self._hits / self._weight if self._weight >= _LEAST_WEIGHT else None
