"""A sequential test of the contract, "risk <= epsilon", that stays valid when it is evaluated after every audit.

An edge answer is audited with a probability (its propensity) that depends on the past alone: on traffic and a budget,
not on the answer. A player bets that audited losses are above epsilon: with the bet b, an audit of loss L multiplies
the wealth by

    f = 1 + b * (L - epsilon),    0 < b < 1 / epsilon.

So f >= 1 - b * epsilon > 0, and a bet never costs more than the wealth. An answer that is not audited does not change
the wealth. Over the draw, f - 1 is on average propensity * b * (loss - epsilon), of which the mean over answers is at
most 0 while their risk is at most epsilon.

With a single start the wealth is gone after thousands of quiet audits. So a share 1 / (k * (k + 1)) of it waits for
audit k before it is bet. With F(k, t) = f_k * ... * f_t, the wealth after audit t is

    M_t = S_t + 1 / (t + 1),    S_t = sum of F(k, t) / (k * (k + 1)) over k <= t,

as the waiting shares telescope to 1 / (t + 1). f_t is the last factor of every F(k, t), so that S_t needs one number:
S_t = f_t * (S_{t-1} + 1 / (t * (t + 1))), S_0 = 0. While the risk is at most epsilon, M_t is on average at most S_{t-1}
+ 1 / (t * (t + 1)) + 1 / (t + 1) = S_{t-1} + 1 / t = M_{t-1}: a supermartingale that starts at 1 and is never negative.
The probability that it ever reaches 1 / delta is at most delta (Ville 1939). The same holds for the average over a few
bets, each of which is best for another risk; that average is the e-value here.

Sources: Waudby-Smith and Ramdas 2024, "Estimating Means of Bounded Random Variables by Betting"; Shin, Ramdas and
Rinaldo 2024, "E-detectors". Their unweighted sum over starts bounds the rate of false alarms; here the probability of
any false alarm is bounded.

Any loss in [0, 1] is valid, such as 1 - mean IoU of a segmentation: f is positive at a loss of 0, and the mean of f
depends on the mean of the loss alone.

Assumptions: given all earlier audits, the next answer's loss is at most epsilon on average. Whether and when an audit's
result comes does not depend on its loss. If sources, or bursts and quiet times, differ in risk, the first assumption
holds for their sum: a device audits all its answers with the same propensity (`sampling.spaced_probabilities`), so the
sum of propensity * (loss - epsilon) is at most 0 on average while all answers together keep the promise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from firstline_core.errors import ConfigError

_ODDS = (1.5, 2.0, 3.0, 5.0, 12.0)  # times as likely to be wrong: the shifts for which the bets are best
_NORMAL_95 = 1.645  # standard deviations that a normal distribution undershoots with a probability of 5 %
_WEALTH_LIMIT = 1e300  # wealth above this is discarded, which only makes the test stricter


@dataclass(frozen=True, slots=True)
class AuditState:
    """The state of the test, of constant size.

    Attributes:
        epsilon: the certified risk, above 0 and below 1.
        bets: of each player, above 0 and below 1 / epsilon.
        wealth: S_t of each player.
        audits: number of audits.
        peak: the largest e-value so far, 1 before any audit.
    """

    epsilon: float
    bets: tuple[float, ...]
    wealth: tuple[float, ...]
    audits: int = 0
    peak: float = 1.0


def begin(epsilon: float) -> AuditState:
    """Returns the state before the first audit of a threshold; a new certificate starts a new test.

    Each bet grows fastest (Kelly 1956) for losses of 0 and 1 whose odds are a certain multiple of the odds of epsilon.

    Raises:
        ConfigError: epsilon is not above 0 and below 1.
    """
    if not 0 < epsilon < 1:
        raise ConfigError(f"epsilon is {epsilon:g}, but must be above 0 and below 1, such as 0.05.")
    bets = tuple((odds - 1) / (1 + epsilon * (odds - 1)) for odds in _ODDS)
    return AuditState(epsilon, bets, (0.0,) * len(bets))


def update(state: AuditState, loss: float) -> AuditState:
    """Returns the state after one more audit.

    Args:
        state: after the previous audits.
        loss: of the edge answer, 0 to 1; 0 if it agrees with the full model.

    Raises:
        ConfigError: the loss is out of range.
    """
    if not 0 <= loss <= 1:
        raise ConfigError(f"The loss of an audit is {loss:g}; a loss is 0 to 1.")
    gain = loss - state.epsilon
    invested = starting(state.audits + 1)
    wealth = tuple(
        min(_WEALTH_LIMIT, (1 + bet * gain) * (amount + invested))
        for bet, amount in zip(state.bets, state.wealth, strict=True)
    )
    audits = state.audits + 1
    return AuditState(state.epsilon, state.bets, wealth, audits, max(state.peak, _mixture(audits, wealth)))


def waiting(audits: int) -> float:
    """Returns the share of the wealth that is not yet bet after a number of audits."""
    return 1 / (audits + 1)


def starting(audit: int) -> float:
    """Returns the share of the wealth that is bet from this audit on; the first audit is 1."""
    return 1 / (audit * (audit + 1))


def e_value(state: AuditState) -> float:
    """Returns the evidence against "risk <= epsilon": the wealth, 1 at the beginning."""
    return _mixture(state.audits, state.wealth)


def _mixture(audits: int, wealth: Sequence[float]) -> float:
    return waiting(audits) + sum(wealth) / len(wealth)


def alarm(state: AuditState, level: float) -> bool:
    """Returns whether the e-value ever reached 1 / level.

    That has a probability of at most `level` if the risk is at most epsilon.

    Args:
        state: after any number of audits.
        level: delta if all audits of a bundle are pooled; delta / number of devices on a single device.

    Raises:
        ConfigError: the level is not above 0 and below 1.
    """
    if not 0 < level < 1:
        raise ConfigError(f"The level of an alarm is {level:g}, but must be above 0 and below 1, such as 0.05.")
    return state.peak * level >= 1


def audits_to_alarm(state: AuditState, level: float) -> int:
    """Returns after how many audits an alarm has come with 95 %, if the odds of an error are twice those promised.

    Half of a player's wealth is bet from the first audit on. After n audits its logarithm has grown by n * mean, with a
    standard deviation of sqrt(n * variance), and is about normal. The player whose growth of n * mean - 1.645 * sqrt(n
    * variance) first suffices for the alarm gives n. Losses of 0 and 1 need the most audits of all with the same mean.

    Args:
        state: of the test; only its promise and its bets count.
        level: as in `alarm`.
    """
    wrong = 2 * state.epsilon / (1 + state.epsilon)
    needed = math.log(2 * len(state.bets) / level)
    found = math.inf
    for bet in state.bets:
        up, down = math.log(1 + bet * (1 - state.epsilon)), math.log(1 - bet * state.epsilon)
        mean, margin = wrong * up + (1 - wrong) * down, _NORMAL_95 * math.sqrt(wrong * (1 - wrong)) * (up - down)
        if mean > 0:
            found = min(found, ((margin + math.sqrt(margin**2 + 4 * mean * needed)) / (2 * mean)) ** 2)
    return math.ceil(found)


def check(state: AuditState) -> None:
    """Checks the invariants of `update` on a state that was read back.

    Raises:
        ConfigError: numbers that no audits produce.
    """
    fits = (
        0 < state.epsilon < 1
        and len(state.bets) == len(state.wealth) > 0
        and all(0 < bet * state.epsilon < 1 for bet in state.bets)
        and all(0 <= amount <= _WEALTH_LIMIT for amount in state.wealth)
        and state.audits >= 0
        and state.peak >= max(1.0, e_value(state))
    )
    if not fits:
        raise ConfigError("The stored state of the audits is invalid; the test must start again.")
