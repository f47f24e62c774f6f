"""Verdicts on stages: each way to fail is found, each by its own rule, and silence is no consent."""

from __future__ import annotations

import math

import numpy as np
import pytest

from firstline_core.fleet.telemetry import LATENCY_BOUNDS_MS, ModelCounts, latency_bin
from firstline_gateway.rollouts.judgement.periods import FIGURES, Period, latency_p95_ms
from firstline_gateway.rollouts.judgement.permutation import Groups, p_value
from firstline_gateway.rollouts.judgement.sensitivity import (
    POWER,
    divisions,
    smallest_seen,
    spread_error,
    standard_error,
)
from firstline_gateway.rollouts.judgement.verdict import Decision, Device, Limit, Rules, Verdict, judge

BINS = len(LATENCY_BOUNDS_MS) + 1


def period(rng: np.random.Generator, own: float, **worse: float) -> Period:
    """A day of a device whose habits are `own`, with figures moved by `worse`."""
    rows = int(rng.integers(200, 2000))
    latencies = rng.lognormal(2 + own * 0.1 + worse.get("latency", 0.0), 0.4, 200)
    counts = ModelCounts(
        "m",
        1,
        rows=rows,
        escalated=int(rng.binomial(rows, 0.2 + 0.03 * own + worse.get("escalations", 0.0))),
        errors=int(rng.binomial(rows, 0.01 + worse.get("errors", 0.0))),
        latency=tuple(np.bincount([latency_bin(ms) for ms in latencies], minlength=BINS).tolist()),
        audited=200,
        disagreed=int(rng.binomial(200, 0.04 + 0.01 * own + worse.get("disagreement", 0.0))),
        alarm=bool(rng.random() < worse.get("alarms", 0.0)),
    )
    drift = 0.03 + worse.get("drift", 0.0) + 0.01 * rng.random()
    return Period(counts, 24.0, int(rng.poisson(0.05 + worse.get("crashes", 0.0))), drift)


def judged(
    seed: int = 1, *, each: int = 60, look: int = 8, failed: int = 0, rules: Rules | None = None, **worse: float
) -> Verdict:
    rng = np.random.default_rng(seed)
    arms: list[list[Device]] = [[], []]
    for index in range(2 * each):
        own = float(rng.uniform(-1, 1))
        arms[index % 2].append(Device(period(rng, own, **(worse if index % 2 == 0 else {})), period(rng, own)))
    return judge(
        rules or Rules(),
        stages=3,
        look=look,
        over=look >= 8,
        installed=each - failed,
        failed=failed,
        treated=arms[0],
        control=arms[1],
        seed=seed,
    )


def test_a_sound_model_is_promoted_when_its_time_is_over() -> None:
    assert judged().decision is Decision.PROMOTE
    early = judged(look=7)
    assert (early.decision, early.rule) == (Decision.HOLD, "time")


@pytest.mark.parametrize(
    ("figure", "by"),
    [
        ("crashes", 3.0),
        ("errors", 0.05),
        ("latency", math.log(2.0)),
        ("escalations", 0.15),
        ("drift", 0.3),
        ("disagreement", 0.06),
        ("alarms", 0.6),
    ],
)
def test_each_way_to_be_worse_aborts_by_its_own_name(figure: str, by: float) -> None:
    verdict = judged(**{figure: by})
    assert (verdict.decision, verdict.rule) == (Decision.ABORT, figure)
    assert figure in verdict.sentence and "with the model" in verdict.sentence


def test_a_better_model_is_no_worse() -> None:
    assert judged(escalations=-0.1, disagreement=-0.02).decision is Decision.PROMOTE


def test_installations_that_fail_abort_at_the_first_look() -> None:
    verdict = judged(failed=12, look=1)
    assert (verdict.decision, verdict.rule) == (Decision.ABORT, "installations")
    assert judged(failed=1, look=1).decision is Decision.HOLD


def test_what_cannot_be_seen_yet_is_held_and_said() -> None:
    verdict = judged(each=4)
    assert (verdict.decision, verdict.rule) == (Decision.HOLD, "unclear")
    assert "disagreement" in verdict.sentence


def test_what_need_not_be_seen_does_not_hold() -> None:
    find_nothing = {name: Limit(1.0) for name in FIGURES}
    assert judged(each=4, rules=Rules(limits=find_nothing)).decision is Decision.PROMOTE


def test_a_stage_without_any_report_is_held() -> None:
    silent = [Device(None)] * 20
    found = judge(Rules(), stages=1, look=8, over=True, installed=20, failed=0, treated=silent, control=silent, seed=1)
    assert (found.decision, found.rule) == (Decision.HOLD, "unclear")


def test_a_verdict_can_be_had_again_from_its_seed() -> None:
    assert repr(judged(7, disagreement=0.03)) == repr(judged(7, disagreement=0.03))


def test_an_unknown_figure_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no figure 'speed'"):
        Rules(limits={"speed": Limit(1.0)})


def test_ignored_figures_are_not_looked_at() -> None:
    verdict = judged(rules=Rules(ignored=("disagreement",)), disagreement=0.5)
    assert verdict.decision is Decision.PROMOTE
    assert "disagreement" not in {finding.figure for finding in verdict.findings}


def test_the_95th_percentile_lies_in_its_bin() -> None:
    bins = [0] * BINS
    bins[3], bins[6] = 90, 10  # 5 to 10 ms, 50 to 100 ms
    p95_ms = latency_p95_ms(ModelCounts("m", 1, latency=tuple(bins)))
    assert p95_ms == pytest.approx(50 * 2**0.5)
    assert latency_p95_ms(ModelCounts("m", 1, latency=(19,) + (0,) * 12)) is None
    assert latency_p95_ms(ModelCounts("m", 1, latency=(0,) * 12 + (30,))) == pytest.approx(5000 * 2**0.95)


def test_the_difference_foretold_is_found_as_often_as_said() -> None:
    level, spread = 1e-3, 0.2
    by = smallest_seen(spread_error(spread, 40, 40), level, divisions(40, 40))
    found = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        values = rng.normal(0, spread, 80)
        treated = np.arange(80) < 40
        groups = Groups(values + by * treated, np.ones(80), np.full(80, np.nan), treated)
        assert standard_error(groups) == pytest.approx(spread_error(spread, 40, 40), rel=0.4)
        found += p_value(groups, 0.0, level, rng) <= level
    assert abs(found / 60 - POWER) < 0.12


def test_a_handful_of_devices_can_show_nothing() -> None:
    assert divisions(2, 2) == pytest.approx(6)
    assert smallest_seen(0.01, 1e-3, divisions(2, 2)) == math.inf
