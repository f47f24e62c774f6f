"""Whatever happens in whatever order: one probe at most, nothing passes while open, and a success always heals."""

import asyncio
import random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from firstline_core.clock import SimulatedClock
from firstline_edge.cloud.breaker import BreakerState, CircuitBreaker
from firstline_edge.settings.settings import BreakerSection

SETTINGS = BreakerSection(failure_threshold=3, open_ms=1000, open_max_ms=30000)


class Breaker(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.clock = SimulatedClock()
        self.breaker = CircuitBreaker(self.clock, random.Random(seed), SETTINGS)
        self.probing = self.outdone = False
        self.failures = 0

    @rule(seconds=st.floats(0, 60))
    def time_passes(self, seconds: float) -> None:
        asyncio.run(self.clock.advance(seconds))

    @rule()
    def request_fails(self) -> None:
        if self.breaker.allows_requests:
            self.failures += 1
        self.breaker.failed()

    @rule()
    def request_succeeds(self) -> None:
        self.breaker.succeeded()
        self.failures = 0
        self.outdone = True  # a probe under way began before this proof
        assert self.breaker.state is BreakerState.CLOSED

    @rule()
    def probe(self) -> None:
        due = self.breaker.retry_in_s == 0 and not self.probing
        granted = self.breaker.try_probe()
        assert granted == due
        if granted:
            self.probing, self.outdone = True, False

    @precondition(lambda self: self.probing)
    @rule(good=st.booleans())
    def probe_ends(self, good: bool) -> None:
        before = self.breaker.state
        self.probing = False
        if good:
            self.breaker.probe_succeeded()
            if before is BreakerState.HALF_OPEN:
                self.failures = 0
            # One that began before the breaker opened says nothing of the time since.
            assert self.breaker.allows_requests == (before is not BreakerState.OPEN)
        else:
            self.breaker.probe_failed()
            assert self.breaker.allows_requests == (before is BreakerState.CLOSED and self.outdone)

    @invariant()
    def waits_are_bounded(self) -> None:
        assert 0 <= self.breaker.retry_in_s <= SETTINGS.open_max_ms / 1000

    @invariant()
    def half_open_means_one_probe(self) -> None:
        if self.breaker.state is BreakerState.HALF_OPEN:
            assert self.probing

    @invariant()
    def stays_closed_below_the_threshold(self) -> None:
        if self.breaker.allows_requests:
            assert self.failures < SETTINGS.failure_threshold


TestBreaker = Breaker.TestCase
