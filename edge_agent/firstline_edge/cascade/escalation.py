"""Escalates rows: asks the full model, and falls back on a provisional edge answer if there can be one."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from firstline_core.clock import Clock
from firstline_core.errors import CapacityError, FirstlineError, InvalidTensorError, LinkError, SheddingError
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferResponse, Reason, Status, Tier, Wait
from firstline_edge.audits.auditor import Auditor
from firstline_edge.cloud.client import CloudClient
from firstline_edge.models.models import DeviceModel, EdgeModel
from firstline_edge.outbox.item import OutboxItem
from firstline_edge.outbox.outbox import Outbox
from firstline_edge.requests.context import RequestContext, Row
from firstline_edge.requests.full_answers import escalation_of, reason_for

log = logger(__name__)

_RETRY_AFTER_SHEDDING_S = 30.0

RunEdge = Callable[[RequestContext, EdgeModel, Sequence[Row]], Awaitable[None]]
"""Fills in the edge model's outputs of rows that it has not seen."""


@dataclass(eq=False)
class Escalation:
    """Answers the rows that the edge model does not answer.

    Args:
        client: asks the full model.
        promises: stores promises.
        audits: observes the full model's answers.
        run_edge: runs the edge model if it has not run yet.
        clock: for deadlines.
        reserve_s: the part of a deadline that is reserved for storing the promise and writing the answer.
    """

    client: CloudClient
    promises: Outbox
    audits: Auditor
    run_edge: RunEdge
    clock: Clock
    _: KW_ONLY
    reserve_s: float

    async def ask(self, context: RequestContext, model: DeviceModel, escalated: Sequence[Row]) -> InferResponse:
        """Asks the full model about the escalated rows; falls back on the edge answer if there can be one.

        Raises:
            FirstlineError: see `Cascade.infer`.
        """
        request, deadline_s, edge = context.request, context.deadline_s, model.edge
        context.turn_to(Tier.CLOUD, escalated[0].policy_reason)

        # Without an edge answer to fall back on, a failure of the full model is the answer.
        if edge is None or any(row.policy_reason is Reason.HEAVY for row in escalated):
            try:
                await self.client.answer_rows(request, model, escalated, deadline_s, context.attempts)
            except (LinkError, CapacityError) as error:
                if not context.shedding:
                    raise
                raise shedding_error(context.shedding, error) from error
            return context.answer(model.version)

        if request.wait is Wait.FIRST:
            answered = await self._answer_now(context, model, edge, escalated, Reason.REQUESTED, promised=True)
            if not any(row.answer is not None and row.answer.reason is Reason.OUTBOX_FULL for row in escalated):
                return answered
            context.turn_to(Tier.CLOUD, escalated[0].policy_reason)  # no correction would follow
        reserve_s, has_answer = self._reserve(context, edge, escalated)
        asked_until_s = deadline_s - reserve_s
        try:
            self.client.check_time(request, model, escalated if has_answer else (), asked_until_s)
            await self.client.answer_rows(request, model, escalated, asked_until_s, context.attempts)
            self.audits.observe_escalations(model, escalated)
            return context.answer(model.version)
        except FirstlineError as error:
            if isinstance(error, InvalidTensorError) and not _certifiable(edge, escalated):
                raise  # the caller's fault, which an answer that the device does not trust would hide
            reason, promised = reason_for(error), self.client.can_be_promised(model, error)
            context.cause = error.message

        # The edge answer now; the correction later, if one may come.
        return await self._answer_now(context, model, edge, escalated, reason, promised=promised)

    def _reserve(self, context: RequestContext, edge: EdgeModel, waiting: Sequence[Row]) -> tuple[float, bool]:
        """Returns the seconds of the deadline that the edge answer needs, and whether it will be in time.

        The edge answer has to be stored and written, and computed before if the edge model has not run.
        """
        left_s = context.deadline_s - self.clock.monotonic_s()
        reserve_s = min(self.reserve_s, left_s / 4)
        unseen = sum(row.edge is None for row in waiting)
        run_s = edge.sure_ms(context.request, unseen) / 1000 if unseen else 0.0
        if math.isinf(run_s):  # never measured
            run_s = left_s / 2
        # If the edge answer would be late anyway, the full model gets that time.
        return (reserve_s + run_s, True) if reserve_s + run_s < left_s else (reserve_s, not unseen)

    async def _answer_now(
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
            await self.run_edge(context, edge, unseen)
        digest = edge.loaded.digest
        full_digest = model.manifest.full_digest
        if promised and self.client.linked and full_digest:
            for row in waiting:
                row.accept_edge(reason, digest, Status.PROVISIONAL)
            response = context.answer(model.version, durable=True)
            positions = tuple(row.position for row in waiting)
            escalation = escalation_of(context.request.take(positions), model.version, full_digest, model.full_inputs)
            try:
                await self.promises.put(OutboxItem(escalation, positions, response, self.clock.wall_s()))
                return response
            except CapacityError as error:  # full, or a disk that refuses: either way nothing was promised
                log.warning("no correction promised", request_id=context.request.request_id, error=error.message)
                reason = Reason.OUTBOX_FULL
        for row in waiting:
            row.accept_edge(reason, digest)
        return context.answer(model.version)


def _certifiable(edge: EdgeModel, rows: Sequence[Row]) -> bool:
    """Returns whether a certificate covers the edge answers: all rows were escalated for their value alone."""
    return edge.certificate is not None and all(row.policy_reason is Reason.VALUABLE for row in rows)


def shedding_error(why: str, error: FirstlineError | None = None) -> SheddingError:
    """Returns the error for a request that nothing may compute now.

    Args:
        why: the reason, as part of a sentence.
        error: why the gateway does not answer either; None if the request is bound to this device.
    """
    instead = "and the request is bound to it" if error is None else f"and the gateway does not answer: {error.message}"
    return SheddingError(
        f"This device computes nothing at the moment ({why}), {instead.removesuffix('.')}; try again.",
        retry_after_s=_RETRY_AFTER_SHEDDING_S,
    )
