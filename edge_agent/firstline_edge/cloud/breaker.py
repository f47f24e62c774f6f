"""The circuit breaker: a state machine that says whether a link may be used. No I/O, no tasks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

from firstline_core.clock import Clock
from firstline_core.protocol.backoff import full_jitter_s


class State(StrEnum):
    CLOSED = "closed"  # requests pass
    OPEN = "open"  # nothing passes
    HALF_OPEN = "half_open"  # one probe is on its way, nothing else passes


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When to give a link up, and for how long.

    Args:
        failure_threshold: failures in a row that open the breaker.
        open_s: how long it then stays open; doubled each time that the link fails again at once.
        open_max_s: cap of that.
    """

    failure_threshold: int = 3
    open_s: float = 1.0
    open_max_s: float = 30.0


class CircuitBreaker:
    """Closed, open, half-open.

    Requests pass only while it is closed. Whoever probes asks `try_probe` first, which lets one probe through at a
    time, and none while the breaker must stay open. A probe of a half-open breaker that succeeds closes it on trial:
    the first failure of a real request opens it again, for twice as long, because a far side may answer probes and
    nothing else. A real success ends the trial, at any moment: no better proof exists. A probe that began before
    that proof, and fails after it, proves nothing; nor does one that began before the breaker opened, and succeeds.

    The wait is drawn from [0, its nominal length], so that a fleet that lost its gateway or its broker together does
    not return together.

    Args:
        clock: its monotonic time.
        rng: for the jitter.
        settings: thresholds and waits.
    """

    def __init__(self, clock: Clock, rng: random.Random, settings: BreakerSettings = BreakerSettings()) -> None:
        self._clock = clock
        self._rng = rng
        self._settings = settings
        self._state = State.CLOSED
        self._failures = 0
        self._openings = 0  # in a row, without a real success in between
        self._retry_at_s = 0.0
        self._probing = False
        self._outdone = False  # a real success came since the probe began

    @property
    def state(self) -> State:
        return self._state

    @property
    def allows_requests(self) -> bool:
        return self._state is State.CLOSED

    @property
    def retry_in_s(self) -> float:
        """Seconds until a probe may pass; 0 if it may now, or if none is needed."""
        return max(0.0, self._retry_at_s - self._clock.monotonic_s()) if self._state is State.OPEN else 0.0

    def try_probe(self) -> bool:
        """Whether the caller may send the one probe; it must then report `probe_succeeded` or `probe_failed`."""
        if self._probing or self.retry_in_s > 0:
            return False
        if self._state is State.OPEN:
            self._state = State.HALF_OPEN
        self._probing, self._outdone = True, False
        return True

    def probe_succeeded(self) -> None:
        """Closes from half-open, on trial."""
        self._probing = False
        if self._state is State.HALF_OPEN:
            self._state = State.CLOSED
            self._failures = 0

    def probe_failed(self) -> None:
        """Opens, also from closed: a probe has time enough and asks for nothing that could be refused."""
        self._probing = False
        if self._state is not State.OPEN and not self._outdone:
            self._open()

    def succeeded(self) -> None:
        """A request was answered by the far side, whatever the answer says."""
        self._state = State.CLOSED
        self._failures = 0
        self._openings = 0
        self._outdone = True

    def forget(self) -> None:
        """What was found so far holds no longer: the next probe may pass at once, and no failure counts twice."""
        self._failures = self._openings = 0
        self._retry_at_s = self._clock.monotonic_s()

    def failed(self) -> None:
        """A request failed by the link's fault. Those that were under way when it opened change nothing."""
        if self._state is not State.CLOSED:
            return
        self._failures += 1
        on_trial = self._openings > 0
        if on_trial or self._failures >= self._settings.failure_threshold:
            self._open()

    def _open(self) -> None:
        base_s, max_s = self._settings.open_s, self._settings.open_max_s
        open_s = full_jitter_s(self._rng, self._openings, base_s=base_s, max_s=max_s)
        self._state = State.OPEN
        self._openings += 1
        self._retry_at_s = self._clock.monotonic_s() + open_s
