"""Stages grow without exchanging devices, and always leave a control group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.errors import RequestError
from firstline_gateway.rollouts.rollout import Stage, divide, due, place

NAMES = [f"device-{number}" for number in range(300)]
FLEET = [(name, {"site": "berlin" if number % 3 else "paris"}) for number, name in enumerate(NAMES)]
SHARES = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4).map(sorted)


@given(st.text(max_size=10), SHARES, st.floats(0.0, 0.5), st.integers(1, 300))
def test_stages_are_disjoint_whole_and_exclude_held_back_devices(
    salt: str, shares: list[float], held_back: float, devices: int
) -> None:
    taken: list[str] = []
    for share in shares:
        found = divide(salt, Stage(share), FLEET[:devices], held_back, taken)
        assert not {*found.treated, *found.control} & set(taken)
        left = devices - len(taken)
        taken += found.treated
        assert set(taken) | set(found.control) == set(NAMES[:devices]) and found.members == devices
        assert len(taken) >= min(share, 1 - held_back) * devices - 1
        assert found.treated or left == len(found.control) == devices - len(taken)
    assert len(taken) == len(set(taken))
    assert len(taken) >= 1 and (devices - len(taken) >= held_back * devices - 1e-6 or len(taken) == 1)


@given(st.text(max_size=10), st.floats(0.01, 0.5), st.floats(0.01, 0.5))
def test_a_larger_share_includes_the_devices_of_a_smaller_one(salt: str, share: float, more: float) -> None:
    few = divide(salt, Stage(share), FLEET, 0.0, ()).treated
    many = divide(salt, Stage(share + more), FLEET, 0.0, ()).treated
    assert many[: len(few)] == few


@pytest.mark.parametrize(
    ("share", "devices", "held_back", "number"),
    [(0.01, 5, 0.05, 1), (0.5, 5, 0.0, 3), (1.0, 5, 0.05, 4), (1.0, 1, 0.9, 1), (0.1, 30, 0.0, 3), (0.07, 100, 0.0, 7)],
)
def test_a_share_is_rounded_up_to_whole_devices(share: float, devices: int, held_back: float, number: int) -> None:
    assert len(divide("s", Stage(share), FLEET[:devices], held_back, ()).treated) == number


def test_a_stage_of_a_group_takes_its_share_of_the_group() -> None:
    first = divide("s", Stage(0.5, group="site=paris"), FLEET, 0.1, ())
    second = divide("s", Stage(1.0), FLEET, 0.1, first.treated)
    paris = {name for name, tags in FLEET if tags["site"] == "paris"}
    assert set(first.treated) | set(first.control) == paris
    assert not set(first.treated) & set(second.treated)
    assert len(first.treated) == len(paris) // 2
    assert not divide("s", Stage(1.0, group="site=rome"), FLEET, 0.1, ()).members


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
