"""Measuring waits for heat, battery, memory and requests, reports why, and continues."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.agent import edge_settings

from firstline_core.adaptation.guards import Limits
from firstline_core.hardware.readings import NOTHING_READ, Absent, Measured, Modelled, Snapshot
from firstline_core.profile.measure import Need
from firstline_edge.profiling import gate
from firstline_edge.profiling.gate import DeviceGate, MeasuringBounds, bounds_of, cause_to_end, cause_to_wait, never

MB = 1 << 20
LIMITS = Limits(heat_c=80, heat_margin_c=4, memory_reserve_bytes=64 * MB)
BOUNDS = MeasuringBounds(LIMITS, battery=0.5, cores=4.0)
NEED = Need(memory_bytes=20 * MB, cores=1.0)
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


def kind(snapshot: Snapshot, busy: float = 0.0, need: Need = NEED, bounds: MeasuringBounds = BOUNDS) -> str:
    cause = cause_to_wait(snapshot, busy, need, bounds)
    return "" if cause is None else cause.kind


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        (COOL, ""),
        (hot(71), ""),
        (hot(72), "heat"),  # a second margin below the guard that would have the variants step down
        (now(throttling={"under_voltage": Measured(1, "/u")}), "heat"),
        (now(throttling={"under_voltage": Measured(0, "/u")}), ""),
        (charged(0.49), "battery"),
        (charged(0.5), ""),
        (charged(0.05, powered=1), ""),
        (free(101), ""),  # 64 reserved, a quarter of that as a margin, 20 needed
        (free(99), "memory"),
        (now(memory_stalled_share=Measured(0.2, "/psi")), "memory"),
        (now(queue_items=Measured(1, "/q")), "requests"),
    ],
)
def test_a_point_begins_when_all_guards_have_room(snapshot: Snapshot, expected: str) -> None:
    assert kind(snapshot) == expected


def test_missing_sensors_do_not_block_measuring() -> None:
    assert kind(NOTHING_READ) == ""
    assert kind(now(battery_share=Modelled(0.1, "stated"), temperature_c={"soc": Absent("none")})) == ""


def test_requests_have_priority() -> None:
    assert kind(COOL, busy=2.0) == ""
    assert kind(COOL, busy=2.1) == "requests"


def test_a_shared_quota_leaves_cores_to_requests() -> None:
    # Where the group has used it up the kernel stops all of it, whatever its priority.
    quota = MeasuringBounds(LIMITS, cores=1.5, shared_quota=True)
    assert kind(COOL, busy=0.4, bounds=quota) == ""
    assert kind(COOL, busy=0.6, bounds=quota) == "requests"
    one = MeasuringBounds(LIMITS, cores=1.0, shared_quota=True)
    assert kind(COOL, busy=0.04, bounds=one) == ""
    assert kind(COOL, busy=0.2, bounds=one) == "requests"


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [(hot(75), ""), (hot(76), "too hot"), (free(65), ""), (free(63), "memory"), (NOTHING_READ, "")],
)
def test_a_point_ends_when_variants_would_step_down(snapshot: Snapshot, expected: str) -> None:
    assert (expected in (why := cause_to_end(snapshot, LIMITS))) and bool(why) == bool(expected)


def test_a_point_beyond_the_devices_memory_never_waits() -> None:
    assert never(COOL, NEED, LIMITS) == ""
    large = replace(NEED, memory_bytes=950 * MB)
    assert never(COOL, large, LIMITS) == "It needs 1080 MB of memory with the reserve; the device has 1049 MB in all."
    assert never(NOTHING_READ, large, LIMITS) == ""


class Device:
    """The readings and the processor time that a gate reads; they change with each pause.

    Args:
        readings: one after the other; the last one stays.
    """

    def __init__(self, *readings: Snapshot, used_s: float = 0.0) -> None:
        self.readings = list(readings)
        self.used_s = used_s
        self.said: list[str] = []
        self.gate = DeviceGate(lambda: self.readings[0], BOUNDS, self.said.append, self._pause, lambda: self.used_s)

    def _pause(self, seconds: float) -> None:
        if seconds in (0, gate.CHECK_S):
            self.readings[:] = self.readings[1:] or self.readings


def test_a_long_wait_is_reported_once() -> None:
    device = Device(*[hot(74)] * 6, *[charged(0.3)] * 3, COOL)
    assert device.gate.wait(NEED) == ""
    assert len(device.said) == 3 and device.said[-1] == ""
    assert device.said[0].startswith("Measuring waits for the device to cool below 72 C: 74.0 C")
    assert "the battery has 30 %" in device.said[1]


def test_a_short_wait_is_not_reported() -> None:
    device = Device(free(10), COOL)
    assert device.gate.wait(NEED) == "" and device.said == []


def test_request_load_is_the_agents_own_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(gate.time, "monotonic", lambda: now_s[0])
    device = Device(COOL)
    now_s[0], device.used_s = 110.0, 30.0  # three of four cores

    def pause(seconds: float) -> None:
        now_s[0] += seconds
        device.said.append("waited")

    device.gate.pause = pause
    assert device.gate.wait(NEED) == "" and device.said == ["waited"]


def test_a_new_gate_sees_that_the_agent_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(gate.time, "monotonic", lambda: now_s[0])
    device, paused = Device(COOL), list[float]()

    def pause(seconds: float) -> None:
        now_s[0] += seconds
        device.used_s += 0 if paused else 4 * seconds
        paused.append(seconds)

    device.gate.pause = pause
    assert device.gate.wait(NEED) == "" and paused == [1.0, gate.CHECK_S]


def test_bounds_come_from_the_settings(tmp_path: Path) -> None:
    settings = edge_settings(tmp_path, fleet__profiling_battery=0.7, costs__heat_limit_c=70.0)
    bounds = bounds_of(settings)
    assert (bounds.battery, bounds.limits.heat_c) == (0.7, 70.0)
    assert bounds.cores > 0
