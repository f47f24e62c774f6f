"""What the fleet's word says of one update."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from firstline_core.fleet.twin import DesiredConfiguration, DesiredModel, DesiredVersion, Window
from firstline_edge.fleet.updates.state_machine import CHECK_S, has_expired, is_same, is_withdrawn, wait_s

NOW_S = 1.8e9
MODEL = DesiredModel("digits", 2, "a" * 64, "r1")
CONFIGURATION = DesiredConfiguration("digits", 2, "a" * 64, "r1")
BOTH = pytest.mark.parametrize("wanted", [MODEL, CONFIGURATION])


@BOTH
def test_when_it_is_tried_makes_no_other_update_of_it(wanted: DesiredVersion) -> None:
    later = replace(wanted, not_before_s=NOW_S, expires_s=NOW_S + 1, window=Window(0, 1), undone=True)
    assert is_same(wanted, later)


@BOTH
@pytest.mark.parametrize("other", [{"name": "faces"}, {"version": 3}, {"rollout": "r2"}, {"attempt": 2}])
def test_what_is_tried_and_why_does(wanted: DesiredVersion, other: dict[str, object]) -> None:
    assert not is_same(wanted, replace(wanted, **other))


def test_other_bytes_are_another_update() -> None:
    assert not is_same(MODEL, replace(MODEL, sha256="b" * 64))
    assert not is_same(CONFIGURATION, replace(CONFIGURATION, sha256="b" * 64))


@BOTH
def test_it_is_withdrawn_by_name_or_by_what_it_brought(wanted: DesiredVersion) -> None:
    assert not is_withdrawn(wanted, wanted)
    assert is_withdrawn(wanted, replace(wanted, undone=True))
    third = replace(wanted, version=3, rollout="r2")
    assert not is_withdrawn(wanted, replace(third, undone=True)), "another one is undone"
    assert is_withdrawn(wanted, replace(third, withdrawn=("c" * 64, "a" * 64)))
    assert not is_withdrawn(wanted, replace(wanted, withdrawn=("a" * 64,))), "wanted again, though it was withdrawn"


@BOTH
def test_it_has_expired_from_its_end_on_and_never_without_one(wanted: DesiredVersion) -> None:
    assert not has_expired(wanted, NOW_S)
    ends = replace(wanted, expires_s=NOW_S)
    assert not has_expired(ends, NOW_S - 0.001)
    assert has_expired(ends, NOW_S)


@BOTH
@pytest.mark.parametrize(
    ("when", "seconds"),
    [
        ({}, 0),
        ({"not_before_s": NOW_S - 1}, 0),
        ({"not_before_s": NOW_S + 20}, 20),
        ({"not_before_s": NOW_S + 1e6}, CHECK_S),  # the wall clock may be set meanwhile
        ({"not_before_s": NOW_S + 50, "expires_s": NOW_S + 30}, 30),  # its end is seen when it comes
        ({"not_before_s": NOW_S + 50, "expires_s": NOW_S - 1}, 0.1),
    ],
)
def test_it_is_looked_at_again_when_that_may_have_changed(
    wanted: DesiredVersion, when: dict[str, float], seconds: float
) -> None:
    assert wait_s(replace(wanted, **when), NOW_S) == seconds


@BOTH
def test_its_window_is_waited_for_once_its_time_has_come(wanted: DesiredVersion) -> None:
    minute = int(NOW_S / 60 + 3 * 24 * 60) % (7 * 24 * 60)
    assert NOW_S % 60 == 0
    assert wait_s(replace(wanted, window=Window(minute, 1)), NOW_S + 59) == 0
    assert wait_s(replace(wanted, window=Window(minute + 1, 1)), NOW_S + 15) == 45
    assert wait_s(replace(wanted, window=Window(minute, 1), not_before_s=NOW_S + 30), NOW_S) == 30
