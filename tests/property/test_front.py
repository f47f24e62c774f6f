"""The Pareto front: its points are not dominated, and all other points are."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.profiles import point

from firstline_core.hardware.readings import Absent, Measured, Modelled
from firstline_core.profile.profile import Point
from firstline_core.profile.summary import front

RIGHT = {"a" * 64: 0.9, "b" * 64: 0.8}
ENERGY = st.sampled_from([Measured(1.0, "rail"), Measured(2.0, "rail")])


@st.composite
def points(draw: st.DrawFn) -> list[Point]:
    found = []
    for threads in range(1, draw(st.integers(1, 6)) + 1):
        one = point(
            draw(st.sampled_from([1.0, 2.0, 3.0])), digest=draw(st.sampled_from(sorted(RIGHT))), threads=threads
        )
        found.append(replace(one, energy_mj=draw(ENERGY)))
    return found


def _beats(one: Point, other: Point) -> bool:
    def costs(of: Point) -> tuple[float, float, float]:
        assert isinstance(of.energy_mj, Measured)
        return of.query.p50_ms, -RIGHT[of.key.model_digest], of.energy_mj.value

    return costs(one) != costs(other) and all(a <= b for a, b in zip(costs(one), costs(other), strict=True))


@given(points())
def test_the_front_dominates_all_other_points(among: list[Point]) -> None:
    found = front(among, RIGHT)
    best = [one for one in among if one.key in found.keys]
    assert found.by_energy and best
    for one in among:
        assert any(_beats(other, one) for other in best) == (one.key not in found.keys)
        assert any(_beats(other, one) for other in among) == (one.key not in found.keys)


def test_energy_counts_only_if_all_points_have_it_alike() -> None:
    slow = replace(point(2.0, threads=1), energy_mj=Measured(1.0, "rail"))
    for other in (Absent("no sensor"), Modelled(9.0, "stated")):
        quick = replace(point(1.0, threads=2), energy_mj=other)
        found = front([slow, quick], RIGHT)
        assert not found.by_energy and found.keys == {quick.key}
    assert len(front([slow, replace(quick, energy_mj=Measured(9.0, "rail"))], RIGHT).keys) == 2


def test_batches_hot_points_and_unknown_accuracy_are_ignored() -> None:
    measured = point(2.0)
    batch = replace(measured, key=replace(measured.key, batch=4))
    hot = replace(measured, key=replace(measured.key, condition="sustained"))
    assert front([measured, hot, batch, point(1.0, digest="c" * 64)], RIGHT).keys == {measured.key}
