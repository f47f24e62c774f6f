"""Does the contract still hold? A test of "risk <= epsilon" that may be looked at after every audit, for ever.

A kept answer is audited with a probability (its propensity) fixed before its loss is known. A player bets that audited
losses are above epsilon: with the bet b, an audit of loss L multiplies his money by

    f = 1 + b * w * (L - epsilon),    w = floor / propensity,    0 < b < 1 / epsilon.

`floor` is the smallest propensity that the answer could have had, whatever it turned out to be: it is known before the
answer is, so that 0 < w <= 1 and f >= 1 - b * epsilon > 0, and a bet never costs more than there is. An answer that is
not audited leaves the money alone. Its propensity may depend on the answer (its score, its size): over the draw,
f - 1 is on average propensity * b * w * (loss - epsilon) = b * floor * (loss - epsilon), of which the mean over answers
is at most 0 while their risk is at most epsilon. Weights that were cut off at 1 instead would lose exactly this. Where
the propensity depends on the past alone (a budget), `floor` is the propensity, and all weights are 1.

One start forgets nothing: after thousands of quiet audits the money is gone. So a share 1 / (k * (k + 1)) of it waits
for audit k before it is bet. With F(k, t) = f_k * ... * f_t, what is there after audit t is

    M_t = S_t + 1 / (t + 1),    S_t = sum of F(k, t) / (k * (k + 1)) over k <= t,

as what still waits telescopes to 1 / (t + 1). f_t is the last factor of every F(k, t), so that S_t follows from one
number: S_t = f_t * (S_{t-1} + 1 / (t * (t + 1))), S_0 = 0. While the risk is at most epsilon, M_t is on average at most
S_{t-1} + 1 / (t * (t + 1)) + 1 / (t + 1) = S_{t-1} + 1 / t = M_{t-1}: a supermartingale that starts at 1 and is never
negative. It ever reaches 1 / delta with a probability of at most delta (Ville 1939), whenever one looks. So does the
average over a few bets, of which each is best for another risk; that average is the e-value here.

Sources: Waudby-Smith and Ramdas 2024, "Estimating Means of Bounded Random Variables by Betting"; Waudby-Smith et al.
2024, "Anytime-valid Off-policy Inference for Contextual Bandits" (epsilon is the reward predictor in their weighted
bets); Shin, Ramdas and Rinaldo 2024, "E-detectors", whose unweighted sum over starts bounds how often an alarm is false
and not, as here, whether one ever is.

Assumed: given all audits before, the next answer is wrong with a probability of at most epsilon; and whether and when
an audit's result comes does not depend on its loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from firstline_core.errors import ConfigError

_ODDS = (1.5, 2.0, 3.0, 5.0, 12.0)  # times as likely to be wrong: the shifts for which the bets are best
_RICH = 1e300  # money above this is given away, which only makes the test stricter


@dataclass(frozen=True, slots=True)
class AuditState:
    """All that the test remembers, the same size for ever.

    Attributes:
        epsilon: the risk that was promised, above 0 and below 1.
        bets: of each player, above 0 and below 1 / epsilon.
        wealth: S_t of each player.
        audits: how many were counted.
        peak: the largest e-value so far, 1 before any audit.
    """

    epsilon: float
    bets: tuple[float, ...]
    wealth: tuple[float, ...]
    audits: int = 0
    peak: float = 1.0


def begin(epsilon: float) -> AuditState:
    """The state before the first audit of a threshold; what is re-certified begins anew.

    Each bet grows fastest (Kelly 1956) where losses are 0 and 1 and the odds of a loss are some times those of epsilon.

    Raises:
        ConfigError: epsilon is not above 0 and below 1.
    """
    if not 0 < epsilon < 1:
        raise ConfigError(f"epsilon is {epsilon:g}, but must be above 0 and below 1, such as 0.05.")
    bets = tuple((odds - 1) / (1 + epsilon * (odds - 1)) for odds in _ODDS)
    return AuditState(epsilon, bets, (0.0,) * len(bets))


def update(state: AuditState, loss: float, *, propensity: float, floor: float) -> AuditState:
    """The state after one more audit.

    Args:
        state: after the audits before.
        loss: of the kept answer, 0 to 1; 0 where it agrees with the full model.
        propensity: the probability with which it was audited, recorded when it was drawn.
        floor: the smallest probability with which any answer would then have been audited; at most `propensity`.

    Raises:
        ConfigError: a loss or a probability out of range.
    """
    if not 0 <= loss <= 1:
        raise ConfigError(f"The loss of an audit is {loss:g}; a loss is 0 to 1.")
    if not 0 < floor <= propensity <= 1:
        raise ConfigError(
            f"An audit was drawn with probability {propensity:g} where at least {floor:g} was promised; "
            "probabilities are above 0 and at most 1, and none is below the floor."
        )
    gain = floor / propensity * (loss - state.epsilon)
    invested = starting(state.audits + 1)
    wealth = tuple(
        min(_RICH, (1 + bet * gain) * (money + invested)) for bet, money in zip(state.bets, state.wealth, strict=True)
    )
    audits = state.audits + 1
    return AuditState(state.epsilon, state.bets, wealth, audits, max(state.peak, _together(audits, wealth)))


def waiting(audits: int) -> float:
    """The share of the money that is not bet yet after so many audits."""
    return 1 / (audits + 1)


def starting(audit: int) -> float:
    """The share of the money that is bet from this audit on; the first is 1."""
    return 1 / (audit * (audit + 1))


def e_value(state: AuditState) -> float:
    """Evidence against "risk <= epsilon": the money there is, 1 at the beginning."""
    return _together(state.audits, state.wealth)


def _together(audits: int, wealth: Sequence[float]) -> float:
    return waiting(audits) + sum(wealth) / len(wealth)


def alarm(state: AuditState, level: float) -> bool:
    """Whether the e-value ever reached 1 / level; while the risk is at most epsilon, it does with at most `level`.

    Args:
        state: after any number of audits.
        level: delta where all audits of a bundle are pooled, delta over the number of devices on each of them.

    Raises:
        ConfigError: the level is not above 0 and below 1.
    """
    if not 0 < level < 1:
        raise ConfigError(f"The level of an alarm is {level:g}, but must be above 0 and below 1, such as 0.05.")
    return state.peak * level >= 1


def average(e_values: Sequence[float]) -> float:
    """One e-value from those of several devices, 1 for none: valid however the devices' losses hang together.

    A product would be valid for independent streams only: two cameras on one scene err together, and their money
    multiplies. The average is hardly more than the best device's share of it, so that it finds little which devices
    that alarm at delta over their number do not. A shift that all devices share is found far sooner by one state that
    is updated with every device's audits as they come. It needs no independence over time, but that the next audit,
    given those before on any device, is wrong with a probability of at most epsilon. Audits of one scene at one moment
    break that: of those, count one, chosen before its loss is known.
    """
    return sum(e_values) / len(e_values) if e_values else 1.0


def encode(state: AuditState) -> bytes:
    """As JSON, exact to the last bit."""
    return msgspec.json.encode(state)


def decode(encoded: bytes | str) -> AuditState:
    """What `encode` wrote.

    Raises:
        ConfigError: something else, or numbers that no audits lead to.
    """
    try:
        state = msgspec.json.decode(encoded, type=AuditState)
    except msgspec.DecodeError as error:
        raise ConfigError(f"The kept state of the audits cannot be read: {error}") from error
    check(state)
    return state


def check(state: AuditState) -> None:
    """Holds what was read back to what `update` makes.

    Raises:
        ConfigError: numbers that no audits lead to.
    """
    fits = (
        0 < state.epsilon < 1
        and len(state.bets) == len(state.wealth) > 0
        and all(0 < bet * state.epsilon < 1 for bet in state.bets)
        and all(0 <= money <= _RICH for money in state.wealth)
        and state.audits >= 0
        and state.peak >= max(1.0, e_value(state))
    )
    if not fits:
        raise ConfigError("The kept state of the audits is not one that audits lead to; its test must begin anew.")
