"""The links in the order in which they are preferred: failover, circuit breakers, and the budget for retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from firstline_core.clock import Clock
from firstline_core.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    FirstlineError,
    LinkDownError,
    PayloadTooLargeError,
    RemoteTimeoutError,
    RequestError,
    UnauthorizedError,
)
from firstline_core.routing.timing import Flight, TimingReport
from firstline_core.telemetry.logs import logger
from firstline_core.types import Attempt, InferRequest, InferResponse, Privacy, Tier
from firstline_edge.cloud.breaker import CircuitBreaker
from firstline_edge.cloud.link import Link, LinkBusyError, LinkReport, is_link_fault
from firstline_edge.cloud.link_state import LinkState
from firstline_edge.cloud.probing import keep_probing
from firstline_edge.cloud.retry_budget import RetryBudget

log = logger(__name__)

BudgetGate = Callable[[InferRequest, str], AbstractContextManager[None]]
"""Of a request, over the link of that name."""

# Refusals without a fault of the link's, which say nothing about the next link: each has limits and credentials
# of its own.
_OF_THIS_LINK = (PayloadTooLargeError, UnauthorizedError)
# Found out here, or maybe so, without a word from the far side.
_NO_VERDICT = (PayloadTooLargeError, LinkBusyError)


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """Times, in seconds.

    Args:
        timeout_s: for a request without a deadline.
        fair_s: a request that was given less and timed out says little about the link: it does not count against it,
            but has it probed at once. Far below any usual deadline, since a far side that answers probes and hangs on
            requests shows itself in nothing but timeouts.
        probe_timeout_s: for a probe.
        retry_s: what callers are told to wait where no breaker knows better; by then a probe has found out.
    """

    timeout_s: float = 30.0
    fair_s: float = 0.25
    probe_timeout_s: float = 2.0
    retry_s: float = 1.0


def no_budget(_request: InferRequest, _link: str) -> AbstractContextManager[None]:
    """For a device without budgets."""
    return nullcontext()


class LinkChain:
    """All links to the gateway.

    Args:
        links: in order of preference; may be empty, for a device that never asks anybody.
        breakers: one for each link.
        clock: for deadlines and waits.
        settings: times.
        retries: the budget for asking again; None for one of its own.
        budget_gate: entered for each try; refuses what this device cannot afford.
    """

    def __init__(
        self,
        links: Sequence[Link],
        breakers: Sequence[CircuitBreaker],
        clock: Clock,
        settings: ChainSettings = ChainSettings(),
        *,
        retries: RetryBudget | None = None,
        budget_gate: BudgetGate = no_budget,
    ) -> None:
        self._ways = [LinkState(link, breaker) for link, breaker in zip(links, breakers, strict=True)]
        self._clock = clock
        self._settings = settings
        self.retries = retries if retries is not None else RetryBudget(clock)
        self._budget_gate = budget_gate
        self._usable = self._names_usable()
        self._recoveries = 0
        self._recovered = asyncio.Event()
        self._probers: list[asyncio.Task[None]] = []

    @property
    def available(self) -> bool:
        """Whether a request would be tried now."""
        return any(way.breaker.allows_requests for way in self._ways)

    @property
    def usable(self) -> Sequence[str]:
        """The links that a request would try, in that order; asked for each row, so noted where it changes."""
        return self._usable

    @property
    def recoveries(self) -> int:
        """How often it became available again."""
        return self._recoveries

    async def wait_recovery(self, seen: int) -> None:
        """Returns once `recoveries` is more than `seen`; at once if so already."""
        while self._recoveries <= seen:
            await self._recovered.wait()

    def states(self) -> dict[str, str]:
        """Each link's breaker: closed, open or half_open."""
        return {way.link.name: way.breaker.state.value for way in self._ways}

    def reports(self) -> dict[str, LinkReport]:
        """How each link is, by its name."""
        return {way.link.name: way.report for way in self._ways}

    def predicted_s(self, size_bytes: int, quantile: float = 0.95) -> float | None:
        """Seconds within which this share of such requests is answered, by the best link that may be used.

        None where no link may be used, or nothing is known of the preferred one: only a request can tell.
        """
        now_s = self._clock.monotonic_s()
        found = [
            way.timing.predicted_s(size_bytes, quantile, now_s) for way in self._ways if way.breaker.allows_requests
        ]
        if not found or found[0] is None:
            return None
        return min(seconds for seconds in found if seconds is not None)

    def timings(self) -> dict[str, TimingReport | None]:
        """How long each link takes, by its name; None where nothing is known of late."""
        now_s = self._clock.monotonic_s()
        return {way.link.name: way.timing.report(now_s) for way in self._ways}

    async def start(self) -> None:
        """Starts the links and probes them at once: a device that boots offline knows before its first request."""
        for way in self._ways:
            await way.link.start(way.wake.set)
            way.wake.set()
            probing = keep_probing(way, self._clock, self._settings.probe_timeout_s, self._note_states)
            self._probers.append(asyncio.create_task(probing))

    async def close(self) -> None:
        for prober in self._probers:
            prober.cancel()
        await asyncio.gather(*self._probers, return_exceptions=True)
        self._probers.clear()
        for way in self._ways:
            await way.link.close()

    def renewed(self) -> None:
        """This device shows another certificate: every link is tried again at once."""
        for way in self._ways:
            way.renewed()

    async def infer(self, request: InferRequest, deadline_s: float | None, attempts: list[Attempt]) -> InferResponse:
        """The gateway's answer, by the first link that works.

        A link's fault moves on to the next one while there is time, and so do a size and a credential that
        another link may do better with; what else the gateway says ends the matter. The request may reach the
        gateway twice so: it bears the same id each time. Every link but the last usable one gets half of the time
        that is left, so that one that hangs leaves the next a chance; one that would hardly answer in that time is
        asked after the others. Each link after the first draws on the budget for retries. A link that this device
        cannot afford now is passed by: another one may cost less.

        Args:
            request: not `local_only`.
            deadline_s: on this chain's clock; None for `settings.timeout_s` from now.
            attempts: each try is appended as it ends, also where this raises.

        Raises:
            LinkDownError: no link may be used, without any delay; or the last one failed.
            RemoteTimeoutError, ProtocolError: the last one failed.
            DeadlineExceededError: no time was left to try.
            FirstlineError: what the gateway said. Whatever may pass says after how long, here or there.
            RequestError: the request is `local_only`.
            BudgetExceededError: this device can afford no link now.
        """
        if request.privacy is Privacy.LOCAL_ONLY:
            raise RequestError(f"Request {request.request_id} is local_only and must not leave this device.")
        ends_s = self._clock.monotonic_s() + self._settings.timeout_s if deadline_s is None else deadline_s
        return await self._ask(request, ends_s, attempts)

    async def _ask(self, request: InferRequest, ends_s: float, attempts: list[Attempt]) -> InferResponse:
        error: FirstlineError
        error = nowhere = LinkDownError("No link to the gateway works at the moment.")
        tried = False
        size_bytes = request.size_bytes
        ways = self._in_order(size_bytes, ends_s)
        for position, way in enumerate(ways):
            if not way.breaker.allows_requests:
                continue
            started_s = self._clock.monotonic_s()
            if ends_s <= started_s:
                if not tried:
                    error = DeadlineExceededError("The deadline has passed before the gateway could be asked.")
                break
            if not tried:
                self.retries.called()
            elif not self.retries.may_retry():
                break
            others = any(other.breaker.allows_requests for other in ways[position + 1 :])
            granted_s = (ends_s - started_s) / (2 if others else 1)
            try:
                with self._budget_gate(request, way.link.name), way.timing.carrying(size_bytes) as flight:
                    response = await way.link.infer(request, granted_s)
            except asyncio.CancelledError as gone:
                self._time(way, flight, started_s, gone)
                raise
            except BudgetExceededError as refusal:  # nothing was sent
                error = refusal if error is nowhere else error
            except FirstlineError as failure:
                tried, error = True, failure
                self._time(way, flight, started_s, failure)
                attempts.append(self._attempt(failure.code, started_s))
                self._judge(way, failure, granted_s)
                if not is_link_fault(failure) and not isinstance(failure, _OF_THIS_LINK):
                    break
            else:
                self._time(way, flight, started_s, response)
                attempts.append(self._attempt("ok", started_s))
                way.breaker.succeeded()
                way.worked()
                self._note_states()
                return response
        if error.retryable and error.retry_after_s is None:
            error.retry_after_s = self._retry_s()
        raise error

    def _in_order(self, size_bytes: int, ends_s: float) -> list[LinkState]:
        """The links as they are preferred; last, the quickest first, those that would hardly answer in their time."""
        if len(self._ways) == 1:
            return self._ways
        now_s = self._clock.monotonic_s()
        granted_s = (ends_s - now_s) / 2

        def too_slow_s(way: LinkState) -> float:
            predicted_s = way.timing.predicted_s(size_bytes, 0.95, now_s)
            return 0.0 if predicted_s is None or predicted_s <= granted_s else predicted_s

        return sorted(self._ways, key=too_slow_s)

    def _time(self, way: LinkState, flight: Flight, started_s: float, outcome: InferResponse | BaseException) -> None:
        now_s = self._clock.monotonic_s()
        way.timed(flight, now_s - started_s, now_s, outcome)

    def _judge(self, way: LinkState, failure: FirstlineError, granted_s: float) -> None:
        if isinstance(failure, _NO_VERDICT):
            return
        if is_link_fault(failure):
            # A probe that fails opens the breaker at once, so that a dead link costs the first request only; the
            # count of failures is for a far side that answers probes and nothing else.
            way.wake.set()
            way.failed(failure)
            if not isinstance(failure, RemoteTimeoutError) or granted_s >= self._settings.fair_s:
                way.breaker.failed()
        else:
            way.breaker.succeeded()  # it brought us the gateway's words
            if isinstance(failure, UnauthorizedError):
                way.failed(failure)
            else:
                way.worked()
        self._note_states()

    def _attempt(self, outcome: str, started_s: float) -> Attempt:
        return Attempt(Tier.CLOUD, outcome, round((self._clock.monotonic_s() - started_s) * 1000, 3))

    def _retry_s(self) -> float:
        return min((way.breaker.retry_in_s for way in self._ways), default=0.0) or self._settings.retry_s

    def _note_states(self) -> None:
        """Tells those who wait, and the log, what changed."""
        for way in self._ways:
            up = way.breaker.allows_requests
            if up is not way.up:
                way.up = up
                if not up:
                    way.wake.set()
                if up:
                    log.info("link up", link=way.link.name, address=way.link.address)
                else:
                    log.warning("link down", link=way.link.name, address=way.link.address, error=way.problem)
        before, self._usable = self._usable, self._names_usable()
        if self._usable and not before:
            self._recoveries += 1
            self._recovered.set()
            self._recovered = asyncio.Event()

    def _names_usable(self) -> tuple[str, ...]:
        return tuple(way.link.name for way in self._ways if way.breaker.allows_requests)
