"""Asks the full model while the edge model still runs, if one after the other would be too late.

A hedge starts a second attempt before the first one has failed (Dean and Barroso, "The Tail at Scale", CACM 2013). It
is an escalation: if the rows are escalated later, they join it; otherwise it is cancelled. So no row is sent twice, and
an accepted edge answer was not escalated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from firstline_core.clock import Clock, end_tasks
from firstline_core.routing.token_bucket import TokenBucket
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import HEDGED, Attempt, InferRequest, Privacy, Route, Tier, Wait
from firstline_edge.budgets.spending import Spending
from firstline_edge.cloud.client import CloudClient
from firstline_edge.models.models import DeviceModel, EdgeModel
from firstline_edge.requests.context import ModelOutput, Row, attempt
from firstline_edge.settings.settings import HedgeSection


@dataclass(slots=True, eq=False)
class Hedge:
    """One call that was made early.

    Args:
        positions: of the rows that were sent, by their content.
        started_s: when it was sent.
        until_s: the latest time of an answer that can still be written in time.
        call: the full model's output for each row.
        attempts: the tries of this call.
        joined: whether it answered a row of the request.
        concluded: whether it is known if the call was needed.
    """

    positions: dict[bytes, int]
    started_s: float
    until_s: float
    call: asyncio.Task[list[tuple[ModelOutput, str]]]
    attempts: list[Attempt] = field(default_factory=list)
    joined: bool = False
    concluded: bool = False

    @property
    def answered(self) -> bool:
        """Whether the full model has answered."""
        return self.call.done() and not self.call.cancelled() and self.call.exception() is None

    def take(self, row: Row, attempts: list[Attempt]) -> bool:
        """Answers the row, if the full model has answered already.

        Args:
            row: that is to be escalated.
            attempts: of the request; gains this call's.
        """
        position = self.positions.get(row.content)
        if position is None or not self.answered:
            return False
        output, ran = self.call.result()[position]
        row.accept_full(output, Tier.CLOUD, row.policy_reason, ran)
        if not self.joined:
            attempts += self.attempts
        self.joined = True
        return True

    def note_cached(self, row: Row) -> None:
        """Notes that the cache answered the row with an output of this call."""
        self.joined = self.joined or row.content in self.positions


@dataclass(eq=False)
class Hedging:
    """Decides about hedges, starts them, and cancels those that are not needed.

    Args:
        client: asks the full model.
        clock: for deadlines.
        section: when to hedge.
        reserve_s: reserved of a deadline, as for any escalation.
        spending: a hedge is sent only while the budgets are ample.

    Attributes:
        used: hedges whose call was needed.
        unneeded: hedges whose call was not needed.
    """

    client: CloudClient
    clock: Clock
    section: HedgeSection
    reserve_s: float
    spending: Spending
    used: int = field(default=0, init=False)
    unneeded: int = field(default=0, init=False)
    _calls: set[asyncio.Task[list[tuple[ModelOutput, str]]]] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._bucket = TokenBucket(self.section.burst)

    async def close(self) -> None:
        """Cancels the calls in progress."""
        await end_tasks(*self._calls)

    def start(
        self, request: InferRequest, model: DeviceModel, edge: EdgeModel, rows: Sequence[Row], deadline_s: float
    ) -> Hedge | None:
        """Asks early if that is allowed, likely to be needed, and the only way to be in time.

        Args:
            request: of which these are rows.
            model: the bundle that the gateway must run.
            edge: the variant that is about to run.
            rows: for which the edge model will run.
            deadline_s: of the request, on the monotonic clock.
        """
        free = request.route is Route.AUTO and request.privacy is Privacy.ANY and request.wait is Wait.FINAL
        if not self.section.enabled or not free or not self.spending.ample:
            return None
        self._bucket.earn(self.section.share)
        now_s = self.clock.monotonic_s()
        left_s = deadline_s - now_s
        until_s = deadline_s - min(self.reserve_s, left_s / 4)
        spare_s = until_s - now_s
        edge_s = edge.workers.wait_s + edge.sure_ms(request, len(rows)) / 1000  # infinite if never measured
        cloud_s, rate = self.client.predicted_s(request, len(rows)), edge.escalation_rate.value
        likely = rate is not None and rate >= self.section.min_escalation_rate
        only_now = cloud_s is not None and cloud_s <= spare_s < edge_s + cloud_s
        if not likely or not only_now or not self._bucket.take(now_s):
            return None
        attempts: list[Attempt] = []
        # The call may take until the deadline: an escalation that joins it may have more time than a hedge.
        asking = self.client.ask(request, model, rows, deadline_s, attempts, keep=False)
        call = asyncio.get_running_loop().create_task(asking)
        self._calls.add(call)
        call.add_done_callback(self._ended)
        positions = {row.content: position for position, row in enumerate(rows)}
        return Hedge(positions, now_s, until_s, call, attempts)

    def conclude(self, hedge: Hedge, escalated: Sequence[Row], attempts: list[Attempt]) -> None:
        """Cancels a hedge that is not needed.

        Args:
            hedge: of a request whose rows are decided.
            escalated: rows that the full model has to answer.
            attempts: of the request; gains a hedge that was not needed.
        """
        if hedge.joined or any(row.content in hedge.positions for row in escalated):
            hedge.concluded = True
            self.used += 1
        else:
            self.cancel(hedge)
            attempts.append(attempt(self.clock, Tier.CLOUD, HEDGED, hedge.started_s))

    def cancel(self, hedge: Hedge) -> None:
        """Cancels the hedge of a request that is over, unless it was needed."""
        if not hedge.concluded:
            hedge.concluded = True
            self.unneeded += 1
            hedge.call.cancel()

    def _ended(self, call: asyncio.Task[list[tuple[ModelOutput, str]]]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # retrieved, so that asyncio does not log it: requests that joined have raised it


def register_metrics(metrics: RequestMetrics, hedging: Hedging) -> None:
    """Registers the number of hedges by outcome."""
    metrics.readings(
        "hedges_total",
        "Calls to the full model that were made before the edge model had answered.",
        ("outcome",),
        lambda: {("used",): hedging.used, ("unneeded",): hedging.unneeded},
    )
