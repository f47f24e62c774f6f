from dataclasses import replace
from functools import reduce
from math import prod

import numpy as np
import pytest

from firstline_core.errors import ConfigError
from firstline_core.routing import audit
from firstline_core.routing.audit import (
    AuditState,
    alarm,
    audits_to_alarm,
    begin,
    check,
    e_value,
    starting,
    update,
    waiting,
)


def _after(losses: list[float], epsilon: float = 0.05, *, start: AuditState | None = None) -> AuditState:
    return reduce(update, losses, start or begin(epsilon))


def test_the_recursion_equals_the_mixture_over_starts() -> None:
    random = np.random.default_rng(4)
    losses = [float(loss) for loss in random.random(60).round(3)]
    state = _after(losses, 0.1)
    factors = [1 + np.array(state.bets) * (loss - 0.1) for loss in losses]
    started = [prod(factors[k - 1 :]) / (k * (k + 1)) for k in range(1, 61)]
    assert state.wealth == pytest.approx(sum(started))
    never = 1 - sum(1 / (k * (k + 1)) for k in range(1, 61))
    assert e_value(state) == pytest.approx(np.mean(sum(started)) + never)
    assert [audit.starting(k) for k in range(1, 61)] == pytest.approx(
        [audit.waiting(k - 1) - audit.waiting(k) for k in range(1, 61)]
    )


@pytest.mark.parametrize("epsilon", [0.01, 0.05, 0.4])
def test_each_bet_is_the_best_for_its_odds(epsilon: float) -> None:
    """Kelly 1956: against an error of probability q, the best bet is (q - epsilon) / (epsilon * (1 - epsilon))."""
    for bet, times in zip(begin(epsilon).bets, (1.5, 2, 3, 5, 12), strict=True):
        odds = times * epsilon / (1 - epsilon)
        wrong = odds / (1 + odds)
        assert bet == pytest.approx((wrong - epsilon) / (epsilon * (1 - epsilon)))


def test_the_evidence_after_one_error_by_hand() -> None:
    """Half of the wealth waits, and half is bet: bets of (odds - 1) / (1 + 0.05 * (odds - 1)) win 0.95 times each."""
    bets = [0.5 / 1.025, 1 / 1.05, 2 / 1.1, 4 / 1.2, 11 / 1.55]
    expected = 0.5 + 0.5 * (1 + 0.95 * sum(bets) / 5)
    state = _after([1.0])
    assert e_value(state) == state.peak == pytest.approx(expected)
    assert e_value(_after([0.0])) == pytest.approx(0.5 + 0.5 * (1 - 0.05 * sum(bets) / 5))


def test_an_alarm_needs_evidence_of_one_over_its_level() -> None:
    state = begin(0.05)
    assert alarm(replace(state, peak=20.0), 0.05) and alarm(replace(state, peak=4.0), 0.25)
    assert not alarm(replace(state, peak=19.99), 0.05)


@pytest.mark.parametrize("level", [0.05, 0.001])
@pytest.mark.parametrize("epsilon", [0.01, 0.05, 0.3])
def test_audits_to_alarm_are_the_fewest_whose_growth_suffices(epsilon: float, level: float) -> None:
    """The odds of an error are doubled; one of five players owns a tenth. 1.645 is the normal 95 % quantile."""
    wrong = 2 * epsilon / (1 + epsilon)

    def least_growth(number: int) -> float:
        found = []
        for bet in begin(epsilon).bets:
            won, lost = np.log(1 + bet * (1 - epsilon)), np.log(1 - bet * epsilon)
            mean = wrong * won + (1 - wrong) * lost
            variance = wrong * (won - mean) ** 2 + (1 - wrong) * (lost - mean) ** 2
            found.append(number * mean - 1.645 * np.sqrt(number * variance))
        return max(found)

    needed = audits_to_alarm(begin(epsilon), level)
    assert least_growth(needed - 1) < np.log(10 / level) <= least_growth(needed)


def test_agreement_never_alarms_and_disagreement_soon_does() -> None:
    assert _after([0.0] * 5000).peak == 1
    assert alarm(_after([1.0] * 4), 0.05)
    assert not alarm(_after([1.0]), 0.05)


def test_thousands_of_quiet_audits_do_not_blind_it() -> None:
    quiet = _after([0.0] * 10_000)
    assert not alarm(quiet, 0.05)
    shifted = _after([1.0, 0.0, 0.0, 0.0, 0.0] * 40, start=quiet)  # 20 % where 5 % was promised
    assert alarm(shifted, 0.05)


def test_an_alarm_lasts_though_the_evidence_fades() -> None:
    state = _after([1.0] * 4 + [0.0] * 2000)
    assert e_value(state) < 1
    assert alarm(state, 0.05)


def test_the_wealth_is_bounded() -> None:
    state = _after([1.0] * 2000)
    assert max(state.wealth) == 1e300
    check(state)


@pytest.mark.parametrize(
    "invalid",
    [
        replace(begin(0.05), epsilon=1.5),
        replace(begin(0.05), epsilon=0.0),
        replace(begin(0.05), epsilon=1.0, bets=(0.5,) * 5),
        replace(begin(0.05), wealth=(0.0,)),
        replace(begin(0.05), wealth=(), bets=()),
        replace(begin(0.05), bets=(1.0, 2.0, 3.0, 4.0, 20.0)),
        replace(begin(0.05), wealth=(-1.0, 0.0, 0.0, 0.0, 0.0)),
        replace(begin(0.05), audits=-1),
        replace(begin(0.05), bets=(0.0,) * 5),
        replace(begin(0.05), peak=0.99),
        replace(_after([1.0]), peak=1.0),
    ],
)
def test_a_state_that_no_audits_lead_to_is_refused(invalid: AuditState) -> None:
    with pytest.raises(ConfigError, match="stored state of the audits"):
        check(invalid)


@pytest.mark.parametrize("state", [begin(0.05), AuditState(0.05, (1.0,), (0.0,)), _after([0.0, 1.0])])
def test_a_state_that_audits_lead_to_is_accepted(state: AuditState) -> None:
    check(state)


@pytest.mark.parametrize("loss", [-0.1, 1.1, float("nan")])
def test_a_loss_out_of_range_is_refused(loss: float) -> None:
    with pytest.raises(ConfigError, match="a loss is 0 to 1"):
        update(begin(0.05), loss)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan")])
def test_epsilon_and_the_level_lie_between_0_and_1(share: float) -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        begin(share)
    with pytest.raises(ConfigError, match="level"):
        alarm(begin(0.05), share)


@pytest.mark.parametrize("epsilon", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("level", [0.05, 0.01])
def test_after_so_many_audits_the_alarm_has_come_with_95_percent(epsilon: float, level: float) -> None:
    rng, wrong, needed = np.random.default_rng(5), 2 * epsilon / (1 + epsilon), audits_to_alarm(begin(epsilon), level)
    bets, runs = np.array(begin(epsilon).bets), 1000
    wealth, peak = np.zeros((runs, len(bets))), np.zeros(runs)
    for number in range(1, needed + 1):
        gain = (rng.random(runs) < wrong) - epsilon
        wealth = (1 + bets * gain[:, None]) * (wealth + starting(number))
        peak = np.maximum(peak, wealth.mean(1) + waiting(number))
    assert 0.95 <= np.mean(peak * level >= 1) <= 0.998
