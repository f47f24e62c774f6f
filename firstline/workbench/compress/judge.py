"""Whether a candidate is better than what is there. Pure; the numbers come from `trial.py`.

The rule. A candidate must
1. lose at most the stated points of accuracy against the model that it was made of: as was seen on the judging rows;
   where a confidence is asked for, as they prove with it (`loss.py`);
2. be certified where a variant that is there carries a valid certificate, or is certified on the same rows, and keep at
   least nine tenths of what the best of them keeps there for the same promise: quantisation harms the score that routes
   sooner than it harms the accuracy, and a variant without a certificate would end a promise that users were given;
3. stand against every model that is there and as accurate as it, within the stated points: be better by a tenth or more
   in latency, size or energy, and worse by more than a twentieth in none of the others, unless one gain is twofold.

A tenth, because less is not worth a rollout to a fleet, and lies within what another day's measurement says. A
twentieth, because that is what a careful measurement repeats to. Twofold, because a file of half the size may be the
one that fits, and an answer in half the time the one that meets its deadline: whoever has that need makes the trade.
Energy counts where both sides have it, both measured or both modelled. Latency counts where other work left both sides
the core: a share of waiting beyond the twentieth would be read as harm, or hide it.

Of several that are accepted, one that another is no worse than in anything, and better in something, is not: two
would go to a device where one does all.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from firstline.workbench.compress.loss import Loss
from firstline_core.hardware.readings import Measured, Modelled, Reading
from firstline_core.profile.table import DISTURBED

GAIN = 1.1
HARM = 1.05
WORTH_A_TRADE = 2.0
KEEPS = 0.9


class Figures(Struct, frozen=True):
    """What was measured of one model.

    Attributes:
        accuracy: share of the judging part, in 0..1.
        latency_ms: median of one row through the model; None of a model that is there and did not run on the target.
        kept: share of the certifying part that a certificate keeps; 0 where nothing is certified, None where no
            promise was asked for.
        energy_mj: of one query; None where nobody looked.
        ran: provider and threads, in words; "" where all ran as the options say.
        loss: of accuracy, against the model that the candidates were made of; None of what was there before.
        waited_share: of the time in which the latency was measured: what other work had of the core.
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
    """Of one candidate.

    Attributes:
        reasons: a sentence each, with the numbers: of a refusal all that speaks against it, else what speaks for it.
        times_better: by the id of each model that is there and ran on the target: how many times better in "latency",
            "size" and "energy", as far as that is known; below 1 is worse.
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
    """Applies the rule of the module.

    Args:
        candidate: what was made.
        source: what it was made of; its accuracy counts.
        there: every model that is there already and ran on the target.
        max_loss: of accuracy, as a share: 2 points are 0.02.
        promised: whether a variant that is there carries a valid certificate.
        proved: whether it is not enough to have seen no greater loss; the candidate's `loss` has to prove it.
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
        f"{_told(times[rival.id])} against {rival.id}: {fault}"
        for rival in rivals
        if (fault := _fault(times[rival.id]))
    ]
    unknown = _unknown(candidate, rivals)
    if against:
        return Verdict(False, (*against, *unknown), times)
    return Verdict(True, (*(f"{_told(times[rival.id])} against {rival.id}" for rival in rivals), *unknown), times)


def outdone(accepted: Sequence[Figures]) -> dict[str, str]:
    """Of several accepted candidates those to which another is no worse in anything: by their ids, the reason.

    Of two that are equal in all the first stays.
    """
    left, found = list(accepted), dict[str, str]()
    for mine in reversed(accepted):
        better = next((other for other in left if other is not mine and _outdoes(other, mine)), None)
        if better is not None:
            left.remove(mine)
            found[mine.id] = (
                f"{better.id} is as accurate, keeps as much, and is {_told(_compared(better, mine))}; one of them is "
                "enough"
            )
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
    """How many times better, by what; below 1 is worse."""
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
    """Against whom latency does not count, and why; nothing where that is nobody."""
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


def _told(ratios: dict[str, float]) -> str:
    words = {"latency": ("faster", "slower"), "size": ("smaller", "larger"), "energy": ("thriftier", "thirstier")}
    return ", ".join(f"{max(ratio, 1 / ratio):.2f} times {words[name][ratio < 1]}" for name, ratio in ratios.items())
