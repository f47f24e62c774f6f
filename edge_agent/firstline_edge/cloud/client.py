"""The client of the gateway: sends rows to the full model, shares equal requests, and caches the answers.

`cascade.py` decides when to ask the gateway, and what a failure means for the caller.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

from msgspec.structs import replace

from firstline_core.clock import Clock
from firstline_core.errors import (
    DeadlineExceededError,
    FirstlineError,
    LinkDownError,
    LinkError,
    ModelMismatchError,
    RuntimeFailure,
    UnauthorizedError,
    UnknownModelError,
)
from firstline_core.tasks.base import DeclaredOutputs
from firstline_core.telemetry.logs import logger
from firstline_core.types import (
    Answer,
    Attempt,
    ContractAlarm,
    ContractNotice,
    InferRequest,
    InferResponse,
    ModelVersion,
    Reason,
    Status,
    Tier,
    slice_rows,
)
from firstline_edge.cache.results import ResultCache
from firstline_edge.cloud.chain import LinkChain
from firstline_edge.models.models import DeviceModel
from firstline_edge.requests.context import ModelOutput, Row, attempt, flight_key, result_key
from firstline_edge.requests.deadline import within
from firstline_edge.requests.full_answers import can_be_promised, digest_of, escalation_of
from firstline_edge.requests.single_flight import SingleFlight

log = logger(__name__)

EXPLORE_EVERY = 50
"""Of the requests that would be late, one in this many is sent anyway, because estimates may be wrong."""

BUNDLE_GRACE_S = 3600.0
"""How long promises wait for a gateway that lacks their bundle: devices may be upgraded before their gateway."""

# The gateway does not serve this device's bundle.
_LACKS_BUNDLE = (ModelMismatchError, UnknownModelError)
# Refusals of a model, and so of every request to it; other refusals may concern one request only.
_OF_THE_MODEL = (*_LACKS_BUNDLE, RuntimeFailure)
_LATE = "The full model's answer did not come before the request's deadline."


class Contracts(Protocol):
    """The state of this device's certificates; `audits/certificate_states.py` implements it."""

    def alarm_of(self, model: DeviceModel) -> ContractAlarm | None:
        """Returns the alarm of this device's own audits; None without one."""

    def apply_notice(self, model: DeviceModel, notice: ContractNotice | None) -> None:
        """Applies the gateway's notice about the model's contract."""


