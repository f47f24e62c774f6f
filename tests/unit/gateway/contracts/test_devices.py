"""The devices that sent requests within the last hour."""

from hypothesis import given
from hypothesis import strategies as st

from firstline_core.units import HOUR_S
from firstline_gateway.contracts.devices import ActiveDevices


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
