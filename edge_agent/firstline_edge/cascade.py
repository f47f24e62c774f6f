"""One request, read top to bottom: the device's answer where it can be trusted, the full model's where not.

    policy.before -> cache -> small model -> confidence -> policy.after
       EDGE   -> answer
       CLOUD  -> cache -> link (deadline) -> answer
                 link down, late, or as good as late -> the edge answer now, the sample in the outbox, the correction
                                                        later

`policy.before` looks at the request alone and says which evidence is worth reading, so it comes before the cache.
A batch is decided row by row, and only escalated rows travel. The cache holds what models said of rows, never
decisions: the policy decides anew on every hit. Nothing here knows a transport, a file format or a metric.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from firstline_core.clock import Clock
from firstline_core.errors import CapacityError, FirstlineError, InferenceError, InvalidTensorError, QueueFullError
from firstline_core.routing import policy
from firstline_core.routing.policy import Decision
from firstline_core.telemetry.logs import logger
from firstline_core.types import Attempt, InferRequest, InferResponse, Privacy, Reason, Status, Tensor, Tier, Wait
from firstline_edge import keys
from firstline_edge.audits.hooks import Audits, NoAudits
from firstline_edge.audits.traffic import LiveTraffic
from firstline_edge.cache import ModelOutput, ResultCache
from firstline_edge.complaints import Complaints
from firstline_edge.deadline import within
from firstline_edge.escalation import escalation_of, may_come, reason_for
from firstline_edge.gateway import Gateway, Heed, attempt, ignore_notice
from firstline_edge.hedge import Hedge, HedgeOptions, Hedging
from firstline_edge.links.base import Cloud
from firstline_edge.models import EdgeModel, HeldModel, Models
from firstline_edge.outbox.item import OutboxItem
from firstline_edge.punctuality import Punctuality
from firstline_edge.router import Router
from firstline_edge.rows import Row, respond
from firstline_edge.single_flight import SingleFlight
from firstline_edge.spending import Denial, Spending

log = logger(__name__)


class Promises(Protocol):
    """Where promised corrections are kept; `outbox/store.py` is it."""

    async def put(self, item: OutboxItem) -> None: ...


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


@dataclass(slots=True, eq=False)
class Trail:
    """How far a request came, for whoever must tell why it was refused.

    Args:
        attempts: every try so far.
        tier, reason: who was to answer last, and why; None where it was refused before that.
        cause: the failure for which this device's answer stands in, in a sentence; "" where there was none.
        denials: by row, why it was not worth its price.
    """

    attempts: list[Attempt] = field(default_factory=list)
    tier: Tier | None = None
    reason: Reason | None = None
    cause: str = ""
    denials: dict[int, Denial] = field(default_factory=dict)

    def turn_to(self, tier: Tier, reason: Reason | None) -> None:
        self.tier, self.reason = tier, reason


@dataclass(slots=True, eq=False)
class _Case:
    """One request on its way through the cascade.

    Args:
        model: the bundle that this device holds.
        tensor: its input.
        rows: all of them, in order.
        deadline_s: on the monotonic clock.
        hedge: the call to the gateway that was made before the edge model answered, if one was.
    """

    request: InferRequest
    model: HeldModel
    tensor: Tensor
    rows: list[Row]
    deadline_s: float
    trail: Trail
    hedge: Hedge | None = None

    def answer(self, *, durable: bool = False) -> InferResponse:
        return respond(self.request, self.model.version, self.rows, self.trail.attempts, durable=durable)


class Cascade:
    """Decides who answers, and answers.

    Args:
        cloud: None on a device without links: what the edge model says is then all there is.
        router: decides by the edge model's answer.
        complaints: gains what the gateway says against a model; None to keep that here.
        spending: says what is worth its price; None where nothing has one.
        hedge: when to ask the full model before the edge model has answered; None for never.
        audits: sees what the policy judged, and what the full model then said; None to audit nothing.
        heed: takes up what the gateway says of a model's contract.
        traffic: counts live escalations.
    """

    def __init__(
        self,
        *,
        models: Models,
        cache: ResultCache,
        cloud: Cloud | None,
        promises: Promises,
        router: Router,
        options: CascadeOptions,
        clock: Clock,
        complaints: Complaints | None = None,
        spending: Spending | None = None,
        hedge: HedgeOptions | None = None,
        audits: Audits | None = None,
        heed: Heed = ignore_notice,
        traffic: LiveTraffic | None = None,
    ) -> None:
        self._models = models
        self._cache = cache
        self._gateway = Gateway(
            cloud,
            cache,
            clock,
            complaints if complaints is not None else Complaints(),
            heed=heed,
            traffic=traffic if traffic is not None else LiveTraffic(),
        )
        self._hedging = Hedging(self._gateway, clock, hedge)
        self._audits = audits if audits is not None else NoAudits()
        self._promises = promises
        self._router = router
        self._options = options
        self._clock = clock
        self._spending = spending
        self._flights: SingleFlight[ModelOutput] = SingleFlight()

    @property
    def hedging(self) -> Hedging:
        """How often the full model was asked early."""
        return self._hedging

    @property
    def punctuality(self) -> Punctuality:
        """How often the full model was not asked for want of time."""
        return self._gateway.punctuality

    async def close(self) -> None:
        """Ends the computations that still run for callers who left."""
        await self._hedging.close()
        await self._flights.close()
        await self._gateway.close()

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
        if not request.inputs or any(tensor.shape[:1] in ((), (0,)) for tensor in request.inputs):
            raise InvalidTensorError(f"The request to model '{request.model}' has no rows; send one at least.")
        now_s = self._clock.monotonic_s()
        deadline_s = now_s + self._options.default_timeout_s if request.deadline_s is None else request.deadline_s
        model = self._models.find(request.model, request.version)
        edge = model.edge if model is not None else None

        # 1. What needs no look at the edge model's answer.
        decision = policy.before(
            policy.Evidence(
                route=request.route,
                privacy=request.privacy,
                holds_model=edge is not None,
                size_bytes=request.size_bytes,
                limit_bytes=self._options.limit_bytes,
            )
        )
        if model is None:
            trail.turn_to(Tier.CLOUD, Reason.HEAVY)
            return await self._gateway.pass_on(request, deadline_s, trail.attempts)
        tensor = model.tensor(request)
        rows = [Row(position, content) for position, content in enumerate(keys.content_digests(tensor))]
        case = _Case(request, model, tensor, rows, deadline_s, trail)

        # 2. The small model, from the cache or by running it.
        if edge is not None and (decision is None or decision.tier is Tier.EDGE):
            trail.turn_to(Tier.EDGE, decision.reason if decision is not None else None)
            try:
                await self._ask_edge(case, edge, rows)
            except (InferenceError, QueueFullError):
                if decision is not None:  # bound to this device
                    raise

        # 3. Keep the answer or escalate it, row by row. What the full model said before is as good as new.
        escalated = [row for row in rows if not self._settled(case, row, decision)]
        self._audits.judged(request, model, rows)
        self._hedging.settle(request, case.hedge, escalated, trail.attempts)
        if not escalated:
            return case.answer()

        # 4. The full model. Without an edge answer to fall back on, its failure is the answer.
        trail.turn_to(Tier.CLOUD, escalated[0].reason)
        if edge is None or any(row.reason is Reason.HEAVY for row in escalated):
            await self._gateway.answer_rows(request, model, escalated, deadline_s, trail.attempts)
            return case.answer()
        if request.wait is Wait.FIRST:
            return await self._answer_for_now(case, edge, escalated, Reason.REQUESTED, promised=True)
        reserve_s, has_answer = self._reserve(case, edge, escalated)
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
        return await self._answer_for_now(case, edge, escalated, reason, promised=promised)

    def _settled(self, case: _Case, row: Row, decision: Decision | None) -> bool:
        """Answers the row here and now, unless the full model has to be asked.

        Args:
            case: of which it is a row.
            row: by the policy's `decision`, where that needed no look at the edge model's answer, or by its score.
            decision: None for the latter.
        """
        model, edge = case.model, case.model.edge
        verdict = decision or self._router.verdict(model, row)
        row.reason = verdict.reason
        if verdict.tier is Tier.EDGE and edge is not None:
            row.keep(verdict.reason, edge.loaded.digest, certified=self._router.covers(model, row, verdict))
            return True
        if self._recall_full(case, row):
            return True
        if decision is not None or edge is None:
            return False
        if self._denied(case, row, verdict):
            instead = self._router.instead(model, row, verdict)
            row.keep(instead.reason, edge.loaded.digest, certified=self._router.covers(model, row, instead))
            return True
        if not self._router.grants(model, row, verdict):
            row.keep(Reason.BUDGET, edge.loaded.digest)
            return True
        return False

    def _reserve(self, case: _Case, edge: EdgeModel, waiting: Sequence[Row]) -> tuple[float, bool]:
        """Seconds of the deadline that the edge answer needs, and whether there will be one in time.

        It is to be stored and written, and computed if it was not yet.
        """
        left_s = case.deadline_s - self._clock.monotonic_s()
        reserve_s = min(self._options.reserve_s, left_s / 4)
        unseen = sum(row.edge is None for row in waiting)
        run_s = edge.expected_ms(case.request, unseen) / 1000 if unseen else 0.0
        if math.isinf(run_s):  # never measured
            run_s = left_s / 2
        # Where it would not be ready in time anyhow, the full model gets that time.
        return (reserve_s + run_s, True) if reserve_s + run_s < left_s else (reserve_s, not unseen)

    async def _ask_edge(self, case: _Case, edge: EdgeModel, rows: Sequence[Row]) -> None:
        """Fills in what the small model says of each row. Equal rows, of whichever request, are computed once."""
        attempts = case.trail.attempts
        started_s = self._clock.monotonic_s()
        missing: list[Row] = []
        for row in rows:
            row.edge, row.edge_tier = self._cache.get(keys.result_key(edge.digest, row.content)), Tier.CACHE
            if row.edge is None:
                missing.append(row)
        if len(missing) < len(rows):
            attempts.append(attempt(self._clock, Tier.CACHE, "ok", started_s))
        if not missing:
            return

        started_s = self._clock.monotonic_s()
        missing_keys = [keys.result_key(edge.digest, row.content) for row in missing]

        async def compute(seats: Sequence[int]) -> list[ModelOutput]:
            tensor = case.tensor.take([missing[seat].position for seat in seats])
            return await edge.run_in_thread(tensor, case.deadline_s)

        try:
            if edge.quick(case.request):
                outputs = edge.run(case.tensor.take([row.position for row in missing]))
            else:
                late = "This device's model was not done before the request's deadline; give it more time."
                if self._spending is None or self._spending.ample:
                    case.hedge = self._hedging.start(case.request, case.model, edge, missing, case.deadline_s)
                outputs = await within(self._clock, case.deadline_s, self._flights.run(missing_keys, compute), late)
        except FirstlineError as error:
            attempts.append(attempt(self._clock, Tier.EDGE, error.code, started_s))
            raise
        attempts.append(attempt(self._clock, Tier.EDGE, "ok", started_s))
        private = case.request.privacy is Privacy.LOCAL_ONLY
        if self._spending is not None and not private:
            self._spending.ran(len(missing))
        for row, key, output in zip(missing, missing_keys, outputs, strict=True):
            row.edge, row.edge_tier = output, Tier.EDGE
            self._cache.put(key, output, private=private)

    def _recall_full(self, case: _Case, row: Row) -> bool:
        """Answers the row with what this very full model said of it before, where that is known."""
        digest, attempts = case.model.manifest.full_digest, case.trail.attempts
        if case.hedge is not None and case.hedge.take(row, attempts):
            return True
        started_s = self._clock.monotonic_s()
        output = self._cache.get(keys.result_key(digest, row.content)) if digest else None
        if output is None:
            return False
        row.take(output, Tier.CACHE, row.reason, digest)
        if case.hedge is not None:
            case.hedge.recalled(row)
        if not any(tried.tier is Tier.CACHE for tried in attempts):
            attempts.append(attempt(self._clock, Tier.CACHE, "ok", started_s))
        return True

    def _denied(self, case: _Case, row: Row, verdict: Decision) -> bool:
        """Whether asking the full model about this row is not worth its price; notes why."""
        if self._spending is None or row.edge is None:
            return False
        size_bytes = case.request.size_bytes / case.request.rows
        denial = self._spending.denial(size_bytes, row.value, demanded=verdict.demanded)
        if denial is not None:
            case.trail.denials[row.position] = denial
        return denial is not None

    async def _answer_for_now(
        self, case: _Case, edge: EdgeModel, waiting: Sequence[Row], reason: Reason, *, promised: bool
    ) -> InferResponse:
        """The edge answer, provisional once its promise is fsynced, final where none can be made."""
        unseen = [row for row in waiting if row.edge is None]
        if unseen:  # the caller asked for the cloud, so the edge model has not run
            case.trail.turn_to(Tier.EDGE, reason)
            await self._ask_edge(case, edge, unseen)
        digest = edge.loaded.digest
        full_digest = case.model.manifest.full_digest
        if promised and self._gateway.linked and full_digest:
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
