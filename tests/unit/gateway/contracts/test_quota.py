from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_gateway.contracts.devices import HOUR_S, Seen, share_per_hour


@pytest.mark.parametrize(("devices", "share"), [(0, 600.0), (1, 600.0), (20, 30.0), (6000, 0.1)])
def test_all_devices_together_escalate_what_there_is_room_for(devices: int, share: float) -> None:
    assert share_per_hour(600.0, devices) == pytest.approx(share)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 7200)), max_size=20))
def test_the_devices_of_the_last_hour_are_counted(asked: list[tuple[str, int]]) -> None:
    seen, now_s = Seen(), 0
    latest: dict[str, int] = {}
    for device, wait_s in asked:
        now_s += wait_s
        seen.see(device, now_s)
        latest[device] = now_s
        assert seen.count(now_s) == sum(at_s > now_s - HOUR_S for at_s in latest.values())
    assert seen.count(now_s + HOUR_S) == 0
