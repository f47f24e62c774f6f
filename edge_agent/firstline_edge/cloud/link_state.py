"""The state of one link in the chain: its breaker, its last failure, and its response times."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from firstline_core.errors import DeadlineExceededError, FirstlineError, RemoteTimeoutError, UnauthorizedError
from firstline_core.routing.timing import Flight, LinkTiming
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferResponse, Tier
from firstline_edge.cloud.breaker import CircuitBreaker, State
from firstline_edge.cloud.link import Link, LinkReport, LinkStatus

log = logger(__name__)

# The answer did not come in time, on either side.
_LATE = (RemoteTimeoutError, DeadlineExceededError)


@dataclass(slots=True)
class LinkState:
    """A link with its breaker, its last failure and its response times.

    Attributes:
        wake: wakes the prober of a link whose breaker is closed.
        hurry: ends the prober's wait for an open breaker.
        up: whether requests were allowed at the last check.
        heard: whether the link has worked or failed at all.
        refused: whether the gateway refuses this device's credentials.
        problem: the last failure as a sentence; "" for none.
    """

    link: Link
    breaker: CircuitBreaker
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    timing: LinkTiming = field(init=False)
    up: bool = True
    heard: bool = False
    refused: bool = False
    problem: str = ""

    def __post_init__(self) -> None:
        self.timing = LinkTiming(in_turn=self.link.in_turn)

    def worked(self) -> None:
        self.heard, self.refused, self.problem = True, False, ""

    def failed(self, error: FirstlineError) -> None:
        """Records a fault, or a refusal of this device."""
        refused = isinstance(error, UnauthorizedError)
        if refused and not self.refused:  # once, not for each request
            log.warning("the gateway refuses this device", link=self.link.name, error=error.message)
        self.heard, self.refused, self.problem = True, refused, error.message

    def renewed(self) -> None:
        """Forgets earlier failures, because the device has a new certificate."""
        self.breaker.forget()
        self.wake.set()
        self.hurry.set()

    def timed(self, flight: Flight, seconds: float, now_s: float, outcome: InferResponse | BaseException) -> None:
        """Records the duration of a call that was answered, or whose caller stopped waiting.

        Other failures do not measure the time of an answer, nor do calls during an outage.

        Args:
            flight: the call.
            seconds: duration of the call.
            now_s: on a monotonic clock.
            outcome: how it ended.
        """
        if flight.lost:
            return
        if isinstance(outcome, InferResponse):
            self.timing.answered(flight.size_bytes, seconds, now_s, service_s_of(outcome), flight.ahead_bytes)
        elif isinstance(outcome, (*_LATE, asyncio.CancelledError)):
            self.timing.waited(flight.size_bytes, seconds, now_s, flight.ahead_bytes)

    @property
    def report(self) -> LinkReport:
        if self.refused:
            state = LinkStatus.REFUSED
        elif self.breaker.state is not State.CLOSED:
            state = LinkStatus.DOWN if self.breaker.state is State.OPEN else LinkStatus.PROBING
        else:
            state = LinkStatus.UP if self.heard else LinkStatus.UNKNOWN
        return LinkReport(state, self.link.address, self.problem)


def service_s_of(response: InferResponse) -> float | None:
    """Returns the gateway's own processing time (seconds); None if it does not say."""
    attempts = response.answer.attempts if response.answer is not None else ()
    return next((tried.ms / 1000 for tried in reversed(attempts) if tried.tier is Tier.CLOUD), None)
