from __future__ import annotations

from functools import cache
from math import lgamma

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline.workbench.compress.judge import GAIN, HARM, WORTH_A_TRADE, Figures, Loss, judge, loss, most_lost, outdone
from firstline_core.hardware.readings import Absent, Measured, Modelled, Reading

SOURCE = Figures("source", accuracy=0.9, latency_ms=10.0, size_bytes=1000, kept=0.8)


def candidate(**fields: float | Reading | None) -> Figures:
    return msgspec.structs.replace(SOURCE, id="new", **fields)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (candidate(accuracy=0.87, latency_ms=1.0), "loses 3.00 points of accuracy against source, and 2 are allowed"),
        (candidate(latency_ms=1.0, kept=0.7), "keeps 70.0 % where source keeps 80.0 % for the same promise"),
        (candidate(latency_ms=1.0, kept=0.0), "is not certified where source keeps 80.0 %"),
        (candidate(latency_ms=9.5), "a tenth better in latency or size is the least that counts"),
        (candidate(latency_ms=13.0, size_bytes=700), "1.30 times slower, 1.43 times smaller against source: worse in"),
        (candidate(latency_ms=5.5, energy_mj=Measured(3.0, "a rail"), size_bytes=2000), "worse in size"),
    ],
)
def test_refused_candidates_have_reasons(made: Figures, says: str) -> None:
    found = judge(made, SOURCE, [SOURCE], 0.02)
    assert not found.accepted
    assert any(says in reason for reason in found.reasons), found.reasons


@pytest.mark.parametrize(
    "made",
    [
        candidate(accuracy=0.88, latency_ms=5.0),  # exactly what may be lost
        candidate(latency_ms=10.4, size_bytes=800),  # a little slower is nothing
        candidate(latency_ms=20.0, size_bytes=500),  # a trade worth making
        candidate(latency_ms=9.0, kept=0.73),
    ],
)
def test_better_candidates_are_accepted(made: Figures) -> None:
    found = judge(made, SOURCE, [SOURCE], 0.02)
    assert found.accepted, found.reasons
    assert found.reasons[0].endswith("against source")


def test_energy_counts_if_both_sides_have_it() -> None:
    spends = msgspec.structs.replace(SOURCE, energy_mj=Measured(10.0, "a rail"))
    found = judge(candidate(energy_mj=Measured(5.0, "a rail")), spends, [spends], 0.02)
    assert found.accepted
    assert "2.00 times thriftier" in found.reasons[0]
    assert not judge(candidate(energy_mj=Measured(5.0, "a rail")), SOURCE, [SOURCE], 0.02).accepted
    assert not judge(candidate(energy_mj=Modelled(5.0, "stated")), spends, [spends], 0.02).accepted
    absent = msgspec.structs.replace(SOURCE, energy_mj=Absent("No sensor."))
    assert not judge(candidate(energy_mj=Absent("No sensor.")), absent, [absent], 0.02).accepted


def test_a_candidate_competes_with_all_equally_accurate_models() -> None:
    small = Figures("small", accuracy=0.885, latency_ms=4.0, size_bytes=400, kept=0.8)
    worse = msgspec.structs.replace(small, id="worse", accuracy=0.8)
    made = candidate(latency_ms=6.0, size_bytes=600)
    assert judge(made, SOURCE, [SOURCE, worse], 0.02).accepted
    refused = judge(made, SOURCE, [SOURCE, small, worse], 0.02)
    assert not refused.accepted
    assert len(refused.reasons) == 1
    assert "against small" in refused.reasons[0]


def test_a_certified_bundle_needs_certified_candidates() -> None:
    unproved = [msgspec.structs.replace(SOURCE, kept=0.0)]
    made = candidate(latency_ms=5.0, kept=0.0)
    assert judge(made, unproved[0], unproved, 0.02).accepted
    refused = judge(made, unproved[0], unproved, 0.02, promised=True)
    assert refused.reasons == (
        "is not certified on this data, and what is there carries a certificate; give more images",
    )


def test_a_required_proof_decides_about_the_loss() -> None:
    made = candidate(latency_ms=5.0, accuracy=0.895)
    wide = msgspec.structs.replace(made, loss=Loss(12, 7, 1000, 0.005, 0.0213, 0.05))
    assert judge(wide, SOURCE, [SOURCE], 0.02).accepted
    refused = judge(wide, SOURCE, [SOURCE], 0.02, proved=True)
    assert refused.reasons == (
        "may lose up to 2.13 points of accuracy against source, with confidence 95 %, and 2 are allowed: of 1000 "
        "images it lost 12 and won 7; more images prove more",
    )
    narrow = msgspec.structs.replace(made, loss=Loss(12, 7, 1000, 0.005, 0.0199, 0.05))
    assert judge(narrow, SOURCE, [SOURCE], 0.02, proved=True).accepted
    seen = msgspec.structs.replace(wide, accuracy=0.87)
    assert "loses 3.00 points" in judge(seen, SOURCE, [SOURCE], 0.02, proved=True).reasons[0]


