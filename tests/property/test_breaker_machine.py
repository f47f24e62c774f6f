"""Whatever happens in whatever order: one probe at most, nothing passes while open, and a success always heals."""

import asyncio
import random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from firstline_core.clock import SimulatedClock
from firstline_edge.links.breaker import BreakerSettings, CircuitBreaker, State

SETTINGS = BreakerSettings(failure_threshold=3, open_s=1.0, open_max_s=30.0)


class Breaker(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.clock = SimulatedClock()
        self.breaker = CircuitBreaker(self.clock, random.Random(seed), SETTINGS)
        self.probing = False
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
        self.probing = False  # its verdict no longer counts as that of the half-open probe
        assert self.breaker.state is State.CLOSED

    @rule()
    def probe(self) -> None:
        due = self.breaker.state is State.OPEN and self.breaker.retry_in_s == 0
        granted = self.breaker.try_probe()
        assert granted == due
        assert not (granted and self.probing)
        self.probing = self.probing or granted

    @precondition(lambda self: self.probing)
    @rule(good=st.booleans())
    def probe_ends(self, good: bool) -> None:
        self.probing = False
        if good:
            self.breaker.probe_succeeded()
            self.failures = 0
            assert self.breaker.allows_requests
        else:
            self.breaker.probe_failed()
            assert not self.breaker.allows_requests

    @invariant()
    def waits_are_bounded(self) -> None:
        assert 0 <= self.breaker.retry_in_s <= SETTINGS.open_max_s

    @invariant()
    def half_open_means_one_probe(self) -> None:
        if self.breaker.state is State.HALF_OPEN:
            assert self.probing

    @invariant()
    def stays_closed_below_the_threshold(self) -> None:
        if self.breaker.allows_requests:
            assert self.failures < SETTINGS.failure_threshold


TestBreaker = Breaker.TestCase
