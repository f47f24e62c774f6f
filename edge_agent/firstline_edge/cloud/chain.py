"""The links in the order in which they are preferred: failover, the state of each link, and probes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from msgspec.structs import replace

from firstline_core.clock import Clock, end_tasks, first_of
from firstline_core.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    FirstlineError,
    LinkDownError,
    PayloadTooLargeError,
    ProtocolError,
    RemoteTimeoutError,
    RequestError,
    UnauthorizedError,
)
from firstline_core.protocol.http import StaleConnectionError
from firstline_core.routing.timing import Flight, LinkTiming, TimingReport
from firstline_core.tasks.base import DeclaredOutputs
from firstline_core.telemetry.logs import logger
from firstline_core.types import Attempt, InferRequest, InferResponse, Privacy, Tier
from firstline_edge.cloud.breaker import BreakerState, CircuitBreaker, RetryBudget
from firstline_edge.cloud.link import Link, LinkBusyError, LinkReport, LinkStatus, MessageRefusedError, is_link_fault
from firstline_edge.requests.context import attempt
from firstline_edge.requests.full_answers import check_answer

log = logger(__name__)

BudgetGate = Callable[[InferRequest, str], AbstractContextManager[None]]
"""Entered for each request over the link of that name; raises if the device cannot afford it."""

# Refusals that are not the link's fault and may not concern the next link: each has its own limits and credentials.
_TRY_NEXT_LINK = (PayloadTooLargeError, UnauthorizedError)
# The answer did not come in time, on either side.
_TOO_LATE = (RemoteTimeoutError, DeadlineExceededError)
# Possibly detected on this device, without an answer of the gateway.
_SAYS_NOTHING_ABOUT_LINK = (PayloadTooLargeError, LinkBusyError, StaleConnectionError, MessageRefusedError)


_TIMEOUT_S = 30.0  # of a request without a deadline
# A request that timed out with less time does not count against the link; the link is probed at once instead. Far below
# any usual deadline, because only timeouts reveal a gateway that answers probes and hangs on requests.
_FAIR_S = 0.25
_PROBE_TIMEOUT_S = 2.0
_RETRY_S = 1.0  # `Retry-After` of errors if no breaker knows a better time; a probe is finished by then


def no_budget(_request: InferRequest, _link: str) -> AbstractContextManager[None]:
    """The gate of a device without budgets."""
    return nullcontext()


@dataclass(slots=True)
class LinkState:
    """A link with its breaker, its last failure and its response times.

    Attributes:
        up: whether requests were allowed at the last check.
        used: whether the link has worked or failed at all.
        refused: whether the gateway refuses this device's credentials.
        problem: the last failure as a sentence; "" for none.
        rejected_answers: answers so far that were not accepted.
    """

    link: Link
    breaker: CircuitBreaker
    timing: LinkTiming = field(init=False)
    up: bool = True
    used: bool = False
    refused: bool = False
    problem: str = ""
    rejected_answers: int = 0

    def __post_init__(self) -> None:
        self.timing = LinkTiming(in_turn=self.link.in_turn)

    def worked(self) -> None:
        self.used, self.refused, self.problem = True, False, ""

    def failed(self, error: FirstlineError) -> None:
        """Records a fault, or a refusal of this device."""
        refused = isinstance(error, UnauthorizedError)
        if refused and not self.refused:  # once, not for each request
            log.warning("device refused by gateway", link=self.link.name, error=error.message)
        self.used, self.refused, self.problem = True, refused, error.message

    async def check_answer(
        self, request: InferRequest, response: InferResponse, outputs: DeclaredOutputs | None
    ) -> None:
        """Accepts an answer of the gateway, or raises an error of this link; see `full_answers.check_answer`."""
        try:
            check_answer(request, response, outputs)
        except ProtocolError as error:
            self.rejected_answers += 1
            log.warning("answer not accepted", link=self.link.name, address=self.link.address, error=error.message)
            await self.link.discard_connections()
            raise ProtocolError(f"{self.link.address} gave an answer that is not accepted. {error.message}") from error

    def timed(self, flight: Flight, started_s: float, now_s: float, outcome: InferResponse | BaseException) -> None:
        """Records the duration of a call that was answered, or whose caller stopped waiting.

        Other failures do not measure the time of an answer, nor do calls during an outage.

        Args:
            flight: the call.
            started_s: start of the call, on a monotonic clock.
            now_s: its end.
            outcome: how it ended.
        """
        if flight.lost or isinstance(outcome, StaleConnectionError):
            return
        seconds = now_s - started_s
        if isinstance(outcome, InferResponse):
            self.timing.answered(flight.size_bytes, seconds, now_s, _service_s(outcome), flight.ahead_bytes)
        elif isinstance(outcome, (*_TOO_LATE, asyncio.CancelledError)):
            self.timing.waited(flight.size_bytes, seconds, now_s, flight.ahead_bytes)

    @property
    def report(self) -> LinkReport:
        if self.refused:
            state = LinkStatus.REFUSED
        elif self.breaker.state is not BreakerState.CLOSED:
            state = LinkStatus.DOWN if self.breaker.state is BreakerState.OPEN else LinkStatus.PROBING
        else:
            state = LinkStatus.UP if self.used else LinkStatus.UNKNOWN
        return LinkReport(state, self.link.address, self.problem)


class LinkChain:
    """All links to the gateway.

    Args:
        links: in order of preference; empty for a device without links.
        breakers: one for each link.
        clock: for deadlines and waits.
        retries: the retry budget; None creates one.
        budget_gate: entered for each try; refuses requests that this device cannot afford.

    Attributes:
        payload_bytes: inputs that were sent so far, without protocol overhead; each try counts.
        linked: whether this device has any link.
        recoveries: how often a link became available again, whether or not another one was.
    """

    def __init__(
        self,
        links: Sequence[Link],
        breakers: Sequence[CircuitBreaker],
        clock: Clock,
        *,
        retries: RetryBudget | None = None,
        budget_gate: BudgetGate = no_budget,
    ) -> None:
        self._links = [LinkState(link, breaker) for link, breaker in zip(links, breakers, strict=True)]
        self.linked = bool(links)
        self._clock = clock
        self.retries = retries if retries is not None else RetryBudget(clock)
        self._budget_gate = budget_gate
        self.recoveries = 0
        self.payload_bytes = 0
        self._recovered = asyncio.Event()
        self._probers: list[asyncio.Task[None]] = []

    @property
    def available(self) -> bool:
        """Whether any link may be used now."""
        return any(state.breaker.allows_requests for state in self._links)

    def usable_names(self) -> Sequence[str]:
        """Returns the names of the links that a request may use, in order of preference."""
        return [state.link.name for state in self._links if state.breaker.allows_requests]

    async def wait_recovery(self, seen: int) -> None:
        """Waits until `recoveries` is more than `seen`."""
        while self.recoveries <= seen:
            await self._recovered.wait()

    def reports(self) -> dict[str, LinkReport]:
        """Returns the status of each link, by name."""
        return {state.link.name: state.report for state in self._links}

    def predicted_s(self, size_bytes: int) -> float | None:
        """Returns the seconds within which 95 % of such requests are answered, by the best usable link.

        None if no link may be used, or the preferred link has not been measured yet.
        """
        now_s = self._clock.monotonic_s()
        found = [
            state.timing.predicted_s(size_bytes, 0.95, now_s) for state in self._links if state.breaker.allows_requests
        ]
        if not found or found[0] is None:
            return None
        return min(seconds for seconds in found if seconds is not None)

    def rejected_answers(self) -> dict[str, int]:
        """Returns how many answers of each link were not accepted, by name."""
        return {state.link.name: state.rejected_answers for state in self._links}

    def timings(self) -> dict[str, TimingReport | None]:
        """Returns the response times of each link, by name; None without recent measurements."""
        now_s = self._clock.monotonic_s()
        return {state.link.name: state.timing.report(now_s) for state in self._links}

    async def start(self) -> None:
        """Starts the links and probes them, so that a device that boots offline knows it before a request."""
        for state in self._links:
            await state.link.start()
            state.link.probe_wanted.set()
            probing = _keep_probing(state, self._clock, self._note_states)
            self._probers.append(asyncio.create_task(probing))

    async def close(self) -> None:
        await end_tasks(*self._probers)
        self._probers.clear()
        for state in self._links:
            await state.link.close()

    def retry_now(self) -> None:
        """Tries every link again at once, because this device has a new certificate."""
        for state in self._links:
            state.breaker.forget()
            state.link.probe_wanted.set()  # which also ends the prober's wait for an open breaker

    async def infer(
        self,
        request: InferRequest,
        deadline_s: float | None,
        attempts: list[Attempt],
        outputs: DeclaredOutputs | None = None,
    ) -> InferResponse:
        """Returns the gateway's answer, over one link after the other until one works.

        An answer that `check_answer` does not accept is a failure of its link.

        Links are tried in order of preference, but those that would probably be too slow come last (`_in_order`). If a
        link fails, or refuses the size or the credentials, the next link is tried while there is time. Any other error
        of the gateway is final. The request may therefore reach the gateway twice, with the same id. Every link but the
        last usable one gets half of the remaining time, so that a hanging link leaves time for the next. Each link
        after the first uses the retry budget. A link whose kept connection was silent is tried once more, over a new
        connection; the silence is not learned as latency. A link that this device cannot afford is skipped, because
        another one may cost less.

        Args:
            request: not `local_only`.
            deadline_s: on this chain's clock; None for half a minute from now.
            attempts: each try is appended as it ends, even if this raises.
            outputs: declaration of the full model's outputs; None if this device does not hold the bundle.

        Raises:
            LinkDownError: no link may be used (raised at once), or the last one failed, or the request is too large
                for a link and another one, which may carry it, does not work now.
            RemoteTimeoutError, ProtocolError: the last one failed.
            PayloadTooLargeError: the request is too large for every link.
            DeadlineExceededError: the deadline has passed.
            FirstlineError: the gateway's error; one that may pass has a `retry_after_s`.
            RequestError: the request is `local_only`.
            BudgetExceededError: this device cannot afford any link now.
        """
        if request.privacy is Privacy.LOCAL_ONLY:
            raise RequestError(f"Request {request.request_id} is local_only and must not leave this device.")
        ends_s = self._clock.monotonic_s() + _TIMEOUT_S if deadline_s is None else deadline_s
        # V2's `id` is echoed for every caller; the gateway keeps the request id of devices only.
        return await self._ask(replace(request, id=request.request_id), ends_s, attempts, outputs)

    async def _ask(
        self, request: InferRequest, ends_s: float, attempts: list[Attempt], outputs: DeclaredOutputs | None
    ) -> InferResponse:
        error: FirstlineError
        error = nowhere = LinkDownError("No link to the gateway works at the moment.")
        tried, too_large = False, 0
        size_bytes = request.size_bytes
        waiting, retried = deque(self._in_order(size_bytes, ends_s)), set[str]()
        while waiting:
            state = waiting.popleft()
            if not state.breaker.allows_requests:
                continue
            started_s = self._clock.monotonic_s()
            if ends_s <= started_s:
                if not tried:
                    error = DeadlineExceededError("The deadline has passed before the gateway could be asked.")
                break
            if tried and not self.retries.may_retry():
                break
            others = any(other.breaker.allows_requests for other in waiting)
            granted_s = (ends_s - started_s) / (2 if others else 1)
            try:
                with self._budget_gate(request, state.link.name), state.timing.carrying(size_bytes) as flight:
                    if not tried:
                        self.retries.called()  # here, because a refusal of the budget sends nothing
                    self.payload_bytes += size_bytes
                    response = await state.link.infer(request, granted_s)
                await state.check_answer(request, response, outputs)
            except asyncio.CancelledError as cancelled:
                state.timed(flight, started_s, self._clock.monotonic_s(), cancelled)
                raise
            except BudgetExceededError as refusal:  # nothing was sent
                error = refusal if error is nowhere else error
            except FirstlineError as failure:
                tried, error = True, failure
                too_large += isinstance(failure, PayloadTooLargeError)
                state.timed(flight, started_s, self._clock.monotonic_s(), failure)
                attempts.append(attempt(self._clock, Tier.CLOUD, failure.code, started_s))
                self._judge(state, failure, granted_s)
                if isinstance(failure, StaleConnectionError) and state.link.name not in retried:
                    retried.add(state.link.name)
                    waiting.appendleft(state)
                    state.link.probe_wanted.set()
                if not is_link_fault(failure) and not isinstance(failure, _TRY_NEXT_LINK):
                    break
            else:
                state.timed(flight, started_s, self._clock.monotonic_s(), response)
                attempts.append(attempt(self._clock, Tier.CLOUD, "ok", started_s))
                state.breaker.succeeded()
                state.worked()
                self._note_states()
                return response
        raise self._unanswered(error, too_large)

    def _unanswered(self, error: FirstlineError, too_large: int) -> FirstlineError:
        """Returns the error of a request that was too large for `too_large` links, with a time for the next try."""
        if isinstance(error, PayloadTooLargeError) and too_large < len(self._links):
            error = LinkDownError(f"{error.message} Another link may carry it, but does not work at the moment.")
        if error.retryable and error.retry_after_s is None:
            waits_s = (state.breaker.retry_in_s for state in self._links)
            error.retry_after_s = min(waits_s, default=0.0) or _RETRY_S
        return error

    def _in_order(self, size_bytes: int, ends_s: float) -> list[LinkState]:
        """Returns the links in order of preference; links that are probably too slow last, the fastest first."""
        if len(self._links) == 1:
            return self._links
        now_s = self._clock.monotonic_s()
        limit_s = (ends_s - now_s) / 2  # the time that the first link gets if there is another one

        def seconds_if_too_slow(state: LinkState) -> float:
            predicted_s = state.timing.predicted_s(size_bytes, 0.95, now_s)
            return 0.0 if predicted_s is None or predicted_s <= limit_s else predicted_s

        return sorted(self._links, key=seconds_if_too_slow)

    def _judge(self, state: LinkState, failure: FirstlineError, granted_s: float) -> None:
        if isinstance(failure, _SAYS_NOTHING_ABOUT_LINK):
            return
        if is_link_fault(failure):
            # A failed probe opens the breaker at once, so that a dead link costs the first request only. The count of
            # failures is for a gateway that answers probes and nothing else.
            state.link.probe_wanted.set()
            state.failed(failure)
            if not isinstance(failure, RemoteTimeoutError) or granted_s >= _FAIR_S:
                state.breaker.failed()
        else:
            state.breaker.succeeded()  # the gateway answered
            if isinstance(failure, UnauthorizedError):
                state.failed(failure)
            else:
                state.worked()
        self._note_states()

    def _note_states(self) -> None:
        """Logs changed states and wakes waiting callers."""
        for state in self._links:
            up = state.breaker.allows_requests
            if up is not state.up:
                state.up = up
                if up:
                    log.info("link up", link=state.link.name, address=state.link.address)
                    self.recoveries += 1
                    self._recovered.set()
                    self._recovered = asyncio.Event()
                else:
                    log.warning("link down", link=state.link.name, address=state.link.address, error=state.problem)
                    state.link.probe_wanted.set()


async def _keep_probing(state: LinkState, clock: Clock, note_states: Callable[[], None]) -> None:
    """Probes a link whenever that is wanted or its breaker allows it, until cancelled.

    Links are probed in the background, never within a request. A half-open breaker that lets the next request through
    costs that request up to its whole deadline, again and again while the link stays dead. Here a request either meets
    a closed breaker, or skips the link at once.

    Args:
        state: the link.
        clock: for waits and times.
        note_states: called whenever the breaker may have changed.
    """
    while True:
        if state.breaker.allows_requests:
            await state.link.probe_wanted.wait()
        state.link.probe_wanted.clear()
        if not state.breaker.allows_requests:
            await first_of(clock.sleep(state.breaker.retry_in_s), state.link.probe_wanted.wait())
        if state.breaker.try_probe():
            note_states()
            await _probe(state, clock)
            note_states()


async def _probe(state: LinkState, clock: Clock) -> None:
    started_s = clock.monotonic_s()
    try:
        await state.link.probe(_PROBE_TIMEOUT_S)
    except FirstlineError as error:
        log.debug("link probe failed", link=state.link.name, error=error.message)
        state.failed(error)
        state.breaker.probe_failed()
    except Exception:  # the outermost loop of this task: without it the link would never recover
        log.exception("link probe failed unexpectedly", link=state.link.name)
        state.used, state.problem = True, "Its probe failed unexpectedly; the agent's log has the trace."
        state.breaker.probe_failed()
    else:
        # A gateway answers probes without credentials, so a probe does not end a refusal.
        if not state.refused or not state.breaker.allows_requests:
            state.worked()
        now_s = clock.monotonic_s()
        state.timing.probed(now_s - started_s, now_s)
        if not state.breaker.allows_requests:
            state.timing.returned()
        state.breaker.probe_succeeded()


def _service_s(response: InferResponse) -> float | None:
    """Returns the gateway's own processing time (seconds); None if it does not say."""
    attempts = response.answer.attempts if response.answer is not None else ()
    return next((tried.ms / 1000 for tried in reversed(attempts) if tried.tier is Tier.CLOUD), None)