def test_verdicts_have_ratios_to_each_model() -> None:
    small = Figures("small", accuracy=0.5, latency_ms=4.0, size_bytes=400, kept=0.8)
    refused = judge(candidate(latency_ms=12.5, size_bytes=800), SOURCE, [SOURCE, small], 0.02)
    assert not refused.accepted
    assert refused.times_better == {
        "source": {"latency": 0.8, "size": 1.25},
        "small": {"latency": 0.32, "size": 0.5},  # no rival, for it is less accurate, and told all the same
    }


@pytest.mark.parametrize("disturbed", ["source", "new"])
@pytest.mark.parametrize("latency_ms", [1.0, 100.0])
def test_a_disturbed_latency_does_not_count(disturbed: str, latency_ms: float) -> None:
    def waited(one: Figures) -> Figures:
        return msgspec.structs.replace(one, waited_share=0.49 if one.id == disturbed else 0.0)

    source = waited(SOURCE)
    alike = judge(waited(candidate(latency_ms=latency_ms)), source, [source], 0.02)
    assert not alike.accepted  # 10 times faster, it seems
    smaller = judge(waited(candidate(latency_ms=latency_ms, size_bytes=800)), source, [source], 0.02)
    assert smaller.accepted  # 10 times slower, it seems
    for found in (alike, smaller):
        assert "latency" not in found.times_better["source"]
        assert "not known well enough: other work had the core for 49 % of its measurement" in found.reasons[-1]
    assert ("against source" in alike.reasons[-1]) == (disturbed == "source")


def test_an_unmeasured_source_is_not_compared() -> None:
    source = msgspec.structs.replace(SOURCE, latency_ms=None)
    other = Figures("other", accuracy=0.9, latency_ms=4.0, size_bytes=400, kept=0.8)
    assert judge(candidate(latency_ms=2.0, size_bytes=200), source, [other], 0.02).accepted
    assert not judge(candidate(latency_ms=5.0), source, [other], 0.02).accepted
    assert not judge(candidate(accuracy=0.8, latency_ms=2.0), source, [other], 0.02).accepted
    assert judge(candidate(), source, [], 0.02).accepted


def test_a_dominated_candidate_is_refused() -> None:
    best = candidate(latency_ms=5.0, size_bytes=500)
    worse = msgspec.structs.replace(best, id="worse", latency_ms=6.0)
    assert outdone([worse, best]) == {
        "worse": "new is as accurate, keeps as much, and is 1.20 times faster, 1.00 times smaller; one of them "
        "is enough"
    }
    for better in ({"accuracy": 0.95}, {"size_bytes": 400}, {"kept": 0.85}, {"energy_mj": Modelled(1.0, "stated")}):
        other = msgspec.structs.replace(worse, **better)
        spends = msgspec.structs.replace(best, energy_mj=Modelled(2.0, "stated"))
        assert outdone([other, spends]) == {}, better
    assert set(outdone([best, msgspec.structs.replace(best, id="twin")])) == {"twin"}
    assert outdone([best]) == outdone([]) == {}


positive = st.floats(0.1, 1000)


@given(positive, positive, st.floats(0, 0.92), st.integers(1, 10**6))
def test_accepted_candidates_are_a_tenth_better(
    latency_ms: float, there_ms: float, accuracy: float, size_bytes: int
) -> None:
    there = msgspec.structs.replace(SOURCE, latency_ms=there_ms)
    found = judge(candidate(latency_ms=latency_ms, accuracy=accuracy, size_bytes=size_bytes), there, [there], 0.02)
    ratios = (there_ms / latency_ms, 1000 / size_bytes)
    if found.accepted:
        assert accuracy >= 0.88 - 1e-6
        assert max(ratios) >= GAIN
        assert min(ratios) >= 1 / HARM or max(ratios) >= WORTH_A_TRADE
    else:
        assert accuracy < 0.88 or max(ratios) < GAIN or min(ratios) < 1 / HARM


