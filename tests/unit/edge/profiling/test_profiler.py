"""Profile requests: in order, until the gateway has the profile."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.agent import edge_settings
from support.profiles import profile
from support.waiting import until

from firstline_core.clock import SimulatedClock
from firstline_core.errors import ConfigError, ConflictError, FirstlineError, LinkDownError
from firstline_core.fleet.twin import DesiredProfile, ProfilingState
from firstline_core.profile.profile import Profile
from firstline_edge.profiling.profiler import Profiler, profile_options

ONE, TWO = DesiredProfile("one", id="1"), DesiredProfile("two", id="2")
DONE, REFUSED, WAITING, MEASURING, UPLOADING = (
    ProfilingState.DONE,
    ProfilingState.REFUSED,
    ProfilingState.WAITING,
    ProfilingState.MEASURING,
    ProfilingState.UPLOADING,
)


class Device:
    """A profiler whose points are stated: what is measured, and what the gateway took, in order.

    Attributes:
        points: that each bundle has; of a bundle with none, measuring waits until it is ended.
        refusals: what the gateway says to the next uploads.
        waits: why measuring waits, until `goes_on`.
    """

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.points: dict[str, int] = {"one": 2, "two": 1}
        self.refusals: list[FirstlineError] = []
        self.measured: list[str] = []
        self.stored: list[Profile] = []
        self.changes = 0
        self.waits = ""
        self.goes_on = asyncio.Event()
        self.profiler = Profiler(
            self._measure, self._upload, clock=self.clock, rng=random.Random(1), on_change=self._changed
        )

    def states(self) -> dict[str, ProfilingState]:
        return {one.bundle: one.state for one in self.profiler.progress()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.profiler.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def is_so(self, **states: ProfilingState) -> None:
        await until(lambda: self.states() == states)

    def _changed(self) -> None:
        self.changes += 1

    async def _measure(self, request: DesiredProfile, on_progress: Callable[..., None]) -> Profile:
        if request.bundle not in self.points:
            raise ConfigError(f"This device does not have {request.bundle}.")
        self.measured.append(request.bundle)
        points = self.points[request.bundle]
        if self.waits:
            on_progress(message=self.waits)
            await self.goes_on.wait()
            on_progress(message="")
        if not points:
            await asyncio.Event().wait()
        for done in range(points + 1):
            on_progress(done=done, total=points)
            await asyncio.sleep(0)
        return profile(*range(1, points + 1), bundle=request.bundle, machine="cam")

    async def _upload(self, found: Profile) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.stored.append(found)


@pytest.fixture
def device() -> Device:
    return Device()


def test_the_settings_of_a_device_decide_how_it_measures(tmp_path: Path) -> None:
    stated = {"models__threads": 3, "costs__joules_per_core_second": 1.5, "hardware__power_rails": ("VDD_IN",)}
    options = profile_options(edge_settings(tmp_path, **stated))
    assert (options.own_threads, options.joules_per_core_s, options.power_rails) == (3, 1.5, ("VDD_IN",))
    assert options.variants == options.threads == ()


async def test_requests_are_measured_once_in_order(device: Device) -> None:
    device.profiler.receive((ONE, TWO))
    assert device.states() == {"one": WAITING, "two": WAITING}
    async with device.running():
        await device.is_so(one=DONE, two=DONE)
        assert [(one.done, one.total, one.version) for one in device.profiler.progress()] == [(2, 2, 1), (1, 1, 1)]
        device.profiler.receive((DesiredProfile("one", id="3"), TWO))
        await device.is_so(one=DONE, two=DONE)
    assert [found.bundle for found in device.stored] == ["one", "two", "one"]


async def test_a_broken_link_only_delays_the_upload(device: Device) -> None:
    device.refusals = [LinkDownError("The gateway is away."), LinkDownError("The gateway is away.")]
    device.profiler.receive((ONE,))
    async with device.running():
        await until(lambda: device.clock.sleepers)
        (entry,) = device.profiler.progress()
        assert (entry.state, entry.message) == (UPLOADING, "The gateway is away.")
        await device.clock.advance(3600)
        await device.is_so(one=DONE)
    assert len(device.measured) == len(device.stored) == 1


async def test_a_refused_upload_ends_the_request(device: Device) -> None:
    device.refusals = [ConflictError("It is no longer requested.")]
    device.profiler.receive((ONE,))
    async with device.running():
        await device.is_so(one=REFUSED)
    assert device.profiler.progress()[0].message == "It is no longer requested."
    assert not device.stored


async def test_a_cancelled_request_makes_way_for_the_next(device: Device) -> None:
    device.points["one"] = 0
    device.profiler.receive((ONE, TWO))
    async with device.running():
        await device.is_so(one=MEASURING, two=WAITING)
        device.profiler.receive((TWO,))
        await device.is_so(two=DONE)
    assert [found.bundle for found in device.stored] == ["two"]


async def test_an_equal_request_continues(device: Device) -> None:
    device.waits = "The battery is low."
    device.profiler.receive((ONE,))
    async with device.running():
        await device.is_so(one=MEASURING)
        device.profiler.receive((ONE,))
        for _ in range(10):  # turns of the loop in which it would be begun again
            await asyncio.sleep(0)
        device.goes_on.set()
        await device.is_so(one=DONE)
    assert len(device.measured) == 1


async def test_a_missing_bundle_does_not_block_other_requests(device: Device) -> None:
    del device.points["one"]
    device.profiler.receive((ONE, TWO))
    async with device.running():
        await device.is_so(one=REFUSED, two=DONE)
    assert device.profiler.progress()[0].message == "This device does not have one."


async def test_progress_reports_are_rate_limited(device: Device) -> None:
    device.points["one"] = 100
    device.profiler.receive((ONE,))
    async with device.running():
        await device.is_so(one=DONE)
    assert device.changes < 10


async def test_the_reason_of_a_wait_is_reported_and_removed(device: Device) -> None:
    device.waits = "Measuring waits for the device to cool."
    device.profiler.receive((ONE,))
    async with device.running():

        def is_reported() -> bool:
            (entry,) = device.profiler.progress()
            return (entry.state, entry.message) == (MEASURING, "Measuring waits for the device to cool.")

        await until(is_reported)
        device.goes_on.set()
        await device.is_so(one=DONE)
    assert device.profiler.progress()[0].message == ""


async def test_a_long_reason_is_cut(device: Device) -> None:
    device.waits = "Measuring waits for the device to cool. " * 20
    device.profiler.receive((ONE,))
    async with device.running():
        await until(lambda: device.profiler.progress()[0].message)
        (progress,) = device.profiler.progress()
        assert progress.message == device.waits[:500]
