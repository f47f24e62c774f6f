"""Which share of a rollout's error probability one look at one figure has.

All shares together are at most the whole, so a rollout of a model that changes nothing is aborted with at most that
probability (Bonferroni), however long it lasts. Stages and figures share alike. Of a stage's share, half goes to the
looks that its time has, all alike; the other half to those that follow where a stage is held for longer, in shares
1 / (k (k + 1)) of it, which add up to one for ever.
"""

from __future__ import annotations

LOOKS = 8
"""How often a stage is looked at within its time; after it, at the same intervals."""


def level(alpha: float, *, stages: int, figures: int, look: int) -> float:
    """The p-value at or below which one figure aborts at one look.

    Args:
        alpha: the rollout's.
        stages: of the rollout.
        figures: that are tested.
        look: 1 for a stage's first.
    """
    share = alpha / (stages * figures)
    if look <= LOOKS:
        return share / (2 * LOOKS)
    later = look - LOOKS
    return share / (2 * later * (later + 1))
