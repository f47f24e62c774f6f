"""Equal work runs once; a caller that leaves or fails does not affect the others."""

import asyncio
from collections.abc import Sequence

import pytest
from support.escalations import begun, settle

from firstline_core.errors import LinkDownError
from firstline_edge.requests.single_flight import SingleFlight


class Work:
    """Doubles keys once `gate` is open; fails `failures` times before that."""

    def __init__(self, failures: int = 0) -> None:
        self.gate = asyncio.Event()
        self.calls: list[list[bytes]] = []
        self.failures = failures

    def of(self, *keys: bytes):
        async def compute(positions: Sequence[int]) -> list[bytes]:
            requested = [keys[position] for position in positions]
            self.calls.append(requested)
            await self.gate.wait()
            if self.failures:
                self.failures -= 1
                raise LinkDownError("down")
            return [key * 2 for key in requested]

        return keys, compute


@pytest.fixture
def flights() -> SingleFlight[bytes]:
    return SingleFlight()


@pytest.fixture
def work() -> Work:
    return Work()


async def test_overlapping_batches_compute_each_key_once(flights: SingleFlight[bytes], work: Work) -> None:
    first = asyncio.create_task(flights.run(*work.of(b"a", b"b", b"a")))
    second = await begun(flights.run(*work.of(b"b", b"c")))
    assert work.calls == [[b"a", b"b"], [b"c"]]
    work.gate.set()
    assert await first == [b"aa", b"bb", b"aa"]
    assert await second == [b"bb", b"cc"]


async def test_results_are_not_remembered(flights: SingleFlight[bytes], work: Work) -> None:
    work.gate.set()
    await flights.run(*work.of(b"a"))
    await flights.run(*work.of(b"a"))
    assert work.calls == [[b"a"], [b"a"]]


@pytest.mark.parametrize(("failures", "answered"), [(1, 4), (100, 0)])
async def test_others_retry_once_after_a_failure(flights: SingleFlight[bytes], failures: int, answered: int) -> None:
    work = Work(failures)
    tasks = [asyncio.create_task(flights.run(*work.of(b"a"))) for _ in range(5)]
    await settle()
    work.gate.set()
    first, *others = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(first, LinkDownError)
    assert others.count([b"aa"]) == answered
    assert sum(isinstance(other, LinkDownError) for other in others) == 4 - answered
    assert len(work.calls) == 2  # together, once


async def test_only_failed_keys_are_computed_again(flights: SingleFlight[bytes]) -> None:
    work = Work(failures=1)
    bad = await begun(flights.run(*work.of(b"bad", b"a")))
    good = await begun(flights.run(*work.of(b"b", b"a", b"c")))
    work.gate.set()
    with pytest.raises(LinkDownError):
        await bad
    assert await good == [b"bb", b"aa", b"cc"]
    assert work.calls == [[b"bad", b"a"], [b"b", b"c"], [b"a"]]


async def test_a_computation_continues_without_callers(flights: SingleFlight[bytes], work: Work) -> None:
    first = await begun(flights.run(*work.of(b"a")))
    first.cancel()
    await settle()
    late = await begun(flights.run(*work.of(b"a")))
    work.gate.set()
    assert await late == [b"aa"]
    assert work.calls == [[b"a"]]


async def test_close_cancels_running_work(flights: SingleFlight[bytes]) -> None:
    task = await begun(flights.run(*Work().of(b"a")))
    await flights.close()
    with pytest.raises(asyncio.CancelledError):
        await task


class TestWithoutKeeping:
    """A computation that its caller wants only for itself."""

    async def test_a_computation_ends_with_its_only_caller(self, flights: SingleFlight[bytes], work: Work) -> None:
        alone = await begun(flights.run(*work.of(b"a", b"b"), keep=False))
        alone.cancel()
        await settle()
        assert b"a" not in flights and b"b" not in flights
        work.gate.set()
        assert await flights.run(*work.of(b"a")) == [b"aa"]
        assert work.calls == [[b"a", b"b"], [b"a"]]

    async def test_a_caller_at_the_end_computes_again(self, flights: SingleFlight[bytes], work: Work) -> None:
        alone = await begun(flights.run(*work.of(b"a"), keep=False))
        alone.cancel()
        await asyncio.sleep(0)
        late = await begun(flights.run(*work.of(b"a")))
        work.gate.set()
        assert await late == [b"aa"]

    async def test_work_continues_for_callers_that_joined(self, flights: SingleFlight[bytes], work: Work) -> None:
        first = await begun(flights.run(*work.of(b"a", b"b"), keep=False))
        other = await begun(flights.run(*work.of(b"c", b"b")))  # waits for its own before it looks at the other
        first.cancel()
        await settle()
        work.gate.set()
        assert await other == [b"cc", b"bb"]
        assert work.calls == [[b"a", b"b"], [b"c"]]

    async def test_a_caller_that_only_joined_cancels_nothing(self, flights: SingleFlight[bytes], work: Work) -> None:
        owner = await begun(flights.run(*work.of(b"a")))
        guest = await begun(flights.run(*work.of(b"a"), keep=False))
        owner.cancel()
        guest.cancel()
        await settle()
        assert b"a" in flights
        await flights.close()
