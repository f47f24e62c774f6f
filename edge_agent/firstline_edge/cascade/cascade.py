"""One request, read top to bottom: the device's answer where it can be trusted, the full model's where not.

    policy.before -> cache -> small model -> confidence -> policy.after
       EDGE   -> answer
       CLOUD  -> cache -> link (deadline) -> answer
                 link down, late, or as good as late -> the edge answer now, the sample in the outbox, the correction
                                                        later

`policy.before` looks at the request alone and says which evidence is worth reading, so it comes before the cache.
A batch is decided row by row, and only escalated rows travel. The cache holds what models said of rows, never
decisions: the policy decides anew on every hit. `at_once.py` takes the same steps for the requests that need no
others. Nothing here knows a transport, a file format or a metric.
"""

from __future__ import annotations

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
from firstline_core.types import InferRequest, InferResponse, Reason, Tier, Wait
from firstline_edge.adaptation.chooser import Chooser, EscalationCost
from firstline_edge.audits.hooks import Audits
from firstline_edge.budgets.spending import Spending
from firstline_edge.cache.results import ResultCache
from firstline_edge.cascade.at_once import AtOnce
from firstline_edge.cascade.hedging import Hedging
from firstline_edge.cascade.judge import Judge
from firstline_edge.cascade.provisional import Promises, ProvisionalAnswers
from firstline_edge.cascade.router import Router
from firstline_edge.cascade.runner import Runner, shedding
from firstline_edge.gateway import Gateway
from firstline_edge.models.edge_model import EdgeModel
from firstline_edge.models.held import HeldModel, Models
from firstline_edge.requests.context import Case, Trail
from firstline_edge.requests.escalation import may_come, reason_for
from firstline_edge.requests.rows import Row

_NO_ROWS = ((), (0,))
# Looking a member up in its enumeration takes as long as reading a clock.
_EDGE, _FIRST = Tier.EDGE, Wait.FIRST


@dataclass(frozen=True, slots=True)
class CascadeOptions:
    """What this device asks of every request.

    Args:
        limit_bytes: the largest payload that this device takes on itself.
        default_timeout_s: for a request that brings no deadline.
        reserve_s: kept back of a deadline, to store the promise and write the edge answer in time.
    """

    limit_bytes: int
    default_timeout_s: float
    reserve_s: float


