"""Verdicts on stages: each rule aborts, and missing data holds."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

import msgspec
import numpy as np
import pytest

from firstline_core.errors import RequestError
from firstline_core.fleet.telemetry import LATENCY_BOUNDS_MS, ModelCounts, latency_bin
from firstline_gateway.rollouts.judgement import statistics
from firstline_gateway.rollouts.judgement.figures import FIGURES, Period, StageDevice, against_past, latency_p95_ms
from firstline_gateway.rollouts.judgement.verdict import Limit, Rules, StageDecision, Verdict, judge

BINS = len(LATENCY_BOUNDS_MS) + 1


def period(rng: np.random.Generator, own: float, **worse: float) -> Period:
    """Returns a day of a device with its own bias, with figures moved by `worse`."""
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
        losses=int(rng.binomial(200, 0.04 + 0.01 * own + worse.get("disagreement", 0.0))),
        alarm=bool(rng.random() < worse.get("alarms", 0.0)),
    )
    drift = 0.03 + worse.get("drift", 0.0) + 0.01 * rng.random()
    return Period(counts, 24.0, int(rng.poisson(0.05 + worse.get("crashes", 0.0))), drift)


def judged(
    seed: int = 1,
    *,
    each: int = 60,
    look: int = 8,
    failed: int = 0,
    rules: Rules | None = None,
    running: Sequence[StageDevice] = (),
    **worse: float,
) -> Verdict:
    rng = np.random.default_rng(seed)
    stage_groups: list[list[StageDevice]] = [[], []]
    for index in range(2 * each):
        own = float(rng.uniform(-1, 1))
        stage_groups[index % 2].append(
            StageDevice(period(rng, own, **(worse if index % 2 == 0 else {})), period(rng, own))
        )
    return judge(
        rules or Rules(),
        stages=3,
        look=look,
        over=look >= 8,
        installed=each - failed,
        failed=failed,
        treated=stage_groups[0],
        control=stage_groups[1],
        running=running,
        seed=seed,
    )


def test_a_sound_model_is_promoted_when_its_time_is_over() -> None:
    assert judged().decision is StageDecision.PROMOTE
    early = judged(look=7)
    assert (early.decision, early.rule) == (StageDecision.HOLD, "time")


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
def test_each_worse_figure_aborts_by_its_own_rule(figure: str, by: float) -> None:
    verdict = judged(**{figure: by})
    assert (verdict.decision, verdict.rule) == (StageDecision.ABORT, figure)
    assert figure in verdict.sentence and "with the model" in verdict.sentence


CLASSES = tuple(f"class {number}" for number in range(20))


def detector(rng: np.random.Generator, lost: str = "", *, audited: bool = True, kept: float = 0.0) -> StageDevice:
    """A device before and after a stage; a detector of twenty classes, of one of which it reports more or less."""
    own = {name: float(rng.gamma(4, 3)) for name in CLASSES}

    def lived(hours: float, share: float) -> Period:
        objects = {name: int(rng.poisson(hours * mean * (share if name == lost else 1))) for name, mean in own.items()}
        if lost and lost not in own and share > 1:
            objects[lost] = int(rng.poisson(hours * share))
        audits = {f"missed {name}": int(rng.poisson(2.0)) for name in CLASSES}
        losses = {
            event: int(rng.binomial(number, 1 - 0.95 * (min(share, 1) if event == f"missed {lost}" else 1)))
            for event, number in audits.items()
        }
        counts = ModelCounts("m", 1, objects=objects)
        if audited:
            counts = msgspec.structs.replace(counts, event_audits=audits, event_losses=losses)
        return Period(counts, hours)

    before, after = lived(24.0, 1.0), lived(8.0, kept)
    return StageDevice(against_past(before, after), before)


def judged_detector(seed: int, lost: str = "", **changes: object) -> Verdict:
    rng = np.random.default_rng(seed)
    treated = [detector(rng, lost, **changes) for _ in range(40)]
    control = [detector(rng) for _ in range(40)]
    return judge(
        Rules(), stages=3, look=8, over=True, installed=40, failed=0, treated=treated, control=control, seed=seed
    )


@pytest.mark.parametrize("audited", [True, False])
def test_a_class_that_is_lost_aborts_by_its_name(audited: bool) -> None:
    verdict = judged_detector(1, "class 7", audited=audited)
    assert verdict.decision is StageDecision.ABORT
    assert (verdict.rule in ("missed", "objects")) if audited else verdict.rule == "objects"
    assert "'class 7'" in verdict.sentence and "with the model" in verdict.sentence
    found = {finding.figure: finding.group for finding in verdict.findings if finding.p_value <= finding.level}
    assert found == dict.fromkeys(["missed", "objects"] if audited else ["objects"], "class 7")


def test_a_class_whose_objects_fall_by_half_aborts_without_a_full_model() -> None:
    verdict = judged_detector(1, "class 7", audited=False, kept=0.5)
    assert (verdict.decision, verdict.rule) == (StageDecision.ABORT, "objects")
    assert verdict.sentence.startswith(
        "objects of 'class 7': fewer than 83% of the devices' own past, by a factor of 1.67 on 40 devices with"
    )
    assert "1.02 times that would be accepted (p < 0.00001, aborts at" in verdict.sentence


@pytest.mark.parametrize("lost", ["class 7", "new"])
def test_a_class_whose_objects_double_or_appear_aborts_without_a_full_model(lost: str) -> None:
    verdict = judged_detector(1, lost, audited=False, kept=2.0)
    assert (verdict.decision, verdict.rule) == (StageDecision.ABORT, "surplus")
    assert verdict.sentence.startswith(f"objects of '{lost}': more than 120% of the devices' own past, by a factor of ")
    assert "on 40 devices with the model and 1" in verdict.sentence


def test_a_past_of_almost_no_time_is_judged() -> None:
    before = Period(ModelCounts("m", 1, rows=5, objects={"person": 5}), 1e-310)
    after = Period(ModelCounts("m", 1, rows=5, objects={"person": 5}), 8.0)
    devices = [StageDevice(against_past(before, after), before)] * 40
    verdict = judge(
        Rules(), stages=3, look=8, over=True, installed=40, failed=0, treated=devices, control=devices, seed=1
    )
    assert verdict.decision is not StageDecision.ABORT


@pytest.mark.parametrize("invented", [0, 100])
def test_objects_invented_on_quiet_scenes_abort_though_no_other_device_reports_any(invented: int) -> None:
    quiet = Period(ModelCounts("m", 1), 24.0)

    def devices(objects: dict[str, int]) -> list[StageDevice]:
        after = Period(ModelCounts("m", 1, objects=objects), 8.0)
        return [StageDevice(against_past(quiet, after), quiet)] * 40

    treated, control = devices({"person": invented} if invented else {}), devices({})
    verdict = judge(
        Rules(), stages=3, look=8, over=True, installed=40, failed=0, treated=treated, control=control, seed=1
    )
    if invented:
        assert (verdict.decision, verdict.rule) == (StageDecision.ABORT, "surplus")
    else:
        assert verdict.decision is not StageDecision.ABORT


def test_model_worse_on_one_board_aborts_and_names_it() -> None:
    rng = np.random.default_rng(3)
    boards = [f"board {number % 8}" for number in range(160)]
    worse = [{"escalations": 0.3} if board == "board 5" else {} for board in boards[:80]] + [{}] * 80
    devices = [
        msgspec.structs.replace(StageDevice(period(rng, 0.0, **by), period(rng, 0.0)), board=board)
        for board, by in zip(boards, worse, strict=True)
    ]
    verdict = judge(
        Rules(), stages=3, look=8, over=True, installed=80, failed=0, treated=devices[:80], control=devices[80:], seed=1
    )
    assert (verdict.decision, verdict.rule) == (StageDecision.ABORT, "escalations")
    assert verdict.sentence.startswith("escalations on 'board 5': 0.")
    assert "on 10 devices with the model" in verdict.sentence
    (found,) = [finding for finding in verdict.findings if finding.figure == "escalations"]
    assert (found.group, found.board, found.devices) == ("", "board 5", (10, 10))


def test_a_detector_that_changes_nothing_is_not_aborted() -> None:
    assert [judged_detector(seed).decision for seed in range(5)] == [StageDecision.HOLD] * 5


def test_a_better_model_is_promoted() -> None:
    assert judged(escalations=-0.1, disagreement=-0.02).decision is StageDecision.PROMOTE


def test_failed_installations_abort_at_the_first_evaluation() -> None:
    verdict = judged(failed=12, look=1)
    assert (verdict.decision, verdict.rule) == (StageDecision.ABORT, "installations")
    assert judged(failed=1, look=1).decision is StageDecision.HOLD


def test_a_model_that_no_device_could_install_is_never_promoted() -> None:
    none_installed = judged(each=2, failed=2, rules=Rules(promote_unseen=True))
    assert (none_installed.decision, none_installed.rule) == (StageDecision.HOLD, "installations")
    assert none_installed.sentence == "Of 2 devices that tried, none could install it."
    assert judged(each=2, failed=1, rules=Rules(promote_unseen=True)).decision is StageDecision.PROMOTE


def test_too_little_data_holds_the_stage() -> None:
    verdict = judged(each=4)
    assert (verdict.decision, verdict.rule) == (StageDecision.HOLD, "unclear")
    assert "disagreement" in verdict.sentence


def test_figures_without_a_required_difference_do_not_hold() -> None:
    find_nothing = {name: Limit(1.0) for name in FIGURES}
    assert judged(each=4, rules=Rules(limits=find_nothing)).decision is StageDecision.PROMOTE


@pytest.mark.parametrize(("unseen", "claimed"), [(False, True), (True, False)])
def test_a_promotion_claims_only_the_required_detection(unseen: bool, claimed: bool) -> None:
    verdict = judged(rules=Rules(promote_unseen=unseen))
    assert verdict.decision is StageDecision.PROMOTE
    assert ("this stage would have found what it must find" in verdict.sentence) is claimed


@pytest.mark.parametrize(
    ("rules", "decision"),
    [
        (Rules(), StageDecision.HOLD),
        (Rules(promote_unseen=True), StageDecision.HOLD),
        (Rules(promote_unseen=True, ignored=("disagreement",)), StageDecision.PROMOTE),
        (Rules(limits={"disagreement": Limit(0.01)}), StageDecision.PROMOTE),
    ],
)
def test_every_variant_needs_an_audit(rules: Rules, decision: StageDecision) -> None:
    audited = StageDevice(Period(ModelCounts("m", 1, audited=1), 1.0), variant="edge-fp32")
    never = StageDevice(Period(ModelCounts("m", 1, rows=9), 1.0), variant="edge-int8")
    verdict = judged(rules=rules, running=[audited, never])
    assert verdict.decision is decision
    assert ("No edge answer of edge-int8 was audited" in verdict.sentence) is (decision is StageDecision.HOLD)
    without_edge_model = StageDevice(Period(ModelCounts("m", 1, rows=9), 1.0))
    both = [audited, without_edge_model, StageDevice(None, variant="edge-fp32")]
    assert judged(rules=rules, running=both).decision is StageDecision.PROMOTE


def test_a_promotion_says_how_many_audits_there_were_and_how_many_disagreed() -> None:
    rules = Rules(promote_unseen=True)
    small = [
        StageDevice(Period(ModelCounts("m", 2, audited=1, disagreed=1, losses=1), 1.0), variant="edge")
        for _ in range(2)
    ]
    verdict = judge(
        rules, stages=1, look=8, over=True, installed=2, failed=0, treated=small, control=[], running=small, seed=1
    )
    assert (verdict.decision, verdict.rule) == (StageDecision.PROMOTE, "sound")
    assert "Of 2 audits on devices with the model, 2 disagreed." in verdict.sentence


def test_a_stage_without_any_report_is_held() -> None:
    silent = [StageDevice(None)] * 20
    found = judge(Rules(), stages=1, look=8, over=True, installed=20, failed=0, treated=silent, control=silent, seed=1)
    assert (found.decision, found.rule) == (StageDecision.HOLD, "unclear")


def test_a_stage_without_devices_held_back_says_that_it_cannot_compare() -> None:
    device = StageDevice(*(period(np.random.default_rng(seed), 0.0) for seed in (1, 2)))
    found = judge(Rules(), stages=1, look=8, over=True, installed=1, failed=0, treated=[device], control=[], seed=1)
    assert (found.decision, found.rule) == (StageDecision.HOLD, "unclear")
    assert "crashes (detects no difference, must detect 1)" in found.sentence
    assert found.sentence.endswith("No comparison is possible without devices that are held back.")


def crashing(*boards: str) -> list[StageDevice]:
    """Twenty devices in service for a day, of which every second crashed once; their boards in turn."""
    return [
        StageDevice(Period(ModelCounts("m", 1), 24.0, number % 2), board=boards[number // 2 % len(boards)])
        for number in range(20)
    ]


@pytest.mark.parametrize(("boards", "tested"), [(("",), 1), (("a",), 1), (("a", "b"), 3), (("a", "b", ""), 3)])
def test_what_a_stage_detects_by_hand(boards: tuple[str, ...], tested: int) -> None:
    """The level is shared by all devices and those of each board; the variance of each group is 5 / 19."""
    devices = crashing(*boards)
    verdict = judge(
        Rules(), stages=3, look=2, over=False, installed=20, failed=0, treated=devices, control=devices, seed=1
    )
    (finding,) = [each for each in verdict.findings if each.figure == "crashes"]
    assert finding.level == pytest.approx(0.01 / (3 * 13) / 16)  # twelve figures and the installations
    normal = NormalDist()
    quantiles = normal.inv_cdf(1 - finding.level / tested) + normal.inv_cdf(0.9)
    assert finding.detectable == pytest.approx(0.1 + quantiles * math.sqrt(2 * 5 / 19 / 20))
    assert (finding.treated, finding.control, finding.must_detect) == (0.5, 0.5, 1.0)


def test_a_board_of_fewer_than_four_devices_is_not_tested_alone() -> None:
    """Its two devices crash all day; among all devices, two of 20 are no evidence."""
    for count, board in ((3, ""), (4, "rare")):
        rare = [StageDevice(Period(ModelCounts("m", 1), 24.0, 24), board="rare")] * (count - count // 2)
        fine = [StageDevice(Period(ModelCounts("m", 1), 24.0), board="rare")] * (count // 2)
        verdict = judge(
            Rules(),
            stages=1,
            look=1,
            over=False,
            installed=20,
            failed=0,
            treated=rare + [StageDevice(Period(ModelCounts("m", 1), 24.0), board="usual")] * 20,
            control=fine + [StageDevice(Period(ModelCounts("m", 1), 24.0), board="usual")] * 20,
            seed=1,
        )
        (finding,) = [each for each in verdict.findings if each.figure == "crashes"]
        assert finding.board == board


def test_failed_installations_by_hand() -> None:
    """Of three, two fail at an accepted rate of 2 %: 3 * 0.02 ** 2 * 0.98 + 0.02 ** 3."""
    found = judged(each=3, failed=2, look=1).findings[0]
    assert found.p_value == pytest.approx(3 * 0.02**2 * 0.98 + 0.02**3)
    assert (found.treated, found.control, found.devices) == (pytest.approx(2 / 3), 0.02, (3, 0))
    assert judged(each=3, failed=0, look=1).findings[0].p_value == 1


def test_a_verdict_is_reproducible_from_its_seed() -> None:
    assert repr(judged(7, disagreement=0.03)) == repr(judged(7, disagreement=0.03))


def test_an_unknown_figure_is_refused() -> None:
    with pytest.raises(ValueError, match="no figure 'speed'"):
        Rules(limits={"speed": Limit(1.0)})


def test_ignored_figures_are_not_judged() -> None:
    verdict = judged(rules=Rules(ignored=("disagreement",)), disagreement=0.5)
    assert verdict.decision is StageDecision.PROMOTE
    assert "disagreement" not in {finding.figure for finding in verdict.findings}


def test_the_95th_percentile_is_interpolated_within_its_bin() -> None:
    bins = [0] * BINS
    bins[3], bins[6] = 90, 10  # 5 to 10 ms, 50 to 100 ms
    p95_ms = latency_p95_ms(ModelCounts("m", 1, latency=tuple(bins)))
    assert p95_ms == pytest.approx(50 * 2**0.5)
    assert latency_p95_ms(ModelCounts("m", 1, latency=(19,) + (0,) * 12)) is None
    assert latency_p95_ms(ModelCounts("m", 1, latency=(0,) * 12 + (30,))) == pytest.approx(5000 * 2**0.95)


def test_the_predicted_difference_is_detected_with_the_stated_power() -> None:
    level, spread = 1e-3, 0.2
    by = statistics.smallest_detectable(statistics.spread_error(spread, 40, 40), level, statistics.divisions(40, 40))
    found = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        values = rng.normal(0, spread, 80)
        treated = np.arange(80) < 40
        groups = statistics.Groups(values + by * treated, np.ones(80), np.full(80, np.nan), treated)
        assert statistics.standard_error(groups) == pytest.approx(statistics.spread_error(spread, 40, 40), rel=0.4)
        found += statistics.p_values([statistics.ClassGroups([groups], 0.0)], level, rng)[0] <= level
    assert abs(found / 60 - statistics.POWER) < 0.12


def test_too_few_devices_detect_nothing() -> None:
    assert statistics.divisions(2, 2) == pytest.approx(6)
    assert statistics.smallest_detectable(0.01, 1e-3, statistics.divisions(2, 2)) == math.inf


def test_p_values_are_never_shown_as_zero() -> None:
    verdict = judged(each=400, failed=400, look=1)
    assert verdict.findings[0].p_value > 0
    assert "p < 0.000000001" in verdict.sentence
    compared = judged(disagreement=0.2)
    assert "p < 0.00001, aborts at" in compared.sentence
    assert all(0 < finding.p_value <= 1 for finding in compared.findings)


def test_a_small_tail_probability_is_not_lost_in_rounding() -> None:
    # 30 of 60 at 2 %: 1 less the others' probability would be 0, or noise.
    assert judged(failed=30, look=1).findings[0].p_value == pytest.approx(7.04e-35, rel=0.01)


def test_devices_without_a_figure_have_no_weight() -> None:
    rng = np.random.default_rng(3)
    values, treated = rng.normal(size=80), np.arange(80) % 2 == 0
    weights = np.where(np.arange(80) < 40, 1.0, 0.0)
    mixed = statistics.Groups(values + 2.0 * treated, weights, np.full(80, np.nan), treated)
    alone = statistics.Groups(mixed.values[:40], mixed.weights[:40], mixed.before[:40], treated[:40])
    assert mixed.counts == alone.counts and mixed.means == alone.means
    assert statistics.standard_error(mixed) == statistics.standard_error(alone)
    assert (
        statistics.p_values([statistics.ClassGroups([mixed], 0.0)], 1e-4, rng)[0] < 1e-3
        and statistics.p_values([statistics.ClassGroups([alone], 0.0)], 1e-4, rng)[0] < 1e-3
    )
    one_group = statistics.Groups(values, np.where(treated, 0.0, 1.0), np.full(80, np.nan), treated)
    assert statistics.p_values([statistics.ClassGroups([one_group], 0.0)], 1e-4, rng)[0] == 1.0


def test_silent_devices_abort_although_the_others_are_well() -> None:
    rng = np.random.default_rng(1)

    def devices(silent: int) -> list[StageDevice]:
        found = [StageDevice(period(rng, 0.0), period(rng, 0.0)) for _ in range(60)]
        no_report = Period(ModelCounts("m", 1), 0.0, silent=True)
        return [
            StageDevice(no_report if index < silent else replace(each.after or no_report, silent=False), each.before)
            for index, each in enumerate(found)
        ]

    verdict = judge(
        Rules(), stages=3, look=2, over=False, installed=60, failed=0, treated=devices(30), control=devices(2), seed=1
    )
    assert (verdict.decision, verdict.rule) == (StageDecision.ABORT, "silence")


def test_rules_that_can_never_promote_are_refused() -> None:
    with pytest.raises(RequestError, match="no stage could be promoted"):
        Rules(limits={"errors": Limit(0.05, 0.05)}).check()
    Rules(limits={"errors": Limit(0.05, 0.05)}, promote_unseen=True).check()


def test_promote_unseen_keeps_the_tolerances() -> None:
    unseen = Rules(promote_unseen=True).judged
    assert {name: limit.tolerance for name, limit in unseen.items()} == {
        name: limit.tolerance for name, limit in Rules().judged.items()
    }
    assert judged(each=4, rules=Rules(promote_unseen=True)).decision is StageDecision.PROMOTE
