"""Whether the full model's answer can be expected in time, where the device has an answer of its own to give."""

from __future__ import annotations

EXPLORE_EVERY = 50
"""Of those that would be late, one in so many is asked all the same: estimates may be wrong."""


class Punctuality:
    """Holds back what would hardly arrive.

    An estimate that has become wrong mends itself: what is held back is promised, so the outbox sends it later with all
    the time it needs, and how long that takes is learnt; old evidence fades; and a few are asked all the same.

    Attributes:
        held_back: requests that were not sent for the time that it would take.
        explored: requests that were sent against the odds.
    """

    def __init__(self) -> None:
        self.held_back = self.explored = 0

    def worth_asking(self, predicted_s: float | None, left_s: float) -> bool:
        """Whether to ask; counts what is held back.

        Args:
            predicted_s: within which most such requests are answered; None if unknown.
            left_s: until the answer is worth nothing.
        """
        if predicted_s is None or predicted_s <= left_s:
            return True
        if (self.held_back + self.explored) % EXPLORE_EVERY == EXPLORE_EVERY - 1:
            self.explored += 1
            return True
        self.held_back += 1
        return False
