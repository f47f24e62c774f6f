import math
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytest

from firstline_core.errors import ConfigError
from firstline_core.routing.bounds import betting, clopper_pearson, hoeffding_bentkus, upper_bound
from firstline_core.routing.certification import (
    FEWEST_ROWS,
    CertificationResult,
    RejectedRange,
    Start,
    between,
    cells_of,
    certify,
    ranks,
    rejected_ranges,
    split,
    start_shares,
    starts_at,
)
from firstline_core.routing.contracts import certify_weighted


def test_299_error_free_rows_prove_one_percent() -> None:
    enough = certify([0.9] * 299, [0] * 299, 0.01, 0.05)
    assert enough == CertificationResult(True, 0.9, 1.0, pytest.approx(1 - 0.05 ** (1 / 299)), 299, 0)
    short = certify([0.9] * 298, [0] * 298, 0.01, 0.05)
    assert short == CertificationResult(False, None, 0.0, None, 298, 1)
    assert certify([0.9] * 100, [0] * 100, 0.01, 0.05).n_needed == 199


def test_equal_scores_are_certified_together() -> None:
    scores = [1.0] * 200 + [0.5] * 200
    assert certify(scores, [0] * 200 + [1] * 200, 0.05, 0.05).threshold == 0.75
    assert not certify(scores, [1] * 20 + [0] * 180 + [1] * 200, 0.05, 0.05).certified


def test_equal_scores_that_are_infinite_are_certified_together() -> None:
    scores = np.r_[np.linspace(1, 0.1, 600), np.full(300, -np.inf)]
    losses = np.r_[np.zeros(600), np.arange(300) % 2]
    assert certify(scores, losses, 0.05, 0.05).kept == 600 / 900


def test_errors_in_the_first_tie_do_not_stop_testing() -> None:
    scores = np.r_[np.ones(100), np.linspace(0, 0.9, 1900)]
    losses = np.r_[np.ones(6), np.zeros(1994)]
    assert certify(scores, losses, 0.05, 0.05).kept == 1


def test_a_start_at_a_rank_is_no_threshold() -> None:
    """The 60 surest rows pass and the 61st ends the walk: numbers between them were not tested."""
    scores = np.linspace(1, 0.1, 300)
    assert not certify(scores, np.r_[np.zeros(60), np.ones(240)], 0.05, 0.05).certified
    assert certify(scores, np.r_[np.zeros(61), np.ones(239)], 0.05, 0.05).kept == 61 / 300


def test_a_start_at_a_rank_has_its_share_of_delta() -> None:
    """The first test is of 60 rows without error, which have a p-value of 0.95 ** 60 = 0.0461, at 0.94 of delta."""
    scores, losses = np.linspace(1, 0.1, 300), np.r_[np.zeros(61), np.ones(239)]
    assert 0.94 * 0.048 < 0.95**60 < 0.94 * 0.05
    assert not certify(scores, losses, 0.05, 0.048).certified
    found = certify(scores, losses, 0.05, 0.05)
    assert found.risk_upper == pytest.approx(1 - (0.94 * 0.05) ** (1 / 61))
    assert found.threshold == round((scores[60] + scores[61]) / 2, 6)


def test_a_start_at_all_rows_is_a_threshold() -> None:
    found = certify(np.linspace(1, 0.1, 60), np.zeros(60), 0.05, 0.05)
    assert (found.certified, found.threshold, found.kept) == (True, 0.1, 1)
    assert certify([0.5], [0], 0.05, 0.05) == CertificationResult(False, None, 0.0, None, 1, 58)


def test_every_score_below_a_start_is_tested() -> None:
    """After 101 rows all are lost: at half of delta, 102 rows with one error pass, and 103 with two do not."""
    scores, losses = np.linspace(1, 0, 201), np.r_[np.zeros(101), np.ones(100)]
    starts = [Start(0.7, 0.5), Start(0.4, 0.5)]
    for named in (starts, starts[::-1]):
        found = certify(scores, losses, 0.05, 0.1, starts=named)
        assert found.kept == 102 / 201
        assert found.risk_upper == pytest.approx(clopper_pearson(1, 102, 0.05))