class ModelRefusals:
    """The gateway's latest refusal of each model of this device, until the gateway answers with that model again.

    Examples: the gateway holds another bundle with that name, or none.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._errors: dict[ModelVersion, FirstlineError] = {}
        self._since_s: dict[ModelVersion, float] = {}  # when the gateway first lacked the bundle

    def record(self, model: ModelVersion, error: FirstlineError) -> None:
        """Stores an error that concerns the model; warns when it is new, not for every request."""
        if not isinstance(error, _OF_THE_MODEL):
            return
        before = self._errors.get(model)
        self._errors[model] = error
        if isinstance(error, _LACKS_BUNDLE):
            self._since_s.setdefault(model, self._clock.monotonic_s())
        if type(before) is not type(error):
            log.warning("model not served by gateway", model=model[0], version=model[1], error=error.message)

    def clear(self, model: ModelVersion) -> None:
        """Forgets the refusal: the gateway answered."""
        self._since_s.pop(model, None)
        if self._errors.pop(model, None) is not None:
            log.info("model served by gateway again", model=model[0], version=model[1])

    def is_temporary(self, model: ModelVersion, error: FirstlineError) -> bool:
        """Returns whether the gateway refuses because it lacks the bundle, which it may still get.

        Until `BUNDLE_GRACE_S` after the first such refusal, corrections are promised, and promises wait.
        """
        return isinstance(error, _LACKS_BUNDLE) and self._left_s(model) > 0

    def message_of(self, model: ModelVersion) -> str:
        """Returns the refusal in sentences, and for how long corrections wait; "" for none."""
        error = self._errors.get(model)
        if error is None:
            return ""
        if not self.is_temporary(model, error):
            return error.message
        left_min = math.ceil(self._left_s(model) / 60)
        return f"{error.message} Corrections wait {left_min} more min for the gateway to get this device's bundle."

    def _left_s(self, model: ModelVersion) -> float:
        now_s = self._clock.monotonic_s()
        return self._since_s.get(model, now_s) + BUNDLE_GRACE_S - now_s


class LatenessGate:
    """Withholds escalations that would probably be late; used if the device has an edge answer of its own.

    A wrong estimate corrects itself: the outbox sends withheld requests later and measures their time, old measurements
    lose weight, and a few requests are sent anyway.

    Attributes:
        held_back: requests that were not sent because they would be late.
        explored: requests that were sent although they would probably be late.
    """

    def __init__(self) -> None:
        self.held_back = self.explored = 0

    def allows(self, predicted_s: float | None, left_s: float) -> bool:
        """Returns whether to send a request, and counts refusals.

        Args:
            predicted_s: within which most such requests are answered; None if unknown.
            left_s: until the deadline.
        """
        if predicted_s is None or predicted_s <= left_s:
            return True
        if (self.held_back + self.explored) % EXPLORE_EVERY == EXPLORE_EVERY - 1:
            self.explored += 1
            return True
        self.held_back += 1
        return False


class LiveTraffic:
    """Counts the escalations in progress, for which background transfers wait.

    Args:
        limit: number of escalations in progress at which audits wait.
    """

    def __init__(self, limit: int = 4) -> None:
        self._limit = limit
        self._in_progress = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def busy(self) -> bool:
        return self._in_progress >= self._limit

    @contextmanager
    def escalating(self) -> Iterator[None]:
        """Counts an escalation until the block ends."""
        self._in_progress += 1
        if self.busy:
            self._quiet.clear()
        try:
            yield
        finally:
            self._in_progress -= 1
            if not self.busy:
                self._quiet.set()

    async def wait_quiet(self) -> None:
        """Returns once fewer escalations than the limit are in progress."""
        await self._quiet.wait()


@dataclass(eq=False)
class CloudClient:
    """Asks the full models, over whichever link works.

    Args:
        chain: the links to the gateway.
        cache: stores the full models' outputs by digest.
        refusals: records the gateway's refusals of a model.
        contracts: the state of certificates, exchanged with the gateway.
        traffic: counts the escalations in progress.
    """

    chain: LinkChain
    cache: ResultCache
    clock: Clock
    refusals: ModelRefusals
    _: KW_ONLY
    contracts: Contracts
    traffic: LiveTraffic
    lateness: LatenessGate = field(default_factory=LatenessGate, init=False)
    _flights: SingleFlight[tuple[ModelOutput, str]] = field(default_factory=SingleFlight, init=False)

    @property
    def linked(self) -> bool:
        return self.chain.linked

    async def close(self) -> None:
        """Cancels requests whose callers have left."""
        await self._flights.close()

    def can_be_promised(self, model: DeviceModel, error: FirstlineError) -> bool:
        """Returns whether a correction can be promised after this failure to get the full model's answer."""
        return can_be_promised(error) or self.refusals.is_temporary(model.key, error)

    def predicted_s(self, request: InferRequest, rows: int) -> float | None:
        """Returns the seconds within which most requests with `rows` rows are answered; None if unknown."""
        return self.chain.predicted_s(request.size_bytes * rows // request.rows)

    def check_time(self, request: InferRequest, model: DeviceModel, rows: Sequence[Row], deadline_s: float) -> None:
        """Refuses rows that would probably be answered too late; rows already in progress may be awaited.

        Args:
            request: of which these are rows.
            model: the bundle that the gateway must run.
            rows: of which the device has an answer of its own, or will have one in time.
            deadline_s: on the monotonic clock.

        Raises:
            DeadlineExceededError: the answer would come too late; nothing was sent.
        """
        left_s = deadline_s - self.clock.monotonic_s()
        if not self.linked or left_s <= 0 or all(key in self._flights for key in _flight_keys(model, rows)):
            return
        predicted_s = self.predicted_s(request, len(rows))
        if not self.lateness.allows(predicted_s, left_s):
            raise DeadlineExceededError(
                f"Asking the full model takes up to {(predicted_s or 0.0) * 1000:.0f} ms at the moment, and "
                f"{left_s * 1000:.0f} ms are left of the request's deadline; allow more time."
            )

    async def answer_rows(
        self, request: InferRequest, model: DeviceModel, rows: Sequence[Row], deadline_s: float, attempts: list[Attempt]
    ) -> None:
        """Fills the rows with the full model's answers. Equal rows, of whichever request, travel once.

        Args:
            request: of which these are rows.
            model: the bundle that the gateway must run.
            rows: to be answered, each for its own reason.
            deadline_s: on the monotonic clock.
            attempts: gains each try.

        Raises:
            FirstlineError: see `Cascade.infer`.
        """
        answers = await self.ask(request, model, rows, deadline_s, attempts)
        for row, (output, ran) in zip(rows, answers, strict=True):
            row.accept_full(output, Tier.CLOUD, row.policy_reason, ran)

    async def ask(
        self,
        request: InferRequest,
        model: DeviceModel,
        rows: Sequence[Row],
        deadline_s: float,
        attempts: list[Attempt],
        *,
        keep: bool = True,
    ) -> list[tuple[ModelOutput, str]]:
        """Returns the full model's output for each row, and the model's digest.

        Args:
            request: of which these are rows.
            model: the bundle that the gateway must run.
            rows: to travel.
            deadline_s: on the monotonic clock.
            attempts: gains each try.
            keep: continue if the caller leaves and no other caller waits for the same rows.

        Raises:
            FirstlineError: see `Cascade.infer`.
        """
        if deadline_s <= self.clock.monotonic_s():
            raise DeadlineExceededError("The request's deadline leaves no time to ask the full model.")
        manifest, digest = model.manifest, model.manifest.full_digest
        tried_before = len(attempts)
        started_s = self.clock.monotonic_s()

        async def compute(indices: Sequence[int]) -> list[tuple[ModelOutput, str]]:
            escalated = request.take([rows[index].position for index in indices])
            sent = escalation_of(escalated, model.version, digest, model.full_inputs, self.contracts.alarm_of(model))
            try:
                response = await self._call(sent, deadline_s, attempts, manifest.outputs_of(manifest.full))
            except FirstlineError as error:
                self.refusals.record(model.key, error)
                raise
            self.refusals.clear(model.key)
            self.contracts.apply_notice(model, response.answer.contract if response.answer is not None else None)
            ran = digest_of(response)
            arrays = response.arrays_of(manifest.task.outputs)
            outputs = [ModelOutput(slice_rows(arrays, row, row + 1)) for row in range(len(indices))]
            if digest and ran:
                for index, output in zip(indices, outputs, strict=True):
                    self.cache.put(result_key(rows[index].content, digest), output)
            return [(output, ran) for output in outputs]

        flight = self._flights.run(_flight_keys(model, rows), compute, keep=keep)
        try:
            answers = await within(self.clock, deadline_s, flight, _LATE)
        except FirstlineError as error:
            if len(attempts) == tried_before:  # late, or the call of another request failed
                attempts.append(attempt(self.clock, Tier.CLOUD, error.code, started_s))
            raise
        if len(attempts) == tried_before:  # another request had sent the same rows
            attempts.append(attempt(self.clock, Tier.CLOUD, "ok", started_s))
        return answers

    async def pass_on(self, request: InferRequest, deadline_s: float, attempts: list[Attempt]) -> InferResponse:
        """Returns the gateway's answer for a model that this device does not hold, unchanged: all rows or none.

        Raises:
            FirstlineError: see `Cascade.infer`.
        """
        sent = escalation_of(request, request.version, "")
        response = await within(self.clock, deadline_s, self._call(sent, deadline_s, attempts), _LATE)
        answer = Answer(
            request_id=request.request_id,
            status=Status.FINAL,
            certified=response.answer is not None and response.answer.certified,
            durable=False,
            tier=Tier.CLOUD,
            reason=Reason.HEAVY,
            confidence=None,
            model_digest=digest_of(response),
            attempts=tuple(attempts),
        )
        return replace(response, model=request.model, id=request.id, answer=answer)

    async def _call(
        self, request: InferRequest, deadline_s: float, attempts: list[Attempt], outputs: DeclaredOutputs | None = None
    ) -> InferResponse:
        """Sends one escalation over the first link that answers; adds an attempt for each link that was tried."""
        if not self.linked:  # no Retry-After: time does not change it
            raise LinkDownError(
                "The full model alone can answer this, and this device has no link to a gateway, so trying again does "
                "not help; add a [[links]] section to its configuration."
            )
        try:
            with self.traffic.escalating():
                return await self.chain.infer(request, deadline_s, attempts, outputs)
        except UnauthorizedError as error:  # the operator can renew the credentials, so the promise is kept
            raise LinkError(f"The gateway refuses this device: {error.message}") from error


def _flight_keys(model: DeviceModel, rows: Sequence[Row]) -> list[bytes]:
    manifest = model.manifest
    return [flight_key(manifest.name, model.version, manifest.full_digest, row.content) for row in rows]
