"""Predicts whether the full model's answer will come in time; used if the device has an edge answer of its own."""

from __future__ import annotations

EXPLORE_EVERY = 50
"""One in so many requests that would be late is sent anyway, because estimates may be wrong."""


class Punctuality:
    """Refuses escalations that would probably be late.

    A wrong estimate corrects itself: the outbox sends refused requests later and measures their time, old measurements
        lose weight, and a few requests are sent anyway.

    Attributes:
        held_back: requests that were not sent because they would be late.
        explored: requests that were sent although they would probably be late.
    """

    def __init__(self) -> None:
        self.held_back = self.explored = 0

    def worth_asking(self, predicted_s: float | None, left_s: float) -> bool:
        """Returns whether to send a request, and counts refusals.

        Args:
            predicted_s: within which most such requests are answered; None if unknown.
            left_s: until the deadline.
        """
        if predicted_s is None or predicted_s <= left_s:
            return True
        if (self.held_back + self.explored) % EXPLORE_EVERY == EXPLORE_EVERY - 1:
            self.explored += 1
            return True
        self.held_back += 1
        return False
