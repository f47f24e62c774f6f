"""Who answers a row, by what the edge model said of it: the bundle's policy, its certificate, what this device adds."""

from __future__ import annotations

from firstline_core.routing import policy
from firstline_core.routing.policy import Decision
from firstline_core.types import Reason, Tier
from firstline_edge.models import HeldModel
from firstline_edge.rows import Row


class Router:
    """Decides row by row.

    Args:
        min_threshold: raises a bundle's threshold, never lowers it.
    """

    def __init__(self, *, min_threshold: float) -> None:
        self._min_threshold = min_threshold

    def threshold(self, model: HeldModel, group: str | None = None) -> float:
        """The score from which an edge answer is kept; the device can only raise the bundle's.

        Args:
            model: that answered.
            group: of the answer, see `HeldModel.group`; None for the lowest threshold of any.
        """
        certificate = model.edge.certificate if model.edge is not None else None
        return policy.threshold_in_use(model.manifest.policy.threshold, certificate, self._min_threshold, group)

    def verdict(self, model: HeldModel, row: Row) -> Decision:
        """By the row's evidence; a row of which this device could find out nothing now is too heavy for it."""
        if row.edge is None:
            return Decision(Tier.CLOUD, Reason.HEAVY)
        return policy.after(row.score, self.threshold(model, model.group(row.edge)))

    def covers(self, model: HeldModel, row: Row, verdict: Decision) -> bool:
        """Whether a valid certificate covers an edge answer that this verdict keeps."""
        certificate = model.edge.certificate if model.edge is not None else None
        group = model.group(row.edge)
        return policy.covered(verdict, self.threshold(model, group), certificate, group)
