"""Measuring waits for heat, battery, memory and requests, reports why, and continues."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.agent import edge_settings
from support.waiting import until

from firstline_core.adaptation.guards import Limits
from firstline_core.clock import SimulatedClock
from firstline_core.hardware.readings import NOTHING_READ, Absent, Measured, Modelled, Snapshot
from firstline_core.profile.measure import Need
from firstline_edge.profiling.gate import Bounds, Gate, bounds_of, cause_to_end, cause_to_wait, never

MB = 1 << 20
LIMITS = Limits(heat_c=80, heat_margin_c=4, memory_reserve_bytes=64 * MB)
BOUNDS = Bounds(LIMITS, battery=0.5, cores=4.0)
NEED = Need("small", memory_bytes=20 * MB, cores=1.0)
COOL = Snapshot(
    temperature_c={"soc": Measured(50, "/t")},
    battery_share=Measured(0.9, "/b"),
    powered=Measured(0, "/p"),
    memory_total_bytes=Measured(1000 * MB, "/m"),
    memory_available_bytes=Measured(500 * MB, "/m"),
    queue_items=Measured(0, "/q"),
)


def now(**readings: Any) -> Snapshot:
    return replace(COOL, **readings)


def hot(celsius: float) -> Snapshot:
    return now(temperature_c={"soc": Measured(celsius, "/t")})


def charged(share: float, powered: float = 0) -> Snapshot:
    return now(battery_share=Measured(share, "/b"), powered=Measured(powered, "/p"))


def free(mib: float) -> Snapshot:
    return now(memory_available_bytes=Measured(mib * MB, "/m"))


def kind(snapshot: Snapshot, busy: float = 0.0, need: Need = NEED, waits: str = "", bounds: Bounds = BOUNDS) -> str:
    cause = cause_to_wait(snapshot, busy, need, bounds, waits)
    return "" if cause is None else cause.kind


@pytest.mark.parametrize(
    ("snapshot", "waits", "expected"),
    [
        (COOL, "", ""),
        (hot(71), "", ""),
        (hot(72), "", "heat"),  # a second margin below the guard that would have the variants step down
        (hot(71), "heat", "heat"),  # on it goes where that is over for good
        (hot(67), "heat", ""),
        (now(throttling={"under_voltage": Measured(1, "/u")}), "", "heat"),
        (now(throttling={"under_voltage": Measured(0, "/u")}), "", ""),
        (charged(0.49), "", "battery"),
        (charged(0.5), "", ""),
        (charged(0.5), "battery", "battery"),
        (charged(0.55), "battery", ""),
        (charged(0.05, powered=1), "battery", ""),
        (free(101), "", ""),  # 64 reserved, a quarter of that as a margin, 20 needed
        (free(99), "", "memory"),
        (now(memory_stalled_share=Measured(0.2, "/psi")), "", "memory"),
        (now(queue_items=Measured(1, "/q")), "", "requests"),
    ],
)
def test_a_point_begins_when_all_guards_have_room(snapshot: Snapshot, waits: str, expected: str) -> None:
    assert kind(snapshot, waits=waits) == expected


def test_missing_sensors_do_not_block_measuring() -> None:
    assert kind(NOTHING_READ) == ""
    assert kind(now(battery_share=Modelled(0.1, "stated"), temperature_c={"soc": Absent("none")})) == ""


def test_requests_have_priority() -> None:
    assert kind(COOL, busy=2.0) == ""
    assert kind(COOL, busy=2.1) == "requests"
    assert kind(COOL, busy=1.5, waits="requests") == "requests"
    assert kind(COOL, busy=0.9, waits="requests") == ""


def test_a_shared_quota_leaves_cores_to_requests() -> None:
    # Where the group has used it up the kernel stops all of it, whatever its priority.
    quota = Bounds(LIMITS, cores=1.5, shared_quota=True)
    assert kind(COOL, busy=0.4, bounds=quota) == ""
    assert kind(COOL, busy=0.6, bounds=quota) == "requests"
    one = Bounds(LIMITS, cores=1.0, shared_quota=True)
    assert kind(COOL, busy=0.04, bounds=one) == ""
    assert kind(COOL, busy=0.2, bounds=one) == "requests"


def test_a_sustained_point_does_not_wait_to_cool() -> None:
    heated = replace(NEED, heats=True)
    assert kind(hot(79), need=heated) == ""
    assert cause_to_end(hot(85), heated, LIMITS) is None


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [(hot(75), ""), (hot(76), "heat"), (free(65), ""), (free(63), "memory"), (NOTHING_READ, "")],
)
def test_a_point_ends_when_variants_would_step_down(snapshot: Snapshot, expected: str) -> None:
    cause = cause_to_end(snapshot, NEED, LIMITS)
    assert (cause.kind if cause is not None else "") == expected


def test_a_point_beyond_the_devices_memory_never_waits() -> None:
    assert never(COOL, NEED, LIMITS) == ""
    large = replace(NEED, memory_bytes=950 * MB)
    assert never(COOL, large, LIMITS) == "It needs 1080 MB of memory with the reserve; the device has 1049 MB in all."
    assert never(NOTHING_READ, large, LIMITS) == ""


class Device:
    """The readings and the processor time that a gate reads."""

    def __init__(self) -> None:
        self.now = COOL
        self.used_s = 0.0
        self.clock = SimulatedClock()
        self.said: list[str] = []
        self.gate = Gate(lambda: self.now, BOUNDS, self.clock, lambda: self.used_s)

    async def say(self, sentence: str) -> None:
        self.said.append(sentence)

    async def asleep(self) -> None:
        async def so() -> bool:
            return self.clock.sleepers > 0

        await until(so)


async def test_a_long_wait_is_reported_once() -> None:
    device = Device()
    device.now = hot(74)
    admitted = asyncio.create_task(device.gate.admit(NEED, device.say))
    await device.asleep()
    for _ in range(6):
        await device.clock.advance(5)
    assert device.said == ["Measuring waits for the device to cool: it is at 74 C, and continues below 68 C."]
    device.now = charged(0.3)
    await device.clock.advance(5)
    assert "the battery has 30 %" in device.said[-1]
    assert not admitted.done()
    device.now = COOL
    await device.clock.advance(5)
    assert await admitted == ""
    assert len(device.said) == 3 and device.said[-1] == ""


async def test_a_short_wait_is_not_reported() -> None:
    device = Device()
    device.now = free(10)
    admitted = asyncio.create_task(device.gate.admit(NEED, device.say))
    await device.asleep()
    device.now = COOL
    await device.clock.advance(5)
    assert await admitted == ""
    assert device.said == []


async def test_request_load_is_the_agents_own_processor_time() -> None:
    device = Device()
    await device.clock.advance(10)
    device.used_s = 30.0  # three of four cores
    admitted = asyncio.create_task(device.gate.admit(NEED, device.say))
    await device.asleep()
    assert not admitted.done()
    await device.clock.advance(5)  # and none since
    assert await admitted == ""


def test_bounds_come_from_the_settings(tmp_path: Path) -> None:
    settings = edge_settings(tmp_path, fleet__profiling_battery=0.7, costs__heat_limit_c=70.0)
    bounds = bounds_of(settings)
    assert (bounds.battery, bounds.limits.heat_c) == (0.7, 70.0)
    assert bounds.cores > 0
