"""Computes the time left of a request's deadline, and of the full model, for the choice of a variant."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from firstline_core.clock import Clock
from firstline_core.types import InferRequest, Privacy, Route
from firstline_edge.cloud.client import CloudClient
from firstline_edge.models.models import VariantChoice, VariantSet

EscalationCost: TypeAlias = Callable[[float], float]
"""Millijoules to escalate a row, by the row's bytes."""


class Chooser:
    """Chooses the variant for a request.

    Args:
        client: predicts the time of the full model.
        clock: of deadlines.
        reserve_s: reserved of a deadline for writing the answer, at most a quarter of what is left.
        escalation_mj: stated energy to send a row and receive its answer; 0 if it is not stated.
    """

    def __init__(self, client: CloudClient, clock: Clock, reserve_s: float, escalation_mj: EscalationCost) -> None:
        self._client = client
        self._clock = clock
        self._reserve_s = reserve_s
        self._escalation_mj = escalation_mj

    def choose(self, request: InferRequest, deadline_s: float, variants: VariantSet) -> VariantChoice:
        """Returns the variant that answers the request, see `Variants.choose`."""
        left_s = deadline_s - self._clock.monotonic_s()
        left_s -= min(self._reserve_s, max(0.0, left_s) / 4)
        may_escalate = request.route is not Route.EDGE and request.privacy is Privacy.ANY
        link_s = self._client.predicted_s(request, request.rows) if may_escalate else None
        if link_s is None:
            return variants.choose(request, 1000 * left_s, math.inf)
        escalation_mj = self._escalation_mj(request.size_bytes / request.rows)
        return variants.choose(request, 1000 * left_s, 1000 * link_s, escalation_mj)
