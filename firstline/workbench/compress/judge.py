"""Judges whether a candidate is better than the models that exist. Pure; the numbers come from `evaluation.py`.

A candidate must
1. lose at most the stated accuracy against the model that it was made of: as seen on the judging rows, or as proved on
   them if a confidence is required (`Loss`);
2. be certified if an existing variant carries a valid certificate or is certified on the same rows, and keep at least
   nine tenths of what the best of them keeps there for the same promise: quantisation harms the score that routes
   before it harms the accuracy;
3. compared with every existing model that is as accurate within the stated loss, be better by a tenth or more in
   latency, size or energy, and worse by more than a twentieth in none of the others, unless one gain is twofold.

Less than a tenth is not worth a rollout, and lies within the difference between two days. A twentieth is what a careful
measurement repeats to. With a twofold gain a file may be the one that fits, or an answer the one that meets its
deadline. Energy counts if both sides have it measured, or both modelled. Latency counts if other work left both sides
the core.

An accepted candidate is refused if another one is at least as good in everything and better in something.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from firstline_core.hardware.readings import Measured, Modelled, Reading
from firstline_core.profile.summary import DISTURBED
from firstline_core.routing import binomial, bounds
from firstline_core.routing.contracts import net_loss

GAIN = 1.1
HARM = 1.05
WORTH_A_TRADE = 2.0
KEEPS = 0.9


class Loss(Struct, frozen=True):
    """Accuracy that a model loses against another one, on the same rows.

    Only rows count that exactly one of them has right. With losses between 0 and 1, it is their mean that grows.

    Attributes:
        lost: rows that only the other model has right, or in which this one loses more.
        won: rows that only this model has right, or in which this one loses less.
        rows: number of rows.
        seen: share of accuracy lost on these rows; negative if accuracy was gained.
        at_most: upper bound of the share lost on the distribution of the rows; wrong with probability `delta` at most.
        delta: see `at_most`; for all judged models together.
    """

    lost: int
    won: int
    rows: int
    seen: float
    at_most: float
    delta: float


def loss(right: ArrayLike, was_right: ArrayLike, *, delta: float, among: int = 1) -> Loss:
    """Returns the loss of one model against another.

    Args:
        right: (n,) whether the model is right, n at least 1; 1 - loss for losses between 0 and 1.
        was_right: (n,) the same of the other model on the same rows.
        delta: probability that any of `among` such bounds is wrong.
        among: number of models judged on these rows; the rows choose among them, so delta is split evenly.
    """
    net, level = net_loss(right, was_right), delta / among
    lost, won, rows = int((net > 0).sum()), int((net < 0).sum()), len(net)
    if np.isin(net, (-1, 0, 1)).all():
        at_most = most_lost(lost, won, rows, level)
    else:
        halves = np.random.default_rng(0).permutation((1 + net) / 2)  # bets must not follow the order of the data
        at_most = 2 * bounds.upper_bound(lambda mean: bounds.betting(halves, mean), level) - 1
    return Loss(lost, won, rows, float(net.mean()), at_most, delta)


def most_lost(lost: int, won: int, rows: int, level: float) -> float:
    """Returns an upper bound of the share lost less the share won, exceeded with probability `level` at most.

    Half of the level goes to the exact bound of each share (Clopper and Pearson 1934). It holds for any number of rows
    and any two models, unlike the tighter score bounds (Tango 1998).
    """
    at_least_won = 1 - binomial.upper_bound(rows - won, rows, level / 2)
    return binomial.upper_bound(lost, rows, level / 2) - at_least_won


class Figures(Struct, frozen=True):
    """Measured figures of one model.

    Attributes:
        accuracy: on the judging part, 0 to 1.
        latency_ms: median of one row through the model; None for an existing model that did not run on the target.
        kept: share of the certifying part that a certificate keeps; 0 if nothing is certified, None without a promise.
        energy_mj: of one query; None if it was not measured.
        ran: provider and threads, in words; "" if all models ran as the options say.
        loss: of accuracy against the source of the candidates; None for existing models.
        waited_share: share of the measuring time in which other work had the core.
    """

    id: str
    accuracy: float
    latency_ms: float | None
    size_bytes: int
    kept: float | None = None
    energy_mj: Reading | None = None
    ran: str = ""
    loss: Loss | None = None
    waited_share: float = 0.0

    @property
    def latency_known(self) -> bool:
        return self.latency_ms is not None and self.waited_share <= DISTURBED


class Verdict(Struct, frozen=True):
    """The judgement of one candidate.

    Attributes:
        reasons: sentences with numbers: everything against a refused candidate, else what is in favour of it.
        times_better: by the id of each existing model that ran on the target: how many times better in "latency",
            "size" and "energy", if known; below 1 is worse.
    """

    accepted: bool
    reasons: tuple[str, ...]
    times_better: dict[str, dict[str, float]] = {}


def judge(
    candidate: Figures,
    source: Figures,
    there: Sequence[Figures],
    max_loss: float,
    *,
    promised: bool = False,
    proved: bool = False,
) -> Verdict:
    """Applies the rule in the module's docstring.

    Args:
        candidate: the figures to judge.
        source: figures of the model that it was made of.
        there: every existing model that ran on the target.
        max_loss: of accuracy, as a share: 2 points are 0.02.
        promised: whether an existing variant carries a valid certificate.
        proved: whether the candidate's `loss` has to prove that no more is lost.
    """
    against: list[str] = []
    if candidate.accuracy < source.accuracy - max_loss - 1e-9:
        against.append(
            f"loses {100 * (source.accuracy - candidate.accuracy):.2f} points of accuracy against {source.id}, and "
            f"{100 * max_loss:g} are allowed"
        )
    elif proved and candidate.loss is not None and candidate.loss.at_most > max_loss:
        against.append(_unproved(candidate.loss, source, max_loss))
    best = max((one for one in there if one.kept), key=lambda one: one.kept or 0.0, default=None)
    if best is not None and best.kept and (candidate.kept or 0.0) < KEEPS * best.kept:
        kept = f"keeps {100 * candidate.kept:.1f} %" if candidate.kept else "is not certified"
        against.append(f"{kept} where {best.id} keeps {100 * best.kept:.1f} % for the same promise")
    elif promised and not candidate.kept:
        against.append("is not certified on this data, and what is there carries a certificate; give more images")
    times = {one.id: _compared(candidate, one) for one in there}
    rivals = [one for one in there if one.accuracy >= candidate.accuracy - max_loss - 1e-9]
    against += [
        f"{_comparison(times[rival.id])} against {rival.id}: {fault}"
        for rival in rivals
        if (fault := _fault(times[rival.id]))
    ]
    unknown = _unknown(candidate, rivals)
    if against:
        return Verdict(False, (*against, *unknown), times)
    return Verdict(True, (*(f"{_comparison(times[rival.id])} against {rival.id}" for rival in rivals), *unknown), times)


def outdone(accepted: Sequence[Figures]) -> dict[str, str]:
    """Returns the accepted candidates that another one dominates, by id, with the reason.

    Of two equal candidates the first stays.
    """
    left, found = list(accepted), dict[str, str]()
    for mine in reversed(accepted):
        better = next((other for other in left if other is not mine and _outdoes(other, mine)), None)
        if better is not None:
            left.remove(mine)
            gains = _comparison(_compared(better, mine))
            found[mine.id] = f"{better.id} is as accurate, keeps as much, and is {gains}; one of them is enough"
    return found


def _outdoes(one: Figures, other: Figures) -> bool:
    at_least = one.accuracy >= other.accuracy and (one.kept or 0.0) >= (other.kept or 0.0)
    return at_least and min(_compared(one, other).values()) >= 1


def _unproved(loss: Loss, source: Figures, max_loss: float) -> str:
    return (
        f"may lose up to {100 * loss.at_most:.2f} points of accuracy against {source.id}, with confidence "
        f"{100 - 100 * loss.delta:.10g} %, and {100 * max_loss:g} are allowed: of {loss.rows} images it lost "
        f"{loss.lost} and won {loss.won}; more images prove more"
    )


def _compared(candidate: Figures, rival: Figures) -> dict[str, float]:
    """How many times better by each measure; below 1 is worse."""
    ratios = {}
    if candidate.latency_known and rival.latency_known:
        ratios["latency"] = (rival.latency_ms or 0.0) / max(candidate.latency_ms or 0.0, 1e-9)
    ratios["size"] = rival.size_bytes / max(candidate.size_bytes, 1)
    mine, other = candidate.energy_mj, rival.energy_mj
    for kind in (Measured, Modelled):
        if isinstance(mine, kind) and isinstance(other, kind) and mine.value > 0 and other.value > 0:
            ratios["energy"] = other.value / mine.value
    return ratios


def _unknown(candidate: Figures, rivals: Sequence[Figures]) -> tuple[str, ...]:
    """The models whose latency does not count, and why."""
    if all(one.latency_known for one in (candidate, *rivals)):
        return ()
    known = candidate.latency_known
    against = f" against {', '.join(one.id for one in rivals if not one.latency_known)}" if known else ""
    share = max(one.waited_share for one in (candidate, *rivals)) if known else candidate.waited_share
    return (
        f"latency does not count{against}, for it is not known well enough: other work had the core for "
        f"{100 * share:.0f} % of its measurement; measure at rest",
    )


def _fault(ratios: dict[str, float]) -> str:
    best = max(ratios.values())
    if best < GAIN:
        return f"a tenth better in {' or '.join(ratios)} is the least that counts"
    worse = [name for name, ratio in ratios.items() if ratio < 1 / HARM]
    if worse and best < WORTH_A_TRADE:
        return f"worse in {' and '.join(worse)}, which only a twofold gain outweighs"
    return ""


def _comparison(ratios: dict[str, float]) -> str:
    words = {"latency": ("faster", "slower"), "size": ("smaller", "larger"), "energy": ("thriftier", "thirstier")}
    return ", ".join(f"{max(ratio, 1 / ratio):.2f} times {words[name][ratio < 1]}" for name, ratio in ratios.items())
