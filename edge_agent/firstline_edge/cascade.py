"""One request, read top to bottom: the device's answer where it can be trusted, the full model's where not.

    policy.before -> cache -> small model -> confidence -> policy.after
       EDGE   -> answer
       CLOUD  -> cache -> link (deadline) -> answer
                 link down, or late -> the edge answer now, the sample in the outbox, the correction later

`policy.before` looks at the request alone and says which evidence is worth reading, so it comes before the cache.
A batch is decided row by row, and only escalated rows travel. The cache holds what models said of rows, never
decisions: the policy decides anew on every hit. Nothing here knows a transport, a file format or a metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from firstline_core.clock import Clock
from firstline_core.errors import (
    CapacityError,
    DeadlineExceededError,
    FirstlineError,
    InferenceError,
    LinkDownError,
    LinkError,
    QueueFullError,
    UnauthorizedError,
    UnknownModelError,
)
from firstline_core.protocol.tensors import shown
from firstline_core.routing import policy
from firstline_core.routing.policy import Decision
from firstline_core.telemetry.logs import logger
from firstline_core.types import (
    Answer,
    Attempt,
    InferRequest,
    InferResponse,
    Privacy,
    Reason,
    Status,
    Tensor,
    Tier,
    Wait,
)
from firstline_edge import keys
from firstline_edge.cache import ModelOutput, ResultCache
from firstline_edge.deadline import within
from firstline_edge.escalation import escalation_of, may_come, reason_for, verified_digest
from firstline_edge.links.chain import attempts_of
from firstline_edge.models import EdgeModel, HeldModel, Models
from firstline_edge.outbox.store import OutboxItem
from firstline_edge.rows import Row, full_probabilities, respond
from firstline_edge.single_flight import SingleFlight

_LOG = logger(__name__)


class Cloud(Protocol):
    """The way to the gateway; `links/chain.py` is it."""

    async def infer(
        self, request: InferRequest, deadline_s: float | None
    ) -> tuple[InferResponse, tuple[Attempt, ...]]: ...


class Promises(Protocol):
    """Where promised corrections are kept; `outbox/store.py` is it."""

    async def put(self, item: OutboxItem) -> None: ...


@dataclass(frozen=True, slots=True)
class CascadeOptions:
    """What this device adds to the bundles' policies.

    Args:
        limit_bytes: the largest payload that this device takes on itself.
        min_threshold: raises a bundle's threshold, never lowers it.
        default_timeout_s: for a request that brings no deadline.
        reserve_s: kept back of a deadline, to store the promise and write the edge answer in time.
    """

    limit_bytes: int
    min_threshold: float
    default_timeout_s: float
    reserve_s: float


@dataclass(slots=True, eq=False)
class _Case:
    """One request on its way through the cascade.

    Args:
        model: the bundle that this device holds.
        tensor: its input.
        rows: all of them, in order.
        started_s, deadline_s: on the monotonic clock.
        attempts: every try so far.
    """

    request: InferRequest
    model: HeldModel
    tensor: Tensor
    rows: list[Row]
    started_s: float
    deadline_s: float
    attempts: list[Attempt]

    def answer(self, *, durable: bool = False) -> InferResponse:
        return respond(self.request, self.model.version, self.rows, self.attempts, durable=durable)


class Cascade:
    """Decides who answers, and answers.

    Args:
        cloud: None on a device without links: what the edge model says is then all there is.
    """

    def __init__(
        self,
        *,
        models: Models,
        cache: ResultCache,
        cloud: Cloud | None,
        promises: Promises,
        options: CascadeOptions,
        clock: Clock,
    ) -> None:
        self._models = models
        self._cache = cache
        self._cloud = cloud
        self._promises = promises
        self._options = options
        self._clock = clock
        self._flights: SingleFlight[ModelOutput] = SingleFlight()

    async def close(self) -> None:
        """Ends the computations that still run for callers who left."""
        await self._flights.close()

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answers one request.

        Raises:
            RequestError: no tier may or can answer it as it stands.
            LinkError: the gateway alone can answer, and cannot be reached now.
            CapacityError: the gateway alone can answer, and not in time or not now.
            RuntimeFailure: the model that had to answer failed.
        """
        started_s = self._clock.monotonic_s()
        deadline_s = started_s + self._options.default_timeout_s if request.deadline_s is None else request.deadline_s
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
            return await self._pass_on(request, deadline_s)
        tensor = model.tensor(request)
        rows = [Row(position, content) for position, content in enumerate(keys.content_digests(tensor))]
        case = _Case(request, model, tensor, rows, started_s, deadline_s, [])

        # 2. The small model, from the cache or by running it.
        if edge is not None and (decision is None or decision.tier is Tier.EDGE):
            try:
                await self._ask_edge(case, edge, rows)
            except (InferenceError, QueueFullError):
                if decision is not None:  # bound to this device
                    raise
                decision = Decision(Tier.CLOUD, Reason.HEAVY)

        # 3. Keep the answer or escalate it, row by row. What the full model said before is as good as new.
        escalated: list[Row] = []
        for row in rows:
            verdict = decision or policy.after(row.score, self.threshold(model))
            row.reason = verdict.reason
            if verdict.tier is Tier.EDGE and edge is not None:
                row.keep(verdict.reason, edge.loaded.digest)
            elif not self._recall_full(case, row):
                escalated.append(row)
        if not escalated:
            return case.answer()

        # 4. The full model. Without an edge answer to fall back on, its failure is the answer.
        if edge is None or (decision is not None and decision.reason is Reason.HEAVY):
            await self._ask_cloud(case, escalated, deadline_s)
            return case.answer()
        if request.wait is Wait.FIRST:
            return await self._answer_for_now(case, edge, escalated, Reason.REQUESTED, promised=True)
        reserve_s = min(self._options.reserve_s, (deadline_s - started_s) / 4)
        try:
            await self._ask_cloud(case, escalated, deadline_s - reserve_s)
            return case.answer()
        except FirstlineError as error:
            reason, promised = reason_for(error), may_come(error)

        # 5. The edge answer now; the correction later, where one may come.
        return await self._answer_for_now(case, edge, escalated, reason, promised=promised)

    def threshold(self, model: HeldModel) -> float:
        """The score from which an edge answer is kept; the device can only raise the bundle's."""
        return max(model.manifest.policy.threshold, self._options.min_threshold)

    async def _pass_on(self, request: InferRequest, deadline_s: float) -> InferResponse:
        """A model that this device knows nothing of: the gateway's answer as it comes, all rows or none."""
        if self._cloud is None:
            wanted = shown(request.model) + (f" in version {shown(request.version)}" if request.version else "")
            raise UnknownModelError(
                f"This device holds no model {wanted} and has no link to a gateway; add the model's bundle to "
                "models.directories, or a [[links]] section."
            )
        attempts: list[Attempt] = []
        sent = escalation_of(request, request.version, "")
        response = await within(self._clock, deadline_s, self._call(sent, deadline_s, attempts))
        said = response.answer
        answer = Answer(
            request_id=request.request_id,
            status=Status.FINAL,
            certified=said is not None and said.certified,
            durable=False,
            tier=Tier.CLOUD,
            reason=Reason.HEAVY,
            confidence=None,
            model_digest=said.model_digest if said is not None else "",
            attempts=tuple(attempts),
        )
        return replace(response, model=request.model, id=request.id, answer=answer)

    async def _ask_edge(self, case: _Case, edge: EdgeModel, rows: Sequence[Row]) -> None:
        """Fills in what the small model says of each row. Equal rows, of whichever request, are computed once."""
        started_s = self._clock.monotonic_s()
        missing: list[Row] = []
        for row in rows:
            row.edge, row.edge_tier = self._cache.get(keys.result_key(edge.digest, row.content)), Tier.CACHE
            if row.edge is None:
                missing.append(row)
        if len(missing) < len(rows):
            case.attempts.append(self._attempt(Tier.CACHE, "ok", started_s))
        if not missing:
            return

        started_s = self._clock.monotonic_s()
        missing_keys = [keys.result_key(edge.digest, row.content) for row in missing]

        async def compute(seats: Sequence[int]) -> list[ModelOutput]:
            return await edge.run_in_thread(case.tensor.take([missing[seat].position for seat in seats]))

        try:
            if edge.quick(case.request):
                outputs = edge.run(case.tensor.take([row.position for row in missing]))
            else:
                outputs = await self._flights.run(missing_keys, compute)
        except FirstlineError as error:
            case.attempts.append(self._attempt(Tier.EDGE, error.code, started_s))
            raise
        case.attempts.append(self._attempt(Tier.EDGE, "ok", started_s))
        on_disk = case.request.privacy is not Privacy.LOCAL_ONLY
        for row, key, output in zip(missing, missing_keys, outputs, strict=True):
            row.edge, row.edge_tier = output, Tier.EDGE
            self._cache.put(key, output, on_disk=on_disk)

    def _recall_full(self, case: _Case, row: Row) -> bool:
        """Answers the row with what this very full model said of it before, where that is known."""
        digest = case.model.manifest.full_digest
        started_s = self._clock.monotonic_s()
        output = self._cache.get(keys.result_key(digest, row.content)) if digest else None
        if output is None:
            return False
        row.take(output, Tier.CACHE, row.reason, digest)
        if not any(attempt.tier is Tier.CACHE for attempt in case.attempts):
            case.attempts.append(self._attempt(Tier.CACHE, "ok", started_s))
        return True

    async def _ask_cloud(self, case: _Case, rows: Sequence[Row], deadline_s: float) -> None:
        """Answers the rows with what the full model says of them, before the deadline."""
        if deadline_s <= self._clock.monotonic_s():
            raise DeadlineExceededError("The request's deadline leaves no time to ask the full model.")
        manifest, digest = case.model.manifest, case.model.manifest.full_digest
        row_keys = [keys.result_key(digest, row.content) for row in rows]
        verified, called = digest, False
        started_s = self._clock.monotonic_s()

        async def compute(seats: Sequence[int]) -> list[ModelOutput]:
            nonlocal verified, called
            called = True
            request = case.request.take([rows[seat].position for seat in seats])
            response = await self._call(escalation_of(request, case.model.version, digest), deadline_s, case.attempts)
            verified = verified_digest(response, digest)
            outputs = [ModelOutput(row) for row in full_probabilities(response, len(seats), len(manifest.labels))]
            if verified:
                for seat, output in zip(seats, outputs, strict=True):
                    self._cache.put(row_keys[seat], output)
            return outputs

        try:
            outputs = await within(self._clock, deadline_s, self._flights.run(row_keys, compute))
        except FirstlineError as error:
            if not any(attempt.tier is Tier.CLOUD for attempt in case.attempts):
                case.attempts.append(self._attempt(Tier.CLOUD, error.code, started_s))
            raise
        if not called:  # another request was already asking the same
            case.attempts.append(self._attempt(Tier.CLOUD, "ok", started_s))
        for row, output in zip(rows, outputs, strict=True):
            row.take(output, Tier.CLOUD, row.reason, verified)

    async def _answer_for_now(
        self, case: _Case, edge: EdgeModel, waiting: Sequence[Row], reason: Reason, *, promised: bool
    ) -> InferResponse:
        """The edge answer, provisional once its promise is fsynced, final where none can be made."""
        unseen = [row for row in waiting if row.edge is None]
        if unseen:  # the caller asked for the cloud, so the edge model has not run
            await self._ask_edge(case, edge, unseen)
        digest = edge.loaded.digest
        full_digest = case.model.manifest.full_digest
        if promised and self._cloud is not None and full_digest:
            for row in waiting:
                row.keep(reason, digest, Status.PROVISIONAL)
            response = case.answer(durable=True)
            positions = tuple(row.position for row in waiting)
            escalation = escalation_of(case.request.take(positions), case.model.version, full_digest)
            try:
                await self._promises.put(OutboxItem(escalation, positions, response, self._clock.wall_s()))
                return response
            except CapacityError as error:  # full, or a disk that refuses: either way nothing was promised
                _LOG.warning("no correction promised", request_id=case.request.request_id, error=error.message)
                reason = Reason.OUTBOX_FULL
        for row in waiting:
            row.keep(reason, digest)
        return case.answer()

    async def _call(self, request: InferRequest, deadline_s: float, attempts: list[Attempt]) -> InferResponse:
        """One escalation over whichever link answers; every link tried leaves an attempt."""
        if self._cloud is None:
            raise LinkDownError("This device has no link to a gateway; add a [[links]] section to its configuration.")
        try:
            response, tried = await self._cloud.infer(request, deadline_s)
        except FirstlineError as error:
            attempts.extend(attempts_of(error))
            if isinstance(error, UnauthorizedError):  # this device's token, not the caller's; it can be mended here
                raise LinkError(f"The gateway refuses this device: {error.message}") from error
            raise
        attempts.extend(tried)
        return response

    def _attempt(self, tier: Tier, outcome: str, started_s: float) -> Attempt:
        return Attempt(tier, outcome, round((self._clock.monotonic_s() - started_s) * 1000, 3))
