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
Energy counts where both sides have it, both measured or both modelled.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from firstline.workbench.compress.loss import Loss
from firstline_core.hardware.readings import Measured, Modelled, Reading

GAIN = 1.1
HARM = 1.05
WORTH_A_TRADE = 2.0
KEEPS = 0.9


class Figures(Struct, frozen=True):
    """What was measured of one model.

    Attributes:
        accuracy: share of the judging part, in 0..1.
        latency_ms: median of one row through the model.
        kept: share of the certifying part that a certificate keeps; 0 where nothing is certified, None where no
            promise was asked for.
        energy_mj: of one query; None where nobody looked.
        ran: provider and threads, in words; "" where all ran as the options say.
        loss: of accuracy, against the model that the candidates were made of; None of what was there before.
    """

    id: str
    accuracy: float
    latency_ms: float
    size_bytes: int
    kept: float | None = None
    energy_mj: Reading | None = None
    ran: str = ""
    loss: Loss | None = None


class Verdict(Struct, frozen=True):
    """Of one candidate.

    Attributes:
        reasons: a sentence each, with the numbers: of a refusal all that speaks against it, else what speaks for it.
    """

    accepted: bool
    reasons: tuple[str, ...]


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
        source: what it was made of.
        there: every model that is there already, the source among them.
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
    rivals = [one for one in there if one.accuracy >= candidate.accuracy - max_loss - 1e-9]
    stands = [(_compared(candidate, rival), rival) for rival in rivals]
    against += [f"{_told(ratios)} against {rival.id}: {fault}" for ratios, rival in stands if (fault := _fault(ratios))]
    if against:
        return Verdict(False, tuple(against))
    return Verdict(True, tuple(f"{_told(ratios)} against {rival.id}" for ratios, rival in stands))


def _unproved(loss: Loss, source: Figures, max_loss: float) -> str:
    return (
        f"may lose up to {100 * loss.at_most:.2f} points of accuracy against {source.id}, with confidence "
        f"{100 - 100 * loss.delta:.10g} %, and {100 * max_loss:g} are allowed: of {loss.rows} images it lost "
        f"{loss.lost} and won {loss.won}; more images prove more"
    )


def _compared(candidate: Figures, rival: Figures) -> dict[str, float]:
    """How many times better, by what; below 1 is worse."""
    ratios = {
        "latency": rival.latency_ms / max(candidate.latency_ms, 1e-9),
        "size": rival.size_bytes / max(candidate.size_bytes, 1),
    }
    mine, other = candidate.energy_mj, rival.energy_mj
    for kind in (Measured, Modelled):
        if isinstance(mine, kind) and isinstance(other, kind) and mine.value > 0 and other.value > 0:
            ratios["energy"] = other.value / mine.value
    return ratios


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
