"""What is left of a request's deadline, and what the full model would take of it, for the choice of a variant."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from firstline_core.clock import Clock
from firstline_core.types import InferRequest, Privacy, Route
from firstline_edge.adaptation.variants import Choice, Variants
from firstline_edge.gateway import Gateway

AskingCost: TypeAlias = Callable[[float], float]
"""Millijoules, by a row's bytes."""


class Chooser:
    """Has a ladder choose for a request.

    Args:
        gateway: knows how long the full model takes.
        clock: of deadlines.
        default_timeout_s: for a request that brings no deadline.
        reserve_s: kept back of a deadline, at most a quarter of what is left, to write the answer.
        asking_mj: what a row of so many bytes takes to send, and its answer to receive, as stated; 0 where nobody does.
    """

    def __init__(
        self, gateway: Gateway, clock: Clock, default_timeout_s: float, reserve_s: float, asking_mj: AskingCost
    ) -> None:
        self._gateway = gateway
        self._clock = clock
        self._default_timeout_s = default_timeout_s
        self._reserve_s = reserve_s
        self._asking_mj = asking_mj

    def choose(self, request: InferRequest, variants: Variants) -> Choice:
        """See `Variants.choose`."""
        left_s = self._default_timeout_s
        if request.deadline_s is not None:
            left_s = request.deadline_s - self._clock.monotonic_s()
        left_s -= min(self._reserve_s, max(0.0, left_s) / 4)
        asks = request.route is not Route.EDGE and request.privacy is Privacy.ANY
        link_s = self._gateway.predicted_s(request, request.rows) if asks else None
        if link_s is None:
            return variants.choose(request, 1000 * left_s, math.inf)
        return variants.choose(
            request, 1000 * left_s, 1000 * link_s, self._asking_mj(request.size_bytes / request.rows)
        )
