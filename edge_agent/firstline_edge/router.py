"""Who answers a row, by what the edge model said of it: the bundle's policy, its certificate, what this device adds."""

from __future__ import annotations

from firstline_core.routing import policy
from firstline_core.routing.policy import Decision
from firstline_core.types import Reason, Tier
from firstline_edge.audits.standing import CLEAR, Standing, Standings
from firstline_edge.models import HeldModel
from firstline_edge.rows import Row


class Router:
    """Decides row by row.

    Args:
        min_threshold: raises a bundle's threshold, never lowers it.
        standings: of the certificates in the field; None where nothing is known of that.
    """

    def __init__(self, *, min_threshold: float, standings: Standings | None = None) -> None:
        self._min_threshold = min_threshold
        self._standings = standings

    def threshold(self, model: HeldModel) -> float:
        """The score from which an edge answer is kept; the device can only raise the bundle's."""
        certificate = model.edge.certificate if model.edge is not None else None
        tightened = self._standing(model).threshold
        least = self._min_threshold if tightened is None else max(self._min_threshold, tightened)
        return policy.threshold_in_use(model.manifest.policy.threshold, certificate, least)

    def verdict(self, model: HeldModel, row: Row) -> Decision:
        """By the row's evidence; a row of which this device could find out nothing now is too heavy for it."""
        if row.edge is None:
            return Decision(Tier.CLOUD, Reason.HEAVY)
        return policy.after(row.score, self.threshold(model))

    def covers(self, model: HeldModel, verdict: Decision) -> bool:
        """Whether a valid certificate covers an edge answer that this verdict keeps."""
        certificate = model.edge.certificate if model.edge is not None else None
        if self._standing(model).alarmed:
            return False
        return policy.covered(verdict, self.threshold(model), certificate)

    def grants(self, model: HeldModel, row: Row) -> bool:
        """Whether a row that is not kept may be escalated: an alarm has a quota, lest a fleet's becomes an outage."""
        return self._standings is None or self._standings.grants(model, row.score)

    def _standing(self, model: HeldModel) -> Standing:
        return CLEAR if self._standings is None else self._standings.of(model)
