"""The controller of variants keeps its pauses, obeys its guards, and is deterministic."""

import math
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from firstline_core.adaptation.controller import Controller, LadderPosition, StepTiming
from firstline_core.adaptation.guards import Advice, Limits, battery_guard, heat_guard, memory_guard
from firstline_core.adaptation.ladder import EnergyPrices, Rung, build_ladder, choose_rung
from firstline_core.hardware.readings import Absent, Measured, Reading, Snapshot

LIMITS, PATIENCE = Limits(), StepTiming()
MB = 1 << 20
NOBODY = Absent("There is no such sensor.")


def readings(low: float, high: float) -> st.SearchStrategy[Reading]:
    return st.just(NOBODY) | st.floats(low, high).map(lambda value: Measured(value, "/sys/file"))


SNAPSHOTS = st.builds(
    Snapshot,
    temperature_c=readings(20, 100).map(lambda reading: {"soc": reading}),
    throttling=st.dictionaries(st.sampled_from(["throttled", "under_voltage"]), readings(0, 1), max_size=2),
    battery_share=readings(0, 1),
    powered=st.sampled_from([NOBODY, Measured(0, "/sys/online"), Measured(1, "/sys/online")]),
    memory_available_bytes=readings(0, 1024 * MB),
    memory_stalled_share=readings(0, 0.2),
)
RUNGS = st.integers(1, 4).map(
    lambda count: [Rung(f"v{at}", 16 / 2**at, 8 / 2**at, 40 * MB, 1 - at / 10) for at in range(count)]
)


@st.composite
def days(draw: st.DrawFn) -> list[Snapshot]:
    """Readings at rising times; most last for a while, so that there are calm periods."""
    found: list[Snapshot] = []
    at_s = 0.0
    for lasting in draw(st.lists(st.tuples(SNAPSHOTS, st.integers(1, 30)), min_size=1, max_size=12)):
        snapshot, times = lasting
        for _ in range(times):
            at_s += draw(st.sampled_from([1.0, 5.0])) if len(found) < 8 else 5.0
            found.append(_at(snapshot, at_s))
    return found


def _at(snapshot: Snapshot, at_s: float) -> Snapshot:
    return _replaced(snapshot, at_s=at_s)


def _replaced(snapshot: Snapshot, **fields: Any) -> Snapshot:
    return Snapshot(**{name: getattr(snapshot, name) for name in snapshot.__struct_fields__} | fields)


def place(position: LadderPosition) -> int:
    return position.rung + position.shedding


def lived(rungs: list[Rung], day: list[Snapshot]) -> list[LadderPosition]:
    controller = Controller(rungs, LIMITS, PATIENCE)
    return [controller.update(snapshot) for snapshot in day]


@given(RUNGS, days())
def test_steps_keep_the_configured_pauses(rungs: list[Rung], day: list[Snapshot]) -> None:
    """Except for heat below its limit, which splits requests instead of stepping."""
    day = [_replaced(snapshot, temperature_c={}) for snapshot in day]
    positions = [LadderPosition(), *lived(rungs, day)]
    moves = [
        (snapshot.at_s, place(before), place(after))
        for (before, after), snapshot in zip(pairwise(positions), day, strict=True)
        if place(before) != place(after)
    ]
    for (first_s, _, _), (then_s, before, after) in pairwise(moves):
        if after < before:
            assert after == before - 1
            assert then_s - first_s >= PATIENCE.dwell_s, "a step up waits for calm, whatever came before"
    fell_s = [(at_s, after) for at_s, before, after in moves if after > before]
    for (first_s, _), (then_s, after) in pairwise(fell_s):
        if then_s - first_s < PATIENCE.settle_s:
            assert after == len(rungs) - 1, "only what is urgent does not wait for the last step's effect"


@given(RUNGS, days())
def test_each_position_obeys_the_guards(rungs: list[Rung], day: list[Snapshot]) -> None:
    """It sheds only if a guard requires it, and only after `settle_s` on the last rung."""
    last, positions = len(rungs) - 1, [LadderPosition(), *lived(rungs, day)]
    assert lived(rungs, day) == positions[1:], "a replay gives the same positions"
    since_s = float("-inf") if len(rungs) == 1 else None
    for (before, after), snapshot in zip(pairwise(positions), day, strict=True):
        assert after.next_share == 0 or (0 < after.next_share < 1 and after.rung < last and not after.shedding)
        verdicts = [heat_guard(snapshot, 0.0, LIMITS), memory_guard(snapshot, 0, LIMITS)]
        if min(verdict.advice for verdict in verdicts) <= Advice.CHEAPEST:
            assert after.rung == last, "a forbidden rung is left at once"
        if after.shedding and not before.shedding:
            assert snapshot.at_s - since_s >= PATIENCE.settle_s
            assert after.verdict.advice is Advice.SHED
        if place(after) != place(before):
            since_s = snapshot.at_s if place(after) == last else None


@given(st.floats(20, 100), st.floats(0, 30), st.floats(-1, 1), st.floats(0, 1))
def test_heat_never_raises_the_advice(hottest_c: float, more_c: float, rise: float, steeper: float) -> None:
    def advice(at_c: float, rise_c_per_s: float) -> Advice:
        return heat_guard(Snapshot(temperature_c={"soc": Measured(at_c, "")}), rise_c_per_s, LIMITS).advice

    assert advice(hottest_c + more_c, rise + steeper) <= advice(hottest_c, rise)


