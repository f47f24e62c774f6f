"""Judges whether a candidate is better than the models that exist. Pure; the numbers come from `evaluation.py`.

A candidate must
1. lose at most the stated accuracy against the model that it was made of, on the judging rows;
2. be certified if an existing variant carries a valid certificate or is certified on the same rows, and keep at least
   nine tenths of what the best of them keeps there for the same promise: quantisation harms the score that routes
   before it harms the accuracy;
3. compared with every existing model that is as accurate within the stated loss, be better by a tenth or more in
   latency, size or energy, and worse by more than a twentieth in none of them, unless the gain is twofold.

Less than a tenth is not worth a rollout, and lies within the difference between two days. A twentieth is what a careful
measurement repeats to. With a twofold gain a file may be the one that fits, or an answer the one that meets its
deadline. Energy counts if both sides have it measured, or both modelled; latency if other work disturbed neither
measurement.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from firstline_core.hardware.readings import Measured, Modelled, Reading
from firstline_core.profile.summary import DISTURBED

GAIN = 1.1
HARM = 1.05
WORTH_A_TRADE = 2.0
KEEPS = 0.9


class Figures(Struct, frozen=True):
    """Measured figures of one model.

    Attributes:
        accuracy: on the judging part, 0 to 1.
        latency_ms: median of one row through the model; None for an existing model that did not run on the target.
        kept: share of the certifying part that a certificate keeps; 0 if nothing is certified, None without a promise.
        energy_mj: of one query on the target; None if it is not known.
        waited_share: share of the time of measuring in which other work had the core.
    """

    id: str
    accuracy: float
    latency_ms: float | None
    size_bytes: int
    kept: float | None = None
    energy_mj: Reading | None = None
    waited_share: float = 0.0

    @property
    def known_ms(self) -> float | None:
        """The latency, unless other work disturbed its measurement."""
        return self.latency_ms if self.waited_share <= DISTURBED else None


class Verdict(Struct, frozen=True):
    """The judgement of one candidate; `reasons` are sentences with numbers, all against it or all in its favour."""

    accepted: bool
    reasons: tuple[str, ...]


def judge(
    candidate: Figures, source: Figures, there: Sequence[Figures], max_loss: float, *, promised: bool = False
) -> Verdict:
    """Applies the rule in the module's docstring.

    Args:
        candidate: the figures to judge.
        source: figures of the model that it was made of.
        there: every existing model that ran on the target.
        max_loss: of accuracy, as a share: 2 points are 0.02.
        promised: whether an existing variant carries a valid certificate.
    """
    against: list[str] = []
    if candidate.accuracy < source.accuracy - max_loss - 1e-9:
        against.append(
            f"it loses {100 * (source.accuracy - candidate.accuracy):.2f} points of accuracy against {source.id}, and "
            f"{100 * max_loss:g} are allowed"
        )
    best = max((one for one in there if one.kept), key=lambda one: one.kept or 0.0, default=None)
    if best is not None and best.kept and (candidate.kept or 0.0) < KEEPS * best.kept:
        kept = f"it keeps {100 * candidate.kept:.1f} %" if candidate.kept else "it is not certified"
        against.append(f"{kept} where {best.id} keeps {100 * best.kept:.1f} % for the same promise")
    elif promised and not candidate.kept:
        against.append(
            "it is not certified on this data, and a model of the bundle has a certificate; give more images"
        )
    rivals = [one for one in there if one.accuracy >= candidate.accuracy - max_loss - 1e-9]
    compared = {rival.id: _ratios(candidate, rival) for rival in rivals}
    against += [
        f"{_comparison(ratios)} against {rival}: {fault}"
        for rival, ratios in compared.items()
        if (fault := _fault(ratios))
    ]
    in_favour = tuple(f"{_comparison(ratios)} against {rival}" for rival, ratios in compared.items())
    disturbed = _disturbed(candidate, rivals)
    return Verdict(False, (*against, *disturbed)) if against else Verdict(True, (*in_favour, *disturbed))


def _ratios(candidate: Figures, rival: Figures) -> dict[str, float]:
    """Returns how many times better a candidate is by each measure; below 1 is worse."""
    ratios = {}
    if candidate.known_ms is not None and rival.known_ms is not None:
        ratios["latency"] = rival.known_ms / max(candidate.known_ms, 1e-9)
    ratios["size"] = rival.size_bytes / max(candidate.size_bytes, 1)
    mine, other = candidate.energy_mj, rival.energy_mj
    for kind in (Measured, Modelled):
        if isinstance(mine, kind) and isinstance(other, kind) and mine.value > 0 and other.value > 0:
            ratios["energy"] = other.value / mine.value
    return ratios


def _disturbed(candidate: Figures, rivals: Sequence[Figures]) -> tuple[str, ...]:
    """Returns why latency does not count, if it does not."""
    own = candidate.waited_share > DISTURBED
    disturbed = [candidate] if own else [one for one in rivals if one.waited_share > DISTURBED]
    if not disturbed:
        return ()
    against = "" if own else f" against {', '.join(one.id for one in disturbed)}"
    share = max(one.waited_share for one in disturbed)
    return (
        f"latency does not count{against}: other work had the core for {100 * share:.0f} % of its measurement; measure "
        "at rest",
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
