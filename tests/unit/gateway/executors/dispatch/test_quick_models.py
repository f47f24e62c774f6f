"""Small models on the event loop next to several executors: their time counts, and failed batches move on."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

import pytest
from support.executors import SERVED, M, Timed
from support.gateway import Doubler, request_of
from support.waiting import result_of, until

from firstline_core.clock import SimulatedClock
from firstline_core.errors import DeadlineExceededError, InferenceError, InvalidTensorError, NotReadyError
from firstline_core.types import Arrays
from firstline_gateway.executors.base import ModelOnExecutor
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.executors.dispatch.member import Member
from firstline_gateway.executors.local import LocalExecutor
from firstline_gateway.serving.scheduling.admission import Bounds
from firstline_gateway.serving.scheduling.batcher import Batcher

T = TypeVar("T")


class Small(Doubler):
    """Takes a simulated half millisecond; may fail."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__(batch_s={1: 0.0001, 2: 0.0001})
        self._clock = clock
        self.error: Exception | None = None

    def run(self, rows: Arrays) -> Arrays:
        self._clock._now_s += 0.0005
        if self.error is not None:
            raise self.error
        return super().run(rows)

    def close(self) -> None:
        pass


class Site:
    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.model, self.far = Small(self.clock), Timed(self.clock, 0.01)
        self.local = LocalExecutor({M: self.model}, sessions=1, max_batch_rows=32, clock=self.clock)
        self.members = [
            Member("here", self.local, sessions=1),
            Member("far", self.far, sessions=1, profiled=lambda _: {1: 0.01}),
        ]
        for member in self.members:
            member.place(SERVED, member.profiled(SERVED))
        self.dispatcher = Dispatcher(self.members, clock=self.clock)
        self.late = 0
        self.batcher = Batcher(
            self.dispatcher, clock=self.clock, bounds=Bounds(1000, 1 << 30, 10.0, 32), on_late=self._count
        )

    def _count(self) -> None:
        self.late += 1

    async def ask(self, value: float = 1.0, timeout_s: float | None = None) -> Arrays:
        due_s = None if timeout_s is None else self.clock.monotonic_s() + timeout_s
        return await self.until(self.batcher.submit(M, request_of(value, deadline_s=due_s)))

    async def until(self, awaited: Awaitable[T]) -> T:
        return await result_of(awaited, self.clock)

    def batches(self, name: str) -> dict[str, int]:
        return next(dict(each.batches) for each in self.dispatcher.report().executors if each.name == name)

    @property
    def here(self) -> ModelOnExecutor:
        return self.dispatcher.report().executors[0].paces[0]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    yield site
    await site.dispatcher.close(1)


def told_of_being_left_alone(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of each line what was said last."""
    return [text.split(" last=")[1] for text in caplog.messages if text.startswith("executor ejected executor=here")]


async def test_a_local_failure_is_retried_elsewhere_and_ejects(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    assert (await site.ask(2.0))["probabilities"].tolist() == [[4.0]]
    assert site.batches("here") == {"answered": 1}
    site.model.error = InferenceError("CUDA error 700: an illegal memory access was encountered")
    for _ in range(20):
        assert (await site.ask(3.0))["probabilities"].tolist() == [[6.0]]
    assert site.batches("here") == {"answered": 1, "failed": 3}
    assert "It failed; it is tried again in" in site.here.problem
    assert len(site.far.batches) == 20
    assert told_of_being_left_alone(caplog) == [site.model.error.message]


async def test_a_wrong_request_is_refused_without_a_retry(site: Site) -> None:
    with pytest.raises(InvalidTensorError):
        await site.ask(-1.0)
    assert site.batches("here") == {"refused": 1}
    assert site.far.batches == []


async def test_a_retried_batch_is_answered_by_its_deadline_and_at_abandon(site: Site) -> None:
    site.model.error = InferenceError("no kernel")
    site.far.stop()
    with pytest.raises(DeadlineExceededError):
        await site.ask(timeout_s=0.05)
    assert site.late == 1
    waits = asyncio.ensure_future(site.batcher.submit(M, request_of(1.0)))
    await until(lambda: len(site.far.batches) == 2)
    site.batcher.abandon(NotReadyError("ends"))
    with pytest.raises(NotReadyError):
        await waits
    site.far.go_on()


async def test_an_unexpected_error_reaches_the_caller_and_counts(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.model.error = ValueError("dimensions")
    for _ in range(3):
        with pytest.raises(ValueError, match="dimensions"):
            await site.ask()
    assert site.batches("here") == {"failed": 3}
    assert told_of_being_left_alone(caplog) == ["dimensions"]
    assert (await site.ask(2.0))["probabilities"].tolist() == [[4.0]]
