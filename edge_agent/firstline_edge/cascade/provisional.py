"""The edge answer for now, with the promise of the full model's: where that is late, or the caller will not wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from firstline_core.clock import Clock
from firstline_core.errors import CapacityError
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferResponse, Reason, Status, Tier
from firstline_edge.cascade.runner import Runner
from firstline_edge.models.edge_model import EdgeModel
from firstline_edge.outbox.item import OutboxItem
from firstline_edge.requests.context import Case
from firstline_edge.requests.escalation import escalation_of
from firstline_edge.requests.rows import Row

log = logger(__name__)


class Promises(Protocol):
    """Where promised corrections are kept; `outbox/store.py` is it."""

    async def put(self, item: OutboxItem) -> None: ...


class ProvisionalAnswers:
    """Gives them, and knows how long that takes.

    Args:
        promises: keeps what is promised.
        runner: asks the edge model, where it has not run.
        linked: whether there is a gateway to send a correction.
        reserve_s: kept back of a deadline, to store the promise and write the answer in time.
    """

    def __init__(self, promises: Promises, runner: Runner, clock: Clock, *, linked: bool, reserve_s: float) -> None:
        self._promises = promises
        self._runner = runner
        self._clock = clock
        self._linked = linked
        self._reserve_s = reserve_s

    def reserve(self, case: Case, edge: EdgeModel, waiting: Sequence[Row]) -> tuple[float, bool]:
        """Seconds of the deadline that the edge answer needs, and whether there will be one in time.

        It is to be stored and written, and computed if it was not yet.
        """
        left_s = case.deadline_s - self._clock.monotonic_s()
        reserve_s = min(self._reserve_s, left_s / 4)
        unseen = sum(row.edge is None for row in waiting)
        run_s = edge.sure_ms(case.request, unseen) / 1000 if unseen else 0.0
        if math.isinf(run_s):  # never measured
            run_s = left_s / 2
        # Where it would not be ready in time anyhow, the full model gets that time.
        return (reserve_s + run_s, True) if reserve_s + run_s < left_s else (reserve_s, not unseen)

    async def give(
        self, case: Case, edge: EdgeModel, waiting: Sequence[Row], reason: Reason, *, promised: bool
    ) -> InferResponse:
        """The answer: provisional once its promise is fsynced, final where none can be made.

        Args:
            case: the request.
            edge: its model's.
            waiting: rows that have no answer yet.
            reason: why the full model has not given one.
            promised: whether it may still.

        Raises:
            FirstlineError: the edge model had not run yet, and failed; see `Cascade.infer`.
        """
        unseen = [row for row in waiting if row.edge is None]
        if unseen:  # the caller asked for the cloud, so the edge model has not run
            case.trail.turn_to(Tier.EDGE, reason)
            await self._runner.ask(case, edge, unseen)
        digest = edge.loaded.digest
        full_digest = case.model.manifest.full_digest
        if promised and self._linked and full_digest:
            for row in waiting:
                row.keep(reason, digest, Status.PROVISIONAL)
            response = case.answer(durable=True)
            positions = tuple(row.position for row in waiting)
            escalation = escalation_of(case.request.take(positions), case.model.version, full_digest)
            try:
                await self._promises.put(OutboxItem(escalation, positions, response, self._clock.wall_s()))
                return response
            except CapacityError as error:  # full, or a disk that refuses: either way nothing was promised
                log.warning("no correction promised", request_id=case.request.request_id, error=error.message)
                reason = Reason.OUTBOX_FULL
        for row in waiting:
            row.keep(reason, digest)
        return case.answer()
