"""A link that becomes slow and quick again: requests that would be late are held back, and later sent again."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from itertools import count

import pytest
from support.edge import Scene, answer_of, full_answer
from support.escalations import ScriptedLink, begun, settle

from firstline_core.clock import SimulatedClock
from firstline_core.errors import FirstlineError, RemoteTimeoutError
from firstline_core.types import InferRequest, InferResponse, Tier
from firstline_edge.cloud.breaker import CircuitBreaker
from firstline_edge.cloud.chain import LinkChain
from firstline_edge.cloud.client import EXPLORE_EVERY, LatenessGate
from firstline_edge.settings.settings import BreakerSection

DEADLINE_S = 0.2


class Street:
    """One device, one link of a pace that the test sets, a request now and then, each with 0.2 s of time."""

    def __init__(self, *, delivers: bool = True, gap_s: float = 0.3) -> None:
        self.gap_s = gap_s
        self.clock = SimulatedClock()
        self.pace_s = 0.05
        self.delivers = delivers
        link = ScriptedLink("link", self._answer)
        # What is shown here is the estimate, not the breaker.
        breaker = CircuitBreaker(self.clock, random.Random(1), BreakerSection(failure_threshold=1_000_000))
        self.chain = LinkChain([link], [breaker], self.clock)
        self.scene = Scene(clock=self.clock)
        self.scene.cloud.infer = self.chain.infer
        self.scene.cloud.predicted_s = self.chain.predicted_s
        self._values = count()
        self._deliveries: set[asyncio.Task[None]] = set()

    async def _answer(self, infer_request: InferRequest, timeout_s: float) -> InferResponse:
        await self.clock.sleep(min(self.pace_s, timeout_s))
        if self.pace_s > timeout_s:
            raise RemoteTimeoutError("late")
        return full_answer(infer_request, self.scene.cloud.digest)

    async def _deliver(self, infer_request: InferRequest) -> None:
        with contextlib.suppress(FirstlineError):
            await self.chain.infer(infer_request, None, [])

    async def go(self, requests: int) -> list[bool]:
        """Whether the full model answered, request by request; what was promised is sent at once, with patience."""
        found = []
        for _ in range(requests):
            value = 0.5 + next(self._values) / 1e5
            now_s = self.clock.monotonic_s()
            asking = await begun(self.scene.infer(value, deadline_s=now_s + DEADLINE_S))
            await self.clock.advance(self.gap_s)
            found.append(answer_of(await asking).tier is Tier.CLOUD)
            for item in self.scene.promises.items if self.delivers else ():
                task = asyncio.create_task(self._deliver(item.request))
                self._deliveries.add(task)
                task.add_done_callback(self._deliveries.discard)
            self.scene.promises.items.clear()
        return found

    async def close(self) -> None:
        await self.clock.advance(60)
        await settle()
        await self.chain.close()
        await self.scene.close()


@pytest.fixture
async def street() -> AsyncIterator[Street]:
    built = Street()
    yield built
    await built.close()


async def test_a_slow_link_gets_few_requests_until_it_is_fast_again(street: Street) -> None:
    punctuality = street.scene.gateway.lateness
    assert all(await street.go(40))
    street.pace_s = 1.0
    assert not any(await street.go(100))
    in_vain = 100 - punctuality.held_back
    assert in_vain <= 5 + 100 / EXPLORE_EVERY
    street.pace_s = 0.05
    back = await street.go(60)
    assert all(back[20:])


async def test_without_an_outbox_old_measurements_fade() -> None:
    street = Street(delivers=False, gap_s=2.0)
    punctuality = street.scene.gateway.lateness
    assert all(await street.go(40))
    street.pace_s = 1.0
    await street.go(60)
    street.pace_s = 0.05
    held_back = punctuality.held_back
    back = await street.go(250)
    assert all(back[210:])  # seven minutes
    assert punctuality.held_back > held_back
    assert punctuality.explored <= 310 / EXPLORE_EVERY
    await street.close()


def test_no_more_than_one_in_fifty_is_explored() -> None:
    punctuality = LatenessGate()
    allowed = [punctuality.allows(2.0, 1.0) for _ in range(1000)]
    assert sum(allowed) == punctuality.explored == 20
    assert punctuality.allows(1.0, 1.0) and punctuality.allows(None, 0.1)
    assert punctuality.held_back == 980