class Cascade:
    """Decides who answers, and answers.

    Args:
        models: those that this device holds.
        cache: what models said.
        gateway: asks the full model.
        hedging: asks it before the edge model has answered, where that is the only way to be in time.
        router: decides by the edge model's answer.
        spending: says what is worth its price; None where nothing has one.
        promises: keeps those of corrections.
        audits: sees what the policy judged, and what the full model then said.
        options: see there.
        clock: of deadlines.
        asking_mj: see `Chooser`.

    Attributes:
        at_once: the commonest answer, see `AtOnce.answer`; what it does not give, `infer` does.
    """

    def __init__(
        self,
        *,
        models: Models,
        cache: ResultCache,
        gateway: Gateway,
        hedging: Hedging,
        router: Router,
        spending: Spending | None,
        promises: Promises,
        audits: Audits,
        options: CascadeOptions,
        clock: Clock,
        asking_mj: EscalationCost = lambda _: 0.0,
    ) -> None:
        self._models = models
        self._cache = cache
        self._router = router
        self._gateway = gateway
        self._hedging = hedging
        self._audits = audits
        self._options = options
        self._clock = clock
        self._chooser = Chooser(gateway, clock, options.default_timeout_s, options.reserve_s, asking_mj)
        self._runner = Runner(cache, hedging, spending, clock)
        self.at_once = AtOnce(
            models=models,
            cache=cache,
            router=router,
            spending=spending,
            audits=audits,
            hedging=hedging,
            chooser=self._chooser,
            limit_bytes=options.limit_bytes,
            clock=clock,
        ).answer
        self._judge = Judge(router, cache, spending, clock)
        self._provisional = ProvisionalAnswers(
            promises, self._runner, clock, linked=gateway.linked, reserve_s=options.reserve_s
        )

    async def close(self) -> None:
        """Ends the edge model's runs for callers who left."""
        await self._runner.close()

    async def infer(self, request: InferRequest, trail: Trail | None = None) -> InferResponse:
        """Answers one request.

        Args:
            request: with a row at least.
            trail: filled in on the way.

        Raises:
            RequestError: no tier may or can answer it as it stands.
            LinkError: the gateway alone can answer, and cannot be reached now.
            CapacityError: whoever can answer cannot in time, or not now.
            RuntimeFailure: the model that had to answer failed.
        """
        trail = trail or Trail()
        if not request.inputs or [tensor for tensor in request.inputs if tensor.array.shape[:1] in _NO_ROWS]:
            raise InvalidTensorError(f"The request to model '{request.model}' has no rows; send one at least.")
        now_s = self._clock.monotonic_s()
        deadline_s = now_s + self._options.default_timeout_s if request.deadline_s is None else request.deadline_s
        model = self._model(request, trail)
        edge = model.edge if model is not None else None

        # 1. What needs no look at the edge model's answer.
        decision = policy.before(
            policy.Evidence(
                request.route,
                request.privacy,
                edge is not None,
                request.size_bytes,
                self._options.limit_bytes,
            )
        )
        if model is None:
            trail.turn_to(Tier.CLOUD, Reason.HEAVY)
            return await self._gateway.pass_on(request, deadline_s, trail.attempts)
        case = Case.of(request, model, deadline_s, trail)
        try:
            # 2. The small model, from the cache or by running it.
            if edge is not None and not trail.failed and (decision is None or decision.tier is _EDGE):
                trail.turn_to(_EDGE, decision.reason if decision is not None else None)
                try:
                    slow = self._runner.ask_quickly(case, edge, case.rows)
                    if slow:
                        await self._runner.ask_slowly(case, edge, slow)
                except (InferenceError, QueueFullError, SheddingError):
                    if decision is not None:  # bound to this device
                        raise
                except DeadlineExceededError:
                    if case.hedge is None or not case.hedge.landed:  # nobody else has answered
                        raise

            # 3. Keep the answer or escalate it, row by row. What the full model said before is as good as new.
            escalated = self._judge.escalated(case, decision)
            self._audits.judged(request, model, case.rows)
            self._hedging.settle(request, case.hedge, escalated, trail.attempts)
            return await self._escalate(case, edge, escalated) if escalated else case.answer()
        finally:
            self._hedging.call_off(case.hedge)

    def _model(self, request: InferRequest, trail: Trail) -> HeldModel | None:
        """The bundle, with the variant that the request keeps to."""
        if trail.choice is None:
            model = self._models.find(request.model, request.version)
            if model is None or model.variants is None:
                return model
            trail.choice = self._chooser.choose(request, model.variants)
        return trail.choice.model

    async def _escalate(self, case: Case, edge: EdgeModel | None, escalated: list[Row]) -> InferResponse:
        """The last two steps, for the rows that the full model is to answer."""
        request, model, deadline_s, trail = case.request, case.model, case.deadline_s, case.trail

        # 4. The full model. Without an edge answer to fall back on, its failure is the answer.
        trail.turn_to(Tier.CLOUD, escalated[0].reason)
        if edge is None or any(row.reason is Reason.HEAVY for row in escalated):
            try:
                await self._gateway.answer_rows(request, model, escalated, deadline_s, trail.attempts)
            except (LinkError, CapacityError) as error:
                if trail.choice is None or not trail.choice.sheds:
                    raise
                raise shedding(trail.choice.sheds, error) from error
            return case.answer()
        if request.wait is _FIRST:
            return await self._provisional.give(case, edge, escalated, Reason.REQUESTED, promised=True)
        reserve_s, has_answer = self._provisional.reserve(case, edge, escalated)
        asked_until_s = deadline_s - reserve_s
        try:
            self._gateway.check_time(request, model, escalated if has_answer else (), asked_until_s)
            await self._gateway.answer_rows(request, model, escalated, asked_until_s, trail.attempts)
            self._audits.escalated(model, escalated)
            return case.answer()
        except FirstlineError as error:
            reason, promised = reason_for(error), may_come(error)
            trail.cause = error.message

        # 5. The edge answer now; the correction later, where one may come.
        return await self._provisional.give(case, edge, escalated, reason, promised=promised)
