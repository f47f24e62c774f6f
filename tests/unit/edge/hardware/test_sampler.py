"""Reading sensors while requests are served, with drivers that may hang."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from support.boards import board
from support.logs import captured_lines
from support.waiting import until

from firstline_core.clock import SimulatedClock
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import NOTHING_READ, Absent, Measured, Modelled, Reading, Snapshot, measured
from firstline_core.hardware.sensors import Sensors
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.units import MIB
from firstline_edge.hardware.sampler import (
    FASTEST_BYTES_PER_S,
    SHORTEST_PAUSE_S,
    MemoryThresholds,
    Sampler,
    add_sensor_gauges,
)


class Driver:
    """Sensors that count their readings and hang on demand."""

    def __init__(self) -> None:
        self.reads = 0
        self.answers = threading.Event()
        self.answers.set()
        self.fault: Exception | None = None
        self.looks = 0
        self.left_bytes = 1 << 30
        self.tree = Tree()

    def read(self, now_s: float) -> Snapshot:
        self.answers.wait(30)
        self.reads += 1
        if self.fault is not None:
            raise self.fault
        left = Measured(float(self.left_bytes), "/proc/meminfo")
        return Snapshot(at_s=now_s, cpu_busy_share=Measured(0.5, "/proc/stat"), memory_available_bytes=left)

    def memory_available(self) -> Reading:
        self.looks += 1
        if self.fault is not None:
            raise self.fault
        return Measured(float(self.left_bytes), "/proc/meminfo")


class Listener:
    """Receives the readings once a test has set the callback."""

    def __init__(self) -> None:
        self.receive: Callable[[Snapshot], None] = lambda _: None

    def __call__(self, snapshot: Snapshot) -> None:
        self.receive(snapshot)


@asynccontextmanager
async def running(
    driver: Driver,
    clock: SimulatedClock,
    thresholds: MemoryThresholds = MemoryThresholds(),  # noqa: B008 (it has no state)
    listener: Callable[[Snapshot], None] = lambda _: None,
) -> AsyncIterator[Sampler]:
    sampler = Sampler(driver, 5.0, clock, thresholds=thresholds, on_reading=listener)
    task = asyncio.create_task(sampler.run())
    try:
        yield sampler
    finally:
        driver.answers.set()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_the_latest_reading_is_there_at_once() -> None:
    driver, clock = Driver(), SimulatedClock(100.0)
    async with running(driver, clock) as sampler:
        assert sampler.latest is NOTHING_READ
        await until(lambda: driver.reads == 1 and clock.sleepers == 2)
        assert sampler.latest.at_s == 100.0
        await clock.advance(5.0)
        await until(lambda: sampler.latest.at_s == 105.0)


async def test_short_memory_triggers_one_full_reading() -> None:
    driver, clock, listener = Driver(), SimulatedClock(), Listener()
    async with running(driver, clock, MemoryThresholds((64 * MIB, 32 * MIB)), listener) as sampler:
        await until(lambda: driver.reads == 1 and clock.sleepers == 2)
        seen: list[Snapshot] = []
        listener.receive = seen.append
        driver.left_bytes = 63 * MIB
        driver.answers.clear()
        await clock.advance(0.9)
        assert driver.looks == 0  # 1 GiB less 64 MiB, at 1 GiB/s
        await clock.advance(0.1)
        await until(lambda: len(seen) == 1)  # before any driver has answered
        assert measured(seen[0].memory_available_bytes) == 63 * MIB
        assert measured(seen[0].cpu_busy_share) == 0.5
        driver.answers.set()
        await until(lambda: driver.reads == 2 and clock.sleepers == 2)
        assert sampler.latest.at_s == 960 / 1024 and (driver.looks, len(seen)) == (1, 2)
        for looks in range(2, 12):  # the next low may be near
            await clock.advance(0.1)
            await until(lambda looks=looks: driver.looks == looks and clock.sleepers == 2)
        assert driver.reads == 2
        driver.left_bytes = 31 * MIB
        await clock.advance(0.1)
        await until(lambda: driver.reads == 3 and clock.sleepers == 2)
        looks = driver.looks
        await clock.advance(4.9)  # there is no low below
        assert (driver.looks, driver.reads) == (looks, 3)
        await clock.advance(0.1)
        await until(lambda: driver.reads == 4)


async def test_memory_is_not_read_early_without_thresholds() -> None:
    driver, clock = Driver(), SimulatedClock()
    driver.left_bytes = 1
    async with running(driver, clock):
        for reads in range(1, 4):
            await until(lambda reads=reads: driver.reads == reads and clock.sleepers == 2)
            await clock.advance(5.0)
        assert driver.looks == 0


async def test_a_failed_memory_read_triggers_a_full_reading() -> None:
    driver, clock = Driver(), SimulatedClock()
    with captured_lines() as lines:
        async with running(driver, clock, MemoryThresholds((64 * MIB,))) as sampler:
            await until(lambda: driver.reads == 1 and clock.sleepers == 2)
            driver.fault = KeyError("nobody foresaw it")
            await clock.advance(1.0)
            await until(lambda: driver.looks == 1 and driver.reads == 2)
            assert isinstance(sampler.latest.cpu_busy_share, Measured)
            driver.fault = None
            await until(lambda: clock.sleepers == 2)
            await clock.advance(1.0)
            await until(lambda: driver.looks == 2)
    assert [line["event"] for line in lines] == ["sensors not read; retrying"]


async def test_a_hanging_driver_expires_its_last_reading() -> None:
    driver, clock = Driver(), SimulatedClock()
    async with running(driver, clock) as sampler:
        await until(lambda: driver.reads == 1 and clock.sleepers == 2)
        driver.answers.clear()
        driver.tree.reading = "sys/class/hwmon/hwmon0/curr1_input"
        await clock.advance(29.0)
        assert isinstance(sampler.latest.cpu_busy_share, Measured)  # for a while an old reading is better than none
        await clock.advance(31.0)
        found = sampler.latest.cpu_busy_share
        assert isinstance(found, Absent)
        assert "a driver hangs (/sys/class/hwmon/hwmon0/curr1_input)" in found.reason
        assert isinstance(sampler.latest.hottest_c, Absent)
        driver.answers.set()
        await until(lambda: isinstance(sampler.latest.cpu_busy_share, Measured))


async def test_listeners_receive_absent_and_never_old_readings() -> None:
    driver, clock, seen, listener = Driver(), SimulatedClock(), list[Snapshot](), Listener()
    async with running(driver, clock, listener=listener) as sampler:
        await until(lambda: driver.reads == 1 and clock.sleepers == 2)
        listener.receive = seen.append
        driver.answers.clear()
        for _ in range(8):
            await clock.advance(5.0)
        assert [one.at_s for one in seen] == [35.0, 40.0]  # the reading began after 5 s
        assert all(isinstance(one.cpu_busy_share, Absent) for one in seen)
        driver.answers.set()
        await until(lambda: isinstance(sampler.latest.cpu_busy_share, Measured))
    assert [one.at_s for one in seen] == [35.0, 40.0, 40.0]


@pytest.mark.parametrize("fault", [OSError(24, "Too many open files"), MemoryError(), ValueError("nobody foresaw it")])
async def test_a_failed_reading_is_retried_and_absent_meanwhile(fault: Exception) -> None:
    driver, clock, seen, listener = Driver(), SimulatedClock(), list[Snapshot](), Listener()
    with captured_lines() as lines:
        async with running(driver, clock, listener=listener) as sampler:
            await until(lambda: driver.reads == 1 and clock.sleepers == 2)
            listener.receive, driver.fault = seen.append, fault
            for reads in range(2, 9):
                await clock.advance(5.0)
                await until(lambda reads=reads: driver.reads == reads and clock.sleepers == 2)
            assert isinstance(sampler.latest.cpu_busy_share, Absent)
            assert type(fault).__name__ in sampler.latest.cpu_busy_share.reason
            assert seen and isinstance(seen[-1].cpu_busy_share, Absent)
            driver.fault = None
            await clock.advance(5.0)
            await until(lambda: isinstance(sampler.latest.cpu_busy_share, Measured))
    assert [line["event"] for line in lines if line["event"].startswith("sensors not read")] == [
        "sensors not read; retrying"
    ]


async def test_a_refused_thread_does_not_end_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, clock = Driver(), SimulatedClock()
    start = threading.Thread.start

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with running(driver, clock) as sampler:
        await until(lambda: driver.reads == 1 and clock.sleepers == 2)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        for _ in range(8):
            await clock.advance(5.0)
            await until(lambda: clock.sleepers == 2)
        assert isinstance(sampler.latest.cpu_busy_share, Absent)
        assert "can't start new thread" in sampler.latest.cpu_busy_share.reason
        monkeypatch.setattr(threading.Thread, "start", start)
        await clock.advance(5.0)
        await until(lambda: isinstance(sampler.latest.cpu_busy_share, Measured))


async def test_a_failing_listener_receives_the_next_reading() -> None:
    """Guards must survive a moment without threads or memory."""
    driver, clock, seen = Driver(), SimulatedClock(100.0), list[float]()

    def fails(found: Snapshot) -> None:
        seen.append(found.at_s)
        raise RuntimeError("can't start new thread")

    with captured_lines() as lines:
        async with running(driver, clock, listener=fails) as sampler:
            await until(lambda: driver.reads == 1 and clock.sleepers == 2)
            await clock.advance(5.0)
            await until(lambda: driver.reads == 2 and clock.sleepers == 2)
            assert sampler.latest.at_s == 105.0
    assert seen == [100.0, 105.0]
    assert [line["event"] for line in lines] == ["sensor reading not handled"] * 2


async def test_a_recovered_reading_is_not_expired_at_once() -> None:
    driver, clock = Driver(), SimulatedClock(100.0)
    driver.fault = OSError("no memory")
    async with running(driver, clock) as sampler:
        for at in range(8):
            await until(lambda at=at: driver.reads == at + 1 and clock.sleepers == 2)
            await clock.advance(5.0)
        await until(lambda: isinstance(sampler.latest.cpu_busy_share, Absent))
        driver.fault = None
        await until(lambda: driver.reads >= 9 and clock.sleepers == 2)
        await clock.advance(5.0)
        await until(lambda: isinstance(sampler.latest.cpu_busy_share, Measured))
        await clock.advance(4.9)  # the watcher looks at each period while nothing was said
        assert isinstance(sampler.latest.cpu_busy_share, Measured)


async def test_a_stopped_sampler_has_absent_readings() -> None:
    driver, clock = Driver(), SimulatedClock()
    async with running(driver, clock) as sampler:
        await until(lambda: isinstance(sampler.latest.cpu_busy_share, Measured))
    assert isinstance(sampler.latest.cpu_busy_share, Absent)


def samples(metrics: RequestMetrics) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(metrics.render()[0].decode())
    return {
        (sample.name.removeprefix("firstline_edge_device_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("firstline_edge_device_")
    }


def test_measured_readings_are_gauges_and_absent_ones_missing(tmp_path: Path) -> None:
    metrics = RequestMetrics("edge")
    with board("jetson-orin-nano", tmp_path):
        now = Sensors(Tree(tmp_path)).read(1.0)
        add_sensor_gauges(metrics, lambda: now)
        found = samples(metrics)
    assert found["temperature_celsius", "tj-thermal"] == 73.906
    assert ("temperature_celsius", "cv0-thermal") not in found
    assert found["throttling", "gpu-throttle-alert"] == 1
    assert found["watts", "measured"] == found["rail_watts", "VDD_IN"]
    assert ("battery_ratio",) not in found
    assert found["memory_stalled_ratio",] == 0.125


def test_a_modelled_power_has_its_own_label() -> None:
    metrics, now = RequestMetrics("edge"), Snapshot(device_power_w=Modelled(4.5, "[costs]"))
    add_sensor_gauges(metrics, lambda: now)
    assert samples(metrics) == {("watts", "modelled"): 4.5}


THRESHOLDS = MemoryThresholds((64 * MIB, 32 * MIB))


@pytest.mark.parametrize(
    ("left_mib", "passed", "pause_s"),
    [
        (1088, 0, 1.0),
        (576, 0, 0.5),
        (64, 0, SHORTEST_PAUSE_S),
        (63.9, 1, SHORTEST_PAUSE_S),
        (32, 1, SHORTEST_PAUSE_S),
        (31.9, 2, math.inf),
        (0, 2, math.inf),
    ],
)
def test_less_memory_is_read_sooner(left_mib: float, passed: int, pause_s: float) -> None:
    assert (THRESHOLDS.passed(left_mib * MIB), THRESHOLDS.pause_s(left_mib * MIB)) == (passed, pause_s)


def test_memory_is_not_read_without_thresholds_or_readings() -> None:
    assert (THRESHOLDS.passed(None), THRESHOLDS.pause_s(None)) == (0, math.inf)
    assert (MemoryThresholds().passed(0.0), MemoryThresholds().pause_s(0.0)) == (0, math.inf)


@given(st.floats(0, 1e12), st.floats(0, FASTEST_BYTES_PER_S))
def test_a_threshold_is_missed_by_one_pause_at_most(left_bytes: float, per_s: float) -> None:
    for _ in range(1000):
        if THRESHOLDS.passed(left_bytes) == 2:
            break
        before = THRESHOLDS.passed(left_bytes)
        left_bytes -= per_s * THRESHOLDS.pause_s(left_bytes)
        if THRESHOLDS.passed(left_bytes) > before:
            assert left_bytes >= (64, 32)[before] * MIB - per_s * SHORTEST_PAUSE_S - 1
            break
