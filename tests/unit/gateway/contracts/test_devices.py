"""What devices say of their own audits, as a gateway remembers it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.logs import captured_lines

from firstline_core.types import ContractAlarm, ModelKey
from firstline_gateway.contracts.devices import ActiveDevices, DeviceAlarm, DeviceAlarms
from firstline_gateway.contracts.records import HOUR_S

M, N = ModelKey("digits", 1), ModelKey("digits", 2)
A, B = "a" * 64, "b" * 64


def test_repeated_reports_are_one_alarm_and_one_log_line() -> None:
    alarms = DeviceAlarms()
    with captured_lines() as lines:
        for now_s in (10.0, 20.0, 30.0):
            alarms.report(M, "cam", ContractAlarm(A, "missed person"), now_s, monotonic_s=now_s)
    assert alarms.listed(30.0) == [DeviceAlarm(M, "cam", A, since_s=10.0, last_s=30.0, event="missed person")]
    (line,) = lines
    assert (line["event"], line["device"]) == ("device contract broken by its own audits", "cam")
    assert line["contract_event"] == "missed person"


def test_an_alarm_ends_when_the_device_says_it_no_more_and_may_begin_again() -> None:
    alarms = DeviceAlarms()
    alarms.report(M, "cam", ContractAlarm(A), 10.0, monotonic_s=10.0)
    with captured_lines() as lines:
        for now_s in (20.0, 30.0):
            alarms.report(M, "cam", None, now_s, monotonic_s=now_s)
    assert alarms.listed(30.0) == [DeviceAlarm(M, "cam", A, 10.0, 20.0, ended_s=20.0)]
    assert [line["event"] for line in lines] == ["device alarm ended"]
    alarms.report(M, "cam", ContractAlarm(A), 40.0, monotonic_s=40.0)
    assert alarms.listed(40.0) == [DeviceAlarm(M, "cam", A, 40.0, 40.0)]


def test_each_device_version_and_variant_is_its_own() -> None:
    alarms = DeviceAlarms()
    alarms.report(M, "cam", ContractAlarm(A), 10.0, monotonic_s=10.0)
    alarms.report(M, "yard", None, 11.0, monotonic_s=11.0)
    alarms.report(N, "cam", None, 12.0, monotonic_s=12.0)
    assert alarms.listed(12.0) == [DeviceAlarm(M, "cam", A, 10.0, 10.0)]
    alarms.report(M, "cam", ContractAlarm(B), 13.0, monotonic_s=13.0)  # of another edge variant
    assert alarms.listed(13.0) == [DeviceAlarm(M, "cam", B, 13.0, 13.0)]


def test_those_under_way_come_first_and_the_long_silent_are_forgotten() -> None:
    alarms = DeviceAlarms()
    alarms.report(M, "ended", ContractAlarm(A), 0.0, monotonic_s=0.0)
    alarms.report(M, "ended", None, 5.0, monotonic_s=5.0)
    alarms.report(M, "old", ContractAlarm(A), 1.0, monotonic_s=1.0)
    alarms.report(M, "new", ContractAlarm(A), 2.0, monotonic_s=2.0)
    assert [alarm.device for alarm in alarms.listed(10.0)] == ["new", "old", "ended"]
    alarms.report(M, "old", ContractAlarm(A), 80_000.0, monotonic_s=80_000.0)
    assert [alarm.device for alarm in alarms.listed(86_410.0)] == ["old"]


def test_alarms_expire_by_the_monotonic_clock() -> None:
    alarms = DeviceAlarms()
    alarms.report(M, "ahead", ContractAlarm(A), 3e9, monotonic_s=0.0)
    alarms.report(M, "right", ContractAlarm(A), 1.8e9, monotonic_s=10.0)
    assert len(alarms.listed(86_390.0)) == 2
    assert [alarm.device for alarm in alarms.listed(86_405.0)] == ["right"]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstline_gateway.contracts.devices._ALARMS", 100)
    alarms = DeviceAlarms()
    for number in range(110):
        alarms.report(M, f"cam{number}", ContractAlarm(A), number, monotonic_s=number)
    assert {alarm.device for alarm in alarms.listed(110.0)} == {f"cam{number}" for number in range(10, 110)}


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 7200)), max_size=20))
def test_the_devices_of_the_last_hour_are_counted(asked: list[tuple[str, int]]) -> None:
    seen, now_s = ActiveDevices(), 0
    latest: dict[str, int] = {}
    for device, wait_s in asked:
        now_s += wait_s
        seen.add(device, now_s)
        latest[device] = now_s
        assert seen.count(now_s) == sum(at_s > now_s - HOUR_S for at_s in latest.values())
    assert seen.count(now_s + HOUR_S) == 0
