"""The circuit breaker, which decides whether a link may be used, and the retry budget of all links. No I/O."""

from __future__ import annotations

import random
from enum import StrEnum

from firstline_core.clock import Clock
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.routing.token_bucket import TokenBucket
from firstline_edge.settings.settings import BreakerSection, RetriesSection

_BREAKER, _RETRIES = BreakerSection(), RetriesSection()


class BreakerState(StrEnum):
    CLOSED = "closed"  # requests pass
    OPEN = "open"  # nothing passes
    HALF_OPEN = "half_open"  # one probe is in progress, no request passes


class CircuitBreaker:
    """The circuit breaker of a link: closed, open or half-open.

    Requests pass only while it is closed. Before a probe, the caller asks `try_probe`, which allows one probe at a
    time, and none while the breaker must stay open. A successful probe closes a half-open breaker on trial: the first
    failure of a request opens it again, for twice as long, because a gateway may answer probes and nothing else. The
    success of a request ends the trial. A probe that fails after such a success is ignored, and so is a probe that
    began before the breaker opened and succeeds.

    The wait is drawn from [0, its nominal length], which prevents a thundering herd when a gateway or a broker returns.

    Args:
        clock: for monotonic time.
        rng: for the jitter.
        settings: thresholds and waits.
    """

    def __init__(self, clock: Clock, rng: random.Random, settings: BreakerSection = _BREAKER) -> None:
        self._clock = clock
        self._rng = rng
        self._settings = settings
        self.state = BreakerState.CLOSED
        self._failures = 0
        self._openings = 0  # in a row, without a successful request in between
        self._retry_at_s = 0.0
        self._probing = False
        self._outdone = False  # a request succeeded since the probe began

    @property
    def allows_requests(self) -> bool:
        return self.state is BreakerState.CLOSED

    @property
    def retry_in_s(self) -> float:
        """Seconds until a probe is allowed; 0 if it is allowed now, or not needed."""
        return max(0.0, self._retry_at_s - self._clock.monotonic_s()) if self.state is BreakerState.OPEN else 0.0

    def try_probe(self) -> bool:
        """Returns whether the caller may send the one probe; it must then call `probe_succeeded` or `probe_failed`."""
        if self._probing or self.retry_in_s > 0:
            return False
        if self.state is BreakerState.OPEN:
            self.state = BreakerState.HALF_OPEN
        self._probing, self._outdone = True, False
        return True

    def probe_succeeded(self) -> None:
        """Closes a half-open breaker, on trial."""
        self._probing = False
        if self.state is BreakerState.HALF_OPEN:
            self.state = BreakerState.CLOSED
            self._failures = 0

    def probe_failed(self) -> None:
        """Opens the breaker, even a closed one: a probe has enough time and cannot be refused."""
        self._probing = False
        if self.state is not BreakerState.OPEN and not self._outdone:
            self._open()

    def succeeded(self) -> None:
        """Records that the gateway answered a request, whatever the answer."""
        self.state = BreakerState.CLOSED
        self._failures = 0
        self._openings = 0
        self._outdone = True

    def forget(self) -> None:
        """Forgets earlier failures: the next probe is allowed at once."""
        self._failures = self._openings = 0
        self._retry_at_s = self._clock.monotonic_s()

    def failed(self) -> None:
        """Records a failure of the link. Requests that were in progress when the breaker opened change nothing."""
        if self.state is not BreakerState.CLOSED:
            return
        self._failures += 1
        on_trial = self._openings > 0
        if on_trial or self._failures >= self._settings.failure_threshold:
            self._open()

    def _open(self) -> None:
        base_s, max_s = self._settings.open_ms / 1000, self._settings.open_max_ms / 1000
        open_s = full_jitter_s(self._rng, self._openings, base_s=base_s, max_s=max_s)
        self.state = BreakerState.OPEN
        self._openings += 1
        self._retry_at_s = self._clock.monotonic_s() + open_s


class RetryBudget:
    """Counts calls and allows retries, which limits the additional load on a gateway in trouble.

    It follows Finagle (`com.twitter.finagle.service.RetryBudget`): each call adds a share of a retry, a few retries are
    free each second so that a quiet device can retry at all, and unused retries accumulate up to a limit. gRPC's retry
    throttling (proposal A6) serves the same purpose. All links share one budget, because they lead to one gateway.

    Two kinds of retries use it: the next link of a request whose first link failed, and redeliveries of the outbox.
    Probes do not use it, because there is one at a time; nor do first deliveries of the outbox.

    Args:
        clock: for the free retries.
        settings: how much.

    Attributes:
        retries: allowed so far.
        denied: refused so far.
    """

    def __init__(self, clock: Clock, settings: RetriesSection = _RETRIES) -> None:
        self._clock = clock
        self._share = settings.share
        self._bucket = TokenBucket(settings.burst, settings.per_second)
        self.retries = self.denied = 0

    def called(self) -> None:
        """Counts a first try."""
        self._bucket.earn(self._share)

    def may_retry(self) -> bool:
        """Returns whether a retry is allowed, and counts it."""
        allowed = self._bucket.take(self._clock.monotonic_s())
        self.retries += allowed
        self.denied += not allowed
        return allowed

    @property
    def wait_s(self) -> float:
        """Seconds after which a retry is certainly allowed."""
        return self._bucket.wait_s(self._clock.monotonic_s())
