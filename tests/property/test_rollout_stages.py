"""Stages grow without exchanging devices, and always leave a control group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.errors import RequestError
from firstline_gateway.rollouts.rollout import Stage, divide, due, place

NAMES = [f"device-{number}" for number in range(300)]
FLEET = [(name, {"site": "berlin" if number % 3 else "paris"}) for number, name in enumerate(NAMES)]
SHARES = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4).map(sorted)


@given(st.text(max_size=10), SHARES, st.floats(0.0, 0.5))
def test_stages_are_disjoint_and_exclude_held_back_devices(salt: str, shares: list[float], held_back: float) -> None:
    stages = [Stage(share) for share in shares]
    taken: list[str] = []
    for number in range(len(stages)):
        found = divide(salt, stages, number, FLEET, held_back)
        assert not set(found.treated) & set(found.control)
        taken += found.treated
        assert set(taken) | set(found.control) == set(NAMES)
    assert len(taken) == len(set(taken))
    assert all(place(salt, name) < 1 - held_back for name in taken)


@given(st.text(max_size=10), st.floats(0.01, 0.5), st.floats(0.01, 0.5))
def test_a_larger_share_includes_the_devices_of_a_smaller_one(salt: str, share: float, more: float) -> None:
    few = divide(salt, [Stage(share)], 0, FLEET, 0.0).treated
    many = divide(salt, [Stage(share + more)], 0, FLEET, 0.0).treated
    assert many[: len(few)] == few


def test_a_stage_of_a_group_takes_its_share_of_the_group() -> None:
    stages = [Stage(0.5, group="site=paris"), Stage(1.0)]
    first, second = (divide("s", stages, number, FLEET, 0.1) for number in range(2))
    paris = {name for name, tags in FLEET if tags["site"] == "paris"}
    assert set(first.treated) | set(first.control) == paris
    assert not set(first.treated) & set(second.treated)
    assert 0.3 < len(first.treated) / len(paris) < 0.7


def test_places_are_uniform_and_differ_by_salt() -> None:
    places = [place("a", name) for name in NAMES]
    assert 0.4 < sum(places) / len(places) < 0.6
    assert places != [place("b", name) for name in NAMES]


def test_devices_are_offered_the_model_at_the_stages_pace() -> None:
    stage = Stage(1.0, per_minute=30)
    assert [due(stage, 100, elapsed_s) for elapsed_s in (0, 1, 2, 60, 1e6)] == [1, 1, 2, 31, 100]
    assert due(Stage(1.0), 100, 0.0) == 100


def test_an_invalid_group_is_refused() -> None:
    with pytest.raises(RequestError, match="selector"):
        Stage(1.0, group="site=")