some = st.builds(
    Figures,
    id=st.just("one"),
    accuracy=st.sampled_from([0.8, 0.9]),
    latency_ms=st.sampled_from([1.0, 2.0]),
    size_bytes=st.sampled_from([1, 2]),
    kept=st.sampled_from([0.5, 0.6]),
    waited_share=st.sampled_from([0.0, 0.5]),
)


@given(st.lists(some, min_size=1, max_size=5))
def test_a_dominating_candidate_remains(made: list[Figures]) -> None:
    named = [msgspec.structs.replace(one, id=str(at)) for at, one in enumerate(made)]
    gone = outdone(named)
    left = [one for one in named if one.id not in gone]
    assert left
    assert outdone(left) == {}
    if all(one.latency_known for one in named):
        for one in named:
            assert any(
                other.accuracy >= one.accuracy
                and (other.kept or 0) >= (one.kept or 0)
                and (other.latency_ms or 0) <= (one.latency_ms or 0)
                and other.size_bytes <= one.size_bytes
                for other in left
            )


Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

_LEVEL = 0.1


@cache
def _bounds(rows: int) -> tuple[Floats, Floats]:
    """(outcomes, 2) of rows lost and won, and (outcomes,) bounds, for all outcomes of so many rows."""
    outcomes = [(lost, won) for lost in range(rows + 1) for won in range(rows + 1 - lost)]
    return np.array(outcomes, float), np.array([most_lost(*outcome, rows, _LEVEL) for outcome in outcomes])


def _missing(rows: int, loses: float, wins: float) -> float:
    """The probability that the bound is below the true loss."""
    outcomes, bounds = _bounds(rows)
    missed = outcomes[bounds < loses - wins - 1e-9]
    counts = np.column_stack([missed, rows - missed.sum(axis=1)])
    logs = np.array([lgamma(rows + 1) - sum(lgamma(count + 1) for count in row) for row in counts])
    shares = np.array([loses, wins, 1 - loses - wins])
    powers = np.prod(np.where(counts == 0, 1.0, shares**counts), axis=1)
    return float((np.exp(logs) * powers).sum())


@given(st.sampled_from([1, 6, 14]), st.floats(0, 1), st.floats(0, 1))
def test_the_bound_fails_as_rarely_as_stated(rows: int, loses: float, share: float) -> None:
    assert _missing(rows, loses, share * (1 - loses)) <= _LEVEL + 1e-9


def test_the_observed_loss_alone_is_too_low_half_of_the_time() -> None:
    random = np.random.default_rng(0)
    counts = random.multinomial(1000, [0.03, 0.02, 0.95], 60)
    truth = 0.01
    seen = np.array([(lost - won) / 1000 for lost, won, _ in counts])
    bounds = np.array([most_lost(int(lost), int(won), 1000, 0.05) for lost, won, _ in counts])
    assert 0.3 < (seen < truth).mean() < 0.7
    assert (bounds < truth).mean() <= 0.05
    assert bounds.mean() < 0.035  # and the bound is not idle


@given(
    st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, 3), min_size=n, max_size=n)))
)
def test_only_rows_with_one_right_model_count(drawn: tuple[int, list[int]]) -> None:
    rows, kinds = drawn
    each = np.array(kinds)
    found = loss((each & 1) > 0, (each & 2) > 0, delta=0.05)
    assert (found.lost, found.won, found.rows) == (kinds.count(2), kinds.count(1), rows)
    assert found.seen == pytest.approx(((each & 2) > 0).mean() - ((each & 1) > 0).mean())
    assert found.seen <= found.at_most <= 1


def test_the_bound_falls_with_rows_and_rises_with_candidates() -> None:
    same = {rows: np.ones(rows, bool) for rows in (100, 1000)}
    few, many = (loss(right, right, delta=0.05) for right in same.values())
    assert (few.seen, many.seen) == (0, 0)
    assert few.at_most == pytest.approx(1 - 0.025 ** (1 / 100), rel=1e-6)  # as no error in so many rows says
    assert many.at_most < few.at_most < loss(same[100], same[100], delta=0.05, among=4).at_most
    assert loss(same[100], same[100], delta=0.05, among=4).delta == 0.05


def test_graded_losses_are_compared_by_their_mean() -> None:
    random = np.random.default_rng(0)
    before = 0.7 + 0.2 * random.random(500)
    found = loss(before - 0.01, before, delta=0.05)
    assert (found.lost, found.won) == (500, 0)
    assert found.seen == pytest.approx(0.01)
    assert 0.01 < found.at_most < 0.03 < loss(before - 0.01, before, delta=0.05, among=8).at_most + 0.02
    assert loss(before, before, delta=0.05).at_most == most_lost(0, 0, 500, 0.05)
