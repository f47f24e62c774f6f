"""How much demand is still to come in this hour or day: a forecast by earlier ones and by how it began. Pure.

A forecast of when demand comes is worth much and may be wrong, so it is scaled by what has come today, capped, and
mixed with "it goes on as it did on average today".
"""

from __future__ import annotations

from dataclasses import dataclass, field

SLOTS = 24
"""Parts of a period, of each of which the demand is remembered."""

_RECENT = 0.3  # weight of the last period against all earlier ones: one odd day is not yet a habit
_SURPRISE = 0.1  # of a whole period: what a slot that was busier than ever is believed to have been busier by
_EVEN = 0.2  # weight of "as it did on average today"
_DOUBT = 0.1  # share of a whole period's demand that it takes to believe that today is different
_BUSIEST = 3.0  # a burst at the beginning must not promise more than so many times the usual


@dataclass(slots=True)
class Demand:
    """What was asked for, in units of one resource.

    Args:
        today: in each slot of this period.
        usual: in each slot of earlier periods, newer ones weighing more; empty before the end of the first.
        since: share of this period that had passed when watching began.
    """

    today: list[float] = field(default_factory=lambda: [0.0] * SLOTS)
    usual: list[float] = field(default_factory=list)
    since: float = 0.0

    def __post_init__(self) -> None:
        if len(self.today) != SLOTS or len(self.usual) not in (0, SLOTS) or not 0 <= self.since < 1:
            raise ValueError(f"demand is remembered for {SLOTS} parts of a period")

    def add(self, amount: float, passed: float) -> None:
        """Counts what was asked for.

        Args:
            amount: at least 0.
            passed: share of the period that has passed, below 1.
        """
        self.today[int(passed * SLOTS)] += amount

    def begin(self) -> None:
        """Ends the period: what it saw is learned; where nobody watched yet, its average stands in."""
        today = self.today
        if not self.usual:
            unseen = int(self.since * SLOTS)
            average = sum(today[unseen:]) / (SLOTS - unseen)
            self.usual = [average] * unseen + today[unseen:]
        else:
            most = _SURPRISE * sum(self.usual)
            self.usual = [
                old + _RECENT * (min(new, old + most) - old) for old, new in zip(self.usual, today, strict=True)
            ]
        self.today, self.since = [0.0] * SLOTS, 0.0

    def forecast(self, passed: float) -> Forecast:
        """What is known of the rest of the period, once this share of it has passed."""
        watched = max(passed - self.since, 0.0) + 1 / SLOTS  # one slot more: a first request is no rate
        even = (1 - passed) / watched
        if not self.usual:
            return Forecast(sum(self.today), even, 0.0, 0.0, 0.0)
        slot = int(passed * SLOTS)
        whole = sum(self.usual)
        to_come = sum(self.usual[slot + 1 :]) + self.usual[slot] * (slot + 1 - passed * SLOTS)
        doubt = _DOUBT * whole
        return Forecast(sum(self.today), even * _EVEN, to_come * (1 - _EVEN), whole - to_come + doubt, doubt)


@dataclass(slots=True)
class Forecast:
    """A forecast that holds for a moment and takes in what comes meanwhile.

    Args:
        seen: demand of this period so far; to be raised by what comes.
        even: demand to come for each unit of `seen`.
        to_come: what usually comes from now on.
        expected, doubt: `to_come` is scaled by (seen + doubt) / expected.
    """

    seen: float
    even: float
    to_come: float
    expected: float
    doubt: float

    @property
    def remaining(self) -> float:
        """Demand from now to the period's end."""
        if not self.expected:
            return self.even * self.seen
        load = min((self.seen + self.doubt) / self.expected, _BUSIEST)
        return self.even * self.seen + self.to_come * load
