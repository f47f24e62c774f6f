"""Chooses the variant of a bundle that answers a request, by the time and the energy of asking the full model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from firstline_core.clock import Clock
from firstline_core.types import InferRequest, Privacy, Route
from firstline_edge.cloud.client import CloudClient
from firstline_edge.models.models import BundleVariants, VariantChoice


@dataclass(eq=False)
class VariantChooser:
    """Chooses the variant for a request.

    Args:
        client: predicts the time of the full model.
        clock: of deadlines.
        reserve_s: reserved of a deadline for writing the answer, at most a quarter of what is left.
        escalation_mj: returns the stated energy to send a row and receive its answer, by its bytes; 0 if it is not
            stated.
    """

    client: CloudClient
    clock: Clock
    reserve_s: float
    escalation_mj: Callable[[float], float]

    def choose(self, request: InferRequest, deadline_s: float, variants: BundleVariants) -> VariantChoice:
        """Returns the variant that answers the request, see `BundleVariants.choose`."""
        left_s = deadline_s - self.clock.monotonic_s()
        left_s -= min(self.reserve_s, max(0.0, left_s) / 4)
        may_escalate = request.route is not Route.EDGE and request.privacy is Privacy.ANY
        link_s = self.client.predicted_s(request, request.rows) if may_escalate else None
        if link_s is None:
            return variants.choose(request, 1000 * left_s, math.inf)
        escalation_mj = self.escalation_mj(request.size_bytes / request.rows)
        return variants.choose(request, 1000 * left_s, 1000 * link_s, escalation_mj)
