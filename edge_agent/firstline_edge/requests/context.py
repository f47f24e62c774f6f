"""The context of one request between its arrival and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from firstline_core.clock import Clock
from firstline_core.routing.account import Denial
from firstline_core.types import Attempt, InferRequest, InferResponse, Reason, Tier, Wait
from firstline_edge.requests.rows import Row, respond

# Looking a member up in its enumeration takes as long as reading a clock.
_FIRST = Wait.FIRST
_NOT_HELD: Mapping[str, Any] = MappingProxyType({"threshold": None})


class RequestContext(Struct, eq=False):
    """The state of one request in the cascade.

    Args:
        request: as the caller sent it.
        deadline_s: on the monotonic clock.
        rows: the request's rows in order; empty until the model is found on this device.
        attempts: all tries so far.
        tier: the tier that was to answer last; None if the request was refused before any.
        reason: why that tier was to answer.
        cause: the failure that the edge answer replaces, in a sentence; "" if there was none.
        denials: by row position, why an escalation was not worth its price.
        shedding: why this device computes nothing at the moment; "" if it does.
        decision_record: thresholds and variant, for the decision log.
    """

    request: InferRequest
    deadline_s: float
    rows: list[Row] = []
    attempts: list[Attempt] = []
    tier: Tier | None = None
    reason: Reason | None = None
    cause: str = ""
    denials: dict[int, Denial] = {}
    shedding: str = ""
    decision_record: Mapping[str, Any] = _NOT_HELD

    def turn_to(self, tier: Tier, reason: Reason | None) -> None:
        """Notes which tier is to answer from now on, and why."""
        self.tier, self.reason = tier, reason

    def answer(self, version: str, *, durable: bool = False) -> InferResponse:
        """Returns the answer that the rows make together; each of them has been answered.

        Args:
            version: of the model that answered.
            durable: whether a correction was promised and stored.
        """
        return respond(self.request, version, self.rows, self.attempts, durable=durable)

    def log_record(self) -> Mapping[str, Any]:
        """Returns what the decision log records in addition to the answer; JSON-able."""
        waits_for_first = self.request.wait is _FIRST
        if not self.cause and not self.denials and not waits_for_first:
            return self.decision_record
        record = dict(self.decision_record)
        if self.cause:
            record["cause"] = self.cause
        if waits_for_first:
            record["wait"] = self.request.wait.value
        if self.denials:
            record["denied"] = [
                {"row": row, "value": one.value, "price": one.price, "cost": one.cost._asdict(), "short": one.short}
                for row, one in self.denials.items()
            ]
        return record


def attempt(clock: Clock, tier: Tier, outcome: str, started_s: float) -> Attempt:
    """A try that ends now."""
    # As round(..., 3) does it, in a third of its time.
    return Attempt(tier, outcome, int((clock.monotonic_s() - started_s) * 1e6 + 0.5) / 1000)