@given(RUNGS, st.floats(20, 100), st.floats(0, 30), st.booleans())
def test_heat_never_improves_settled_rung(rungs: list[Rung], hottest_c: float, more_c: float, hot_before: bool) -> None:
    """From any start, the higher of two lasting temperatures never gives a better rung."""
    begin = [Snapshot(at_s=at, temperature_c={"soc": Measured(90, "")}) for at in range(60)] if hot_before else []

    def comes_to(at_c: float) -> int:
        lasting = [Snapshot(at_s=60 + 5 * at, temperature_c={"soc": Measured(at_c, "")}) for at in range(400)]
        return place(lived(rungs, begin + lasting)[-1])

    assert comes_to(hottest_c + more_c) >= comes_to(hottest_c)


@given(RUNGS, days())
def test_calm_readings_return_to_the_best_rung(rungs: list[Rung], day: list[Snapshot]) -> None:
    calm = Snapshot(
        temperature_c={"soc": Measured(40, "")}, memory_available_bytes=Measured(4096 * MB, ""), powered=Measured(1, "")
    )
    end_s = day[-1].at_s
    steps = len(rungs) * 32 * int(PATIENCE.dwell_s)  # the longest that a step may be waited for
    assert lived(rungs, day + [_at(calm, end_s + 5 * at) for at in range(1, steps // 5 + 20)])[-1].rung == 0


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 4), st.integers(0, 4))
def test_less_charge_gives_a_cheaper_rung(charge: float, more: float, rungs: int, stands: int) -> None:
    def advice(share: float) -> Advice:
        return battery_guard(Snapshot(battery_share=Measured(share, "")), min(stands, rungs), rungs, LIMITS).advice

    assert advice(charge) <= advice(min(1.0, charge + more))


RUNS_MS = st.lists(st.floats(0.1, 100), min_size=1, max_size=4).map(lambda runs_ms: sorted(runs_ms, reverse=True))
TIMES_MS = st.floats(0, 200)
FOUR = {"min_size": 4, "max_size": 4}
PRICES = st.builds(
    EnergyPrices,
    st.lists(st.floats(0.1, 100), **FOUR).map(tuple),
    st.lists(st.floats(0, 1), **FOUR).map(tuple),
    st.floats(0, 100),
)


@given(RUNS_MS, st.floats(0, 1), TIMES_MS, TIMES_MS, TIMES_MS | st.just(math.inf), st.none() | PRICES)
def test_a_deadline_that_a_rung_can_meet_is_met(  # noqa: PLR0917
    runs_ms: list[float], busy: float, wait_ms: float, left_ms: float, link_ms: float, prices: EnergyPrices | None
) -> None:
    """Also including the full model's answer if there is time for it, whatever the energy."""
    done_ms = wait_ms + runs_ms[choose_rung(runs_ms, busy, [wait_ms] * len(runs_ms), left_ms, link_ms, prices=prices)]
    soonest_ms = wait_ms + runs_ms[-1]
    if soonest_ms + link_ms <= left_ms:
        assert done_ms + link_ms <= left_ms
    elif soonest_ms <= left_ms:
        assert done_ms <= left_ms
    else:
        assert done_ms == soonest_ms


@given(RUNS_MS, TIMES_MS, st.floats(-50, 200), st.floats(0, 50))
def test_more_time_gives_no_worse_variant(runs_ms: list[float], wait_ms: float, left_ms: float, more_ms: float) -> None:
    waits_ms = [wait_ms] * len(runs_ms)
    assert choose_rung(runs_ms, 0.0, waits_ms, left_ms + more_ms) <= choose_rung(runs_ms, 0.0, waits_ms, left_ms)


@given(RUNS_MS, st.floats(0, 1), st.floats(0, 1), TIMES_MS, TIMES_MS)
def test_more_load_gives_a_cheaper_rung(
    runs_ms: list[float], busy: float, more: float, left_ms: float, link_ms: float
) -> None:
    """If there is time to ask the full model."""
    if runs_ms[0] + link_ms <= left_ms:
        least, most = sorted((busy, more))
        waits_ms = [0.0] * len(runs_ms)
        lighter = choose_rung(runs_ms, least, waits_ms, left_ms, link_ms)
        assert lighter <= choose_rung(runs_ms, most, waits_ms, left_ms, link_ms)


@given(
    st.lists(
        st.builds(
            Rung,
            st.uuids().map(str),
            st.floats(0.1, 100),
            st.none() | st.floats(0.1, 100),
            st.integers(0, 100 * MB),
            st.floats(0, 1),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_each_rung_is_faster_and_cheaper_than_those_above(rungs: list[Rung]) -> None:
    ladder = build_ladder(rungs)
    assert max(rung.merit for rung in rungs) == ladder[0].merit
    assert min(rung.row_ms for rung in rungs) == ladder[-1].row_ms or any(rung.energy_mj is not None for rung in rungs)
    for at, rung in enumerate(ladder):
        for better in ladder[:at]:
            assert rung.merit <= better.merit
            assert rung.row_ms < better.row_ms
            if rung.energy_mj is not None and better.energy_mj is not None:
                assert rung.energy_mj < better.energy_mj
