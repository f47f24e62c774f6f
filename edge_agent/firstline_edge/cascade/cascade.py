"""One request, from top to bottom: the edge answer if it can be trusted, the full model's answer otherwise.

    policy.before -> cache -> edge model -> confidence -> router
       EDGE   -> answer
       CLOUD  -> cache -> gateway (until the deadline) -> answer
                 no link, late, or expected to be late -> the edge answer now, the sample in the outbox, the correction
                                                          later

`policy.before` looks at the request alone, so it comes before the cache. A batch is decided row by row, and only
escalated rows travel. The cache stores model outputs, never decisions: the policy decides each hit. The cascade knows
no transport, no file format and no metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firstline_core.clock import Clock
from firstline_core.errors import (
    CapacityError,
    DeadlineExceededError,
    FirstlineError,
    InferenceError,
    InvalidTensorError,
    LinkError,
    QueueFullError,
    SheddingError,
)
from firstline_core.routing import policy
from firstline_core.routing.policy import Decision
from firstline_core.types import InferResponse, Reason, Tier, Wait
from firstline_edge.adaptation.variants import Chooser, EscalationCost
from firstline_edge.audits.hooks import Audits
from firstline_edge.budgets.spending import Spending
from firstline_edge.cache.results import ResultCache
from firstline_edge.cascade.hedging import Hedge, Hedging
from firstline_edge.cascade.provisional import Promises, ProvisionalAnswers
from firstline_edge.cascade.router import Router
from firstline_edge.cascade.runner import Runner, shedding_error
from firstline_edge.cloud.client import CloudClient
from firstline_edge.models.models import DeviceModel, EdgeModel, Models
from firstline_edge.requests.context import RequestContext, Row, attempt, content_digests, result_key
from firstline_edge.requests.escalation import may_come, reason_for

_NO_ROWS = ((), (0,))
# Looking a member up in its enumeration takes as long as reading a clock.
_EDGE, _CACHE, _CLOUD, _FIRST = Tier.EDGE, Tier.CACHE, Tier.CLOUD, Wait.FIRST


@dataclass(frozen=True, slots=True)
class CascadeOptions:
    """The limits that hold for each request.

    Args:
        limit_bytes: the largest payload that this device computes itself.
        reserve_s: the part of a deadline that is reserved for storing the promise and writing the edge answer.
    """

    limit_bytes: int
    reserve_s: float


class Cascade:
    """Decides which tier answers a request, and returns the answer.

    Args:
        models: the models on this device.
        cache: model outputs.
        client: asks the full model.
        hedging: asks the full model before the edge model has answered, if that is the only way to be in time.
        router: decides by the edge model's output.
        spending: decides which escalations are worth their price; None if nothing has a price.
        promises: stores the promises of corrections.
        audits: draws answers for audits.
        options: the limits of each request.
        clock: for deadlines.
        escalation_mj: see `Chooser`.
    """

    def __init__(
        self,
        *,
        models: Models,
        cache: ResultCache,
        client: CloudClient,
        hedging: Hedging,
        router: Router,
        spending: Spending | None,
        promises: Promises,
        audits: Audits,
        options: CascadeOptions,
        clock: Clock,
        escalation_mj: EscalationCost = lambda _: 0.0,
    ) -> None:
        self._models = models
        self._cache = cache
        self._router = router
        self._spending = spending
        self._client = client
        self._hedging = hedging
        self._audits = audits
        self._limit_bytes = options.limit_bytes
        self._clock = clock
        self._chooser = Chooser(client, clock, options.reserve_s, escalation_mj)
        self._runner = Runner(cache, spending, clock)
        self._provisional = ProvisionalAnswers(
            promises, self._runner, clock, linked=client.linked, reserve_s=options.reserve_s
        )

    async def close(self) -> None:
        """Cancels the edge model's runs whose callers have left."""
        await self._runner.close()

    async def infer(self, context: RequestContext) -> InferResponse:
        """Answers one request.

        Args:
            context: of a request that has just begun; filled in on the way.

        Raises:
            RequestError: no tier may answer the request, or none can as it stands.
            LinkError: only the gateway can answer, and no link works.
            CapacityError: the tiers that can answer cannot do so in time, or not now.
            RuntimeFailure: the model that had to answer failed.
        """
        request = context.request
        if not request.inputs or [tensor for tensor in request.inputs if tensor.array.shape[:1] in _NO_ROWS]:
            raise InvalidTensorError(f"The request to model '{request.model}' has no rows; send one at least.")
        model = self._models.find(request.model, request.version)
        if model is None:
            # Refuses a request that is bound to this device, before anything leaves it.
            policy.before(
                policy.RequestEvidence(request.route, request.privacy, False, request.size_bytes, self._limit_bytes)
            )
            context.turn_to(_CLOUD, Reason.HEAVY)
            return await self._client.pass_on(request, context.deadline_s, context.attempts)
        model = self._variant_of(context, model)
        edge = model.edge

        # 1. What the request alone decides.
        size_bytes, limit_bytes = request.size_bytes, self._limit_bytes
        decision = policy.before(
            policy.RequestEvidence(request.route, request.privacy, edge is not None, size_bytes, limit_bytes)
        )
        asks_edge = edge is not None and (decision is None or decision.tier is _EDGE)
        if asks_edge:
            context.turn_to(_EDGE, None if decision is None else decision.reason)
        context.rows = [
            Row(position, content) for position, content in enumerate(content_digests(model.tensor(request)))
        ]

        hedge: Hedge | None = None
        try:
            # 2. The edge model's output, from the cache or by running the model.
            if edge is not None and asks_edge:
                missing = self._runner.recall(context, edge, context.rows)
                if missing:
                    hedge = self._start_hedge(context, model, edge, missing)
                    await self._run(context, edge, missing, hedge, bound=decision is not None)

            # 3. Row by row, the edge answer or an escalation. An output of the full model may be in the cache.
            escalated = [row for row in context.rows if not self._answered(context, model, row, decision, hedge)]
            self._audits.observe_decisions(request, model, context.rows)
            self._hedging.settle(request, hedge, escalated, context.attempts)
            context.decision_record = {**self._router.record_of(model), **context.decision_record}

            # 4. The full model for the escalated rows.
            return await self._escalate(context, model, escalated) if escalated else context.answer(model.version)
        finally:
            self._hedging.call_off(hedge)

    def _variant_of(self, context: RequestContext, model: DeviceModel) -> DeviceModel:
        """Returns the model with the variant that answers this request."""
        context.decision_record = {}
        if model.variants is None:
            return model
        choice = self._chooser.choose(context.request, context.deadline_s, model.variants)
        context.decision_record, context.shedding = choice.facts, choice.sheds
        return choice.model

    def _start_hedge(
        self, context: RequestContext, model: DeviceModel, edge: EdgeModel, missing: Sequence[Row]
    ) -> Hedge | None:
        """Asks the full model early if the edge run may take too long and the budgets are ample."""
        if context.shedding or edge.quick(context.request):
            return None
        if self._spending is not None and not self._spending.ample:
            return None
        return self._hedging.start(context.request, model, edge, missing, context.deadline_s)

    async def _run(
        self, context: RequestContext, edge: EdgeModel, missing: Sequence[Row], hedge: Hedge | None, *, bound: bool
    ) -> None:
        """Runs the edge model; its failure is an error only if no other tier may answer.

        Args:
            context: the request.
            edge: the variant to run.
            missing: rows that the cache does not know.
            hedge: the early call to the full model, if there is one.
            bound: whether the request is bound to this device.
        """
        try:
            await self._runner.run(context, edge, missing, hedge)
        except (InferenceError, QueueFullError, SheddingError):
            if bound:
                raise
        except DeadlineExceededError:
            if hedge is None or not hedge.landed:
                raise

    def _answered(
        self, context: RequestContext, model: DeviceModel, row: Row, decision: Decision | None, hedge: Hedge | None
    ) -> bool:
        """Decides one row, and answers it unless the full model has to be asked.

        Args:
            context: the request.
            model: with the variant that ran.
            row: gains its reason, and its answer.
            decision: the policy's decision without the edge output; None to decide by the score.
            hedge: the early call to the full model, if there is one.
        """
        edge = model.edge
        verdict = decision or self._router.verdict(model, row)
        row.reason = verdict.reason
        if verdict.tier is _EDGE and edge is not None:
            row.accept_edge(verdict.reason, edge.loaded.digest, certified=self._router.covers(model, row, verdict))
            return True
        if self._recall_full(context, model, row, hedge):
            return True
        if decision is not None or edge is None:
            return False
        if self._denied(context, row, verdict):
            instead = self._router.instead(model, row, verdict)
            certified = self._router.covers(model, row, instead)
            unreachable = instead.reason is Reason.BUDGET and self._spending is not None and not self._spending.linked
            row.accept_edge(
                Reason.LINK_DOWN if unreachable else instead.reason, edge.loaded.digest, certified=certified
            )
            return True
        if not self._router.grants(model, row, verdict):
            row.accept_edge(Reason.BUDGET, edge.loaded.digest)
            return True
        return False

    def _recall_full(self, context: RequestContext, model: DeviceModel, row: Row, hedge: Hedge | None) -> bool:
        """Answers the row with an output of the same full model, if one is known."""
        digest, attempts = model.manifest.full_digest, context.attempts
        if hedge is not None and hedge.take(row, attempts):
            return True
        started_s = self._clock.monotonic_s()
        output = self._cache.get(result_key(digest, row.content)) if digest else None
        if output is None:
            return False
        row.accept_full(output, _CACHE, row.reason, digest)
        if hedge is not None:
            hedge.recalled(row)
        if not any(tried.tier is _CACHE for tried in attempts):
            attempts.append(attempt(self._clock, _CACHE, "ok", started_s))
        return True

    def _denied(self, context: RequestContext, row: Row, verdict: Decision) -> bool:
        """Returns whether an escalation of the row is not worth its price, and notes why."""
        if self._spending is None or row.edge is None:
            return False
        size_bytes = context.request.size_bytes / context.request.rows
        denial = self._spending.denial(size_bytes, row.value, demanded=verdict.demanded)
        if denial is not None:
            context.denials[row.position] = denial
        return denial is not None

    async def _escalate(self, context: RequestContext, model: DeviceModel, escalated: list[Row]) -> InferResponse:
        """Asks the full model about the escalated rows; falls back on the edge answer where there can be one."""
        request, deadline_s, edge = context.request, context.deadline_s, model.edge
        context.turn_to(_CLOUD, escalated[0].reason)

        # Without an edge answer to fall back on, a failure of the full model is the answer.
        if edge is None or any(row.reason is Reason.HEAVY for row in escalated):
            try:
                await self._client.answer_rows(request, model, escalated, deadline_s, context.attempts)
            except (LinkError, CapacityError) as error:
                if not context.shedding:
                    raise
                raise shedding_error(context.shedding, error) from error
            return context.answer(model.version)

        if request.wait is _FIRST:
            return await self._provisional.give(context, model, edge, escalated, Reason.REQUESTED, promised=True)
        reserve_s, has_answer = self._provisional.reserve(context, edge, escalated)
        asked_until_s = deadline_s - reserve_s
        try:
            self._client.check_time(request, model, escalated if has_answer else (), asked_until_s)
            await self._client.answer_rows(request, model, escalated, asked_until_s, context.attempts)
            self._audits.observe_escalations(model, escalated)
            return context.answer(model.version)
        except FirstlineError as error:
            reason, promised = reason_for(error), may_come(error)
            context.cause = error.message

        # 5. The edge answer now; the correction later, if one may come.
        return await self._provisional.give(context, model, edge, escalated, reason, promised=promised)