def test_few_graded_rows_are_tested_by_betting() -> None:
    losses = np.full(200, 0.02)
    found = certify(np.ones(200), losses, 0.05, 0.05)
    assert found.risk_upper == pytest.approx(upper_bound(lambda mean: betting(losses, mean), 0.05))
    assert found.risk_upper < 0.05 < upper_bound(lambda mean: float(hoeffding_bentkus(4, 200, mean)), 0.05)


def test_many_graded_rows_are_tested_by_hoeffding_and_bentkus() -> None:
    found = certify(np.ones(6000), np.full(6000, 0.02), 0.05, 0.05)
    expected = upper_bound(lambda mean: float(hoeffding_bentkus(120, 6000, mean)), 0.05)
    assert found.risk_upper == pytest.approx(expected)


def test_a_single_graded_loss_excludes_the_exact_test() -> None:
    """The sum of 4.851 would have a binomial tail of 0.44, below delta; betting shows nothing."""
    assert not certify(np.ones(100), np.r_[0, np.full(99, 0.049)], 0.05, 0.5).certified


def test_the_upper_bound_is_that_of_all_errors() -> None:
    found = certify(np.ones(300), np.r_[np.ones(3), np.zeros(297)], 0.05, 0.05)
    assert found.risk_upper == pytest.approx(clopper_pearson(3, 300, 0.05))


def test_the_start_with_the_fewest_missing_rows_is_named() -> None:
    """Half of delta needs 72 rows without error: one start has 10, the other 50. A part of a loss counts as one."""
    scores = np.repeat([0.9, 0.5], [10, 40])
    starts = [Start(0.9, 0.5), Start(0.5, 0.5)]
    assert certify(scores, np.zeros(50), 0.05, 0.05, starts=starts).n_needed == 72 - 50
    one_lost = certify(np.ones(10), np.full(10, 0.05), 0.1, 0.1).n_needed
    assert one_lost == certify(np.ones(10), np.r_[1, np.zeros(9)], 0.1, 0.1).n_needed == 38 - 10


def test_a_start_within_a_tie_includes_surer_rows() -> None:
    """5 errors in the 50 surest rows, none in the 200 that tie: the first test is of 60 rows, not of all 250."""
    scores = np.repeat([1.0, 0.5, 0.1], [50, 200, 50])
    losses = np.repeat([1, 0, 1], [5, 245, 50])
    assert not certify(scores, losses, 0.05, 0.05).certified


def test_rounding_does_not_split_the_first_start() -> None:
    """One error in 60 rows shows nothing, in 100 it does."""
    scores = np.float32([0.999999] * 50 + [0.9999989] * 50 + [0.5] * 200)
    losses = np.repeat([1, 0, 1], [1, 99, 200])
    assert certify(scores, losses, 0.05, 0.05).kept == 100 / 300
    assert not certify(np.linspace(1, 0.5, 300), losses, 0.05, 0.05).certified


def test_a_row_without_a_score_counts_as_escalated() -> None:
    found = certify([0.9] * 100 + [np.nan] * 100, [0] * 100 + [1] * 100, 0.05, 0.05)
    assert (found.certified, found.kept, found.n) == (True, 0.5, 200)
    assert certify([np.nan] * 5, [0] * 5, 0.01, 0.05) == CertificationResult(False, None, 0.0, None, 5, 299)


def test_a_selection_part_does_not_certify() -> None:
    scores = np.random.default_rng(0).random(1000)
    found = certify_weighted(scores, np.zeros(1000), np.ones(1000), 0.05, 0.05, select_fraction=0.2, seed=4)
    assert found == certify_weighted(scores, np.zeros(1000), np.ones(1000), 0.05, 0.05, select_fraction=0.2, seed=4)
    assert found.n == 800
    selection, rest = split(1000, 0.2, 4)
    assert sorted([*selection, *rest]) == list(range(1000))
    assert len(selection) == 200


