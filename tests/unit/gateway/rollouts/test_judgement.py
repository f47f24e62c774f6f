"""Verdicts on stages: each way to fail is found, each by its own rule, and silence is no consent."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from firstline_core.errors import RequestError
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


def test_what_none_of_a_few_devices_could_install_is_never_promoted() -> None:
    nobody = judged(each=2, failed=2, rules=Rules(promote_unseen=True))
    assert (nobody.decision, nobody.rule) == (Decision.HOLD, "installations")
    assert nobody.sentence == "Of 2 devices that tried, none could install it."
    assert judged(each=2, failed=1, rules=Rules(promote_unseen=True)).decision is Decision.PROMOTE


def test_what_cannot_be_seen_yet_is_held_and_said() -> None:
    verdict = judged(each=4)
    assert (verdict.decision, verdict.rule) == (Decision.HOLD, "unclear")
    assert "disagreement" in verdict.sentence


def test_what_need_not_be_seen_does_not_hold() -> None:
    find_nothing = {name: Limit(1.0) for name in FIGURES}
    assert judged(each=4, rules=Rules(limits=find_nothing)).decision is Decision.PROMOTE


@pytest.mark.parametrize(("unseen", "claimed"), [(False, True), (True, False)])
def test_a_promotion_claims_no_more_than_was_to_be_found(unseen: bool, claimed: bool) -> None:
    verdict = judged(rules=Rules(promote_unseen=unseen))
    assert verdict.decision is Decision.PROMOTE
    assert ("what was to be found would have been" in verdict.sentence) is claimed


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


def test_no_p_value_is_shown_as_nothing() -> None:
    verdict = judged(each=400, failed=400, look=1)
    assert verdict.findings[0].p_value > 0
    assert "p < 0.000000001" in verdict.sentence
    compared = judged(disagreement=0.2)
    assert "p < 0.0001, aborts at" in compared.sentence
    assert all(0 < finding.p_value <= 1 for finding in compared.findings)


def test_a_small_tail_of_failures_is_not_lost_in_rounding() -> None:
    # 30 of 60 at 2 %: 1 less the others' probability would be 0, or noise.
    assert judged(failed=30, look=1).findings[0].p_value == pytest.approx(7.04e-35, rel=0.01)


def test_devices_that_do_not_tell_weigh_nothing() -> None:
    rng = np.random.default_rng(3)
    values, treated = rng.normal(size=80), np.arange(80) % 2 == 0
    weights = np.where(np.arange(80) < 40, 1.0, 0.0)
    told = Groups(values + 2.0 * treated, weights, np.full(80, np.nan), treated)
    alone = Groups(told.values[:40], told.weights[:40], told.before[:40], treated[:40])
    assert told.counts == alone.counts and told.means == alone.means
    assert standard_error(told) == standard_error(alone)
    assert p_value(told, 0.0, 1e-4, rng) < 1e-3 and p_value(alone, 0.0, 1e-4, rng) < 1e-3
    nobody = Groups(values, np.where(treated, 0.0, 1.0), np.full(80, np.nan), treated)
    assert p_value(nobody, 0.0, 1e-4, rng) == 1.0


def test_devices_that_fall_silent_abort_though_the_others_do_well() -> None:
    rng = np.random.default_rng(1)

    def devices(silent: int) -> list[Device]:
        found = [Device(period(rng, 0.0), period(rng, 0.0)) for _ in range(60)]
        gone = Period(ModelCounts("m", 1), 0.0, silent=True)
        return [
            Device(gone if index < silent else replace(each.after or gone, silent=False), each.before)
            for index, each in enumerate(found)
        ]

    verdict = judge(
        Rules(), stages=3, look=2, over=False, installed=60, failed=0, treated=devices(30), control=devices(2), seed=1
    )
    assert (verdict.decision, verdict.rule) == (Decision.ABORT, "silence")


def test_what_no_stage_could_tell_is_refused() -> None:
    with pytest.raises(RequestError, match="no stage could ever tell"):
        Rules(limits={"errors": Limit(0.05, 0.05)}).check()
    Rules(limits={"errors": Limit(0.05, 0.05)}, promote_unseen=True).check()


def test_what_need_not_be_seen_keeps_what_is_accepted() -> None:
    unseen = Rules(promote_unseen=True).judged
    assert {name: limit.tolerance for name, limit in unseen.items()} == {
        name: limit.tolerance for name, limit in Rules().judged.items()
    }
    assert judged(each=4, rules=Rules(promote_unseen=True)).decision is Decision.PROMOTE
