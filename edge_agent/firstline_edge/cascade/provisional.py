"""Provisional answers: the edge answer now, and the promise of a correction by the full model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from firstline_core.clock import Clock
from firstline_core.errors import CapacityError
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferResponse, Reason, Status, Tier
from firstline_edge.cascade.runner import Runner
from firstline_edge.models.models import DeviceModel, EdgeModel
from firstline_edge.outbox.item import OutboxItem
from firstline_edge.requests.context import RequestContext, Row
from firstline_edge.requests.escalation import escalation_of

log = logger(__name__)


class Promises(Protocol):
    """Stores promised corrections; implemented by the outbox."""

    async def put(self, item: OutboxItem) -> None: ...


class ProvisionalAnswers:
    """Gives provisional answers, and knows how long that takes.

    Args:
        promises: stores promises.
        runner: runs the edge model if it has not run yet.
        clock: for deadlines.
        linked: whether there is a gateway that can send a correction.
        reserve_s: the part of a deadline that is reserved for storing the promise and writing the answer.
    """

    def __init__(self, promises: Promises, runner: Runner, clock: Clock, *, linked: bool, reserve_s: float) -> None:
        self._promises = promises
        self._runner = runner
        self._clock = clock
        self._linked = linked
        self._reserve_s = reserve_s

    def reserve(self, context: RequestContext, edge: EdgeModel, waiting: Sequence[Row]) -> tuple[float, bool]:
        """Returns the seconds of the deadline that the edge answer needs, and whether it will be in time.

        The edge answer has to be computed if it is not known yet, stored and written.
        """
        left_s = context.deadline_s - self._clock.monotonic_s()
        reserve_s = min(self._reserve_s, left_s / 4)
        unseen = sum(row.edge is None for row in waiting)
        run_s = edge.sure_ms(context.request, unseen) / 1000 if unseen else 0.0
        if math.isinf(run_s):  # never measured
            run_s = left_s / 2
        # If the edge answer would be late in any case, the full model gets that time.
        return (reserve_s + run_s, True) if reserve_s + run_s < left_s else (reserve_s, not unseen)

    async def give(
        self,
        context: RequestContext,
        model: DeviceModel,
        edge: EdgeModel,
        waiting: Sequence[Row],
        reason: Reason,
        *,
        promised: bool,
    ) -> InferResponse:
        """Returns the answer: provisional once its promise is on the disk, final if no correction can be promised.

        Args:
            context: the request.
            model: the bundle that answers.
            edge: its edge variant.
            waiting: rows that have no answer yet.
            reason: why the full model has not answered them.
            promised: whether the full model may still answer them.

        Raises:
            FirstlineError: the edge model had not run yet, and failed; see `Cascade.infer`.
        """
        unseen = [row for row in waiting if row.edge is None]
        if unseen:  # the caller asked for the cloud, so the edge model has not run
            context.turn_to(Tier.EDGE, reason)
            missing = self._runner.recall(context, edge, unseen)
            if missing:
                await self._runner.run(context, edge, missing, None)
        digest = edge.loaded.digest
        full_digest = model.manifest.full_digest
        if promised and self._linked and full_digest:
            for row in waiting:
                row.accept_edge(reason, digest, Status.PROVISIONAL)
            response = context.answer(model.version, durable=True)
            positions = tuple(row.position for row in waiting)
            escalation = escalation_of(context.request.take(positions), model.version, full_digest)
            try:
                await self._promises.put(OutboxItem(escalation, positions, response, self._clock.wall_s()))
                return response
            except CapacityError as error:  # full, or a disk that refuses: either way nothing was promised
                log.warning("no correction promised", request_id=context.request.request_id, error=error.message)
                reason = Reason.OUTBOX_FULL
        for row in waiting:
            row.accept_edge(reason, digest)
        return context.answer(model.version)