def test_starts_with_equal_scores_are_merged() -> None:
    assert starts_at([0.5] * 10) == (Start(0.5, 1.0),)
    assert starts_at([]) == starts_at([np.nan]) == ()


def test_the_threshold_lies_between_two_scores() -> None:
    assert between(0.5, 0.75) == 0.625
    assert between(None, 0.75) == 0.75
    assert between(1.0, np.nextafter(1.0, 2)) == np.nextafter(1.0, 2)
    assert between(-1e308, 1e308) == 0
    assert between(0.0, 1 / 3) == 0.166667
    assert between(0.1, 0.1 + 1e-8) == pytest.approx(0.1 + 5e-9, abs=1e-12)


@pytest.mark.parametrize("n", [300, 6000])
def test_losses_between_0_and_1(n: int) -> None:
    random = np.random.default_rng(0)
    scores = random.random(n)
    losses = random.random(n) * 0.4 * (1 - scores)
    found = certify(scores, losses, 0.1, 0.05)
    assert losses[scores >= found.threshold].mean() < (found.risk_upper or 1) <= 0.1
    assert 0.3 < found.kept < 1


@pytest.mark.parametrize(
    ("scores", "losses", "epsilon", "delta", "message"),
    [
        ([1.0], [0, 0], 0.1, 0.1, "one each a row"),
        ([1.0], [2], 0.1, 0.1, "loss of row 0 is 2"),
        ([1.0, 0.5], [0, 2], 0.1, 0.1, "loss of row 1 is 2"),
        ([1.0], [np.nan], 0.1, 0.1, "loss of row 0"),
        ([1.0], [0], 0, 0.1, "epsilon is 0"),
        ([1.0], [0], 0.1, 1, "delta is 1"),
    ],
)
def test_invalid_arguments_are_refused(scores: Any, losses: Any, epsilon: Any, delta: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        certify(scores, losses, epsilon, delta)


RISKS: Any = {
    "rising": lambda s: 0.25 * (1 - s) ** 2,
    "quantised and saturated": lambda s: np.where(s > 0.7, 0.04, 0.2),
    "never below": lambda s: np.full_like(s, 0.051),
    "zig-zag": lambda s: np.where((s * 8).astype(int) % 2 == 1, 0.11, 0.01),
    "bad at the top, then good, then bad": lambda s: np.where(s > 0.8, 0.11, np.where(s > 0.5, 0.01, 0.12)),
}


@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("select", [0.0, 0.1])
def test_at_most_delta_of_certificates_are_wrong(risk: str, select: float) -> None:
    random = np.random.default_rng(11)
    grid = np.linspace(0, 1, 257)[1:]
    steps = np.minimum(grid, 0.7 if risk.startswith("quantised") else 1.0)
    true = np.cumsum(RISKS[risk](grid)[::-1])[::-1] / np.arange(256, 0, -1)
    broken = 0
    for _ in range(60):
        rows = random.integers(0, 256, 400)
        losses = random.random(400) < RISKS[risk](grid)[rows]
        found = certify_weighted(steps[rows], losses, np.ones(400), 0.05, 0.2, select_fraction=select)
        if found.threshold is not None:
            broken += true[np.searchsorted(steps, found.threshold)] > 0.05
    assert broken <= 21  # 12 expected at most; more has a probability below 0.3 %


def _chance_of_a_wrong_certificate(risks: dict[float, float], epsilon: float, delta: float, rows: int) -> float:
    """Enumerates what rows of equally likely scores can be; a certificate is wrong if its risk is above epsilon."""
    kinds = [(score, loss) for score in risks for loss in (0, 1)]
    chances = {
        (score, loss): (risk if loss else 1 - risk) / len(risks) for score, risk in risks.items() for loss in (0, 1)
    }
    starts = [Start(max(risks), 0.5), Start(min(risks), 0.5)]
    wrong = 0.0
    for drawn in combinations_with_replacement(kinds, rows):
        scores, losses = zip(*drawn, strict=True)
        found = certify(scores, losses, epsilon, delta, starts=starts)
        if found.threshold is not None:
            kept = [risk for score, risk in risks.items() if score >= found.threshold]
            if np.mean(kept) > epsilon:
                orders = math.factorial(rows) / math.prod(math.factorial(drawn.count(kind)) for kind in set(drawn))
                wrong += orders * math.prod(chances[kind] for kind in drawn)
    return wrong


@pytest.mark.parametrize(("risks", "least"), [({1.0: 0.501}, 0.034), ({1.0: 0.3, 0.5: 0.72}, 0)])
def test_the_chance_of_a_wrong_certificate_is_at_most_delta(risks: dict[float, float], least: float) -> None:
    """Of 8 rows at a risk of a half, at most one is lost with a probability of 9 / 256, which is 0.03516."""
    assert least < _chance_of_a_wrong_certificate(risks, 0.5, 0.0352, 8) <= 0.0352


def test_delta_is_spent_once() -> None:
    with pytest.raises(ConfigError, match=r"share out 1\.5 of delta"):
        certify([0.5] * 9, [0] * 9, 0.05, 0.05, starts=[Start(0.9, 1.0), Start(0.5, 0.5)])


def _of(p_values: list[float], starts: list[tuple[int, float]], delta: float = 0.1) -> list[RejectedRange]:
    return rejected_ranges(len(p_values), starts, delta, lambda first, last: np.array(p_values[first:last]))


def test_one_start_is_fixed_sequence_testing() -> None:
    assert _of([0.1, 0.05, 0.11, 0.0], [(0, 1.0)]) == [RejectedRange(0, 1, 0.1)]
    assert _of([0.2, 0.0], [(0, 1.0)]) == []


def test_unbroken_testing_adds_the_shares_of_later_starts() -> None:
    assert _of([0.04, 0.04, 0.09, 0.11], [(0, 0.5), (2, 0.5)]) == [RejectedRange(0, 1, 0.05), RejectedRange(2, 2, 0.1)]


def test_after_a_failure_testing_continues_at_the_next_start() -> None:
    starts = [(0, 0.5), (2, 0.5)]
    assert _of([0.06, 0.0, 0.05, 0.051], starts) == [RejectedRange(2, 2, 0.05)]
    assert _of([0.01, 0.06, 0.06, 0.0], starts) == [RejectedRange(0, 0, 0.05)]


def test_without_a_start_nothing_is_tested() -> None:
    assert _of([0.0], []) == []


def test_a_start_with_too_few_rows_is_merged() -> None:
    assert ranks(2500) == {125: 0.08, 500: 0.86, 1250: 0.03, 2500: 0.03}
    assert ranks(1200) == {60: 0.08, 240: 0.86, 600: 0.03, 1200: 0.03}
    assert ranks(1199) == {240: pytest.approx(0.94), 600: 0.03, 1199: 0.03}
    assert ranks(650) == {130: pytest.approx(0.94), 325: 0.03, 650: 0.03}
    assert ranks(250) == {60: pytest.approx(0.94), 125: 0.03, 250: 0.03}
    assert ranks(100) == {60: pytest.approx(0.97), 100: 0.03}
    assert ranks(60) == {60: pytest.approx(1.0)}


def test_starts_keep_enough_rows_and_share_out_one_delta() -> None:
    for rows in range(1, 4000, 7):
        found = ranks(rows)
        assert all(min(FEWEST_ROWS, rows) <= rank <= rows for rank in found)
        assert sum(found.values()) == pytest.approx(1.0), rows
        assert all(0 < share <= 1 for share, _ in start_shares(rows))


@pytest.mark.parametrize("scale", [1.0, -1.0, 2.0**-30, 2.0**30])
def test_cells_merge_scores_that_differ_by_rounding(scale: float) -> None:
    ones = np.array([1.0, np.float32(0.99999994), np.float32(1.0000001), 0.99999, 1.00001]) * scale
    cells = cells_of(ones)
    assert cells[0] == cells[1] == cells[2]
    assert len({*cells[[0, 3, 4]].tolist()}) == 3
    scores = np.sort(np.random.default_rng(0).normal(0, scale if scale > 0 else 1, 1000))
    assert (np.diff(cells_of(scores)) >= 0).all()
