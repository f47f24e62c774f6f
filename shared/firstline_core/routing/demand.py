"""A forecast of the remaining demand in this hour or day, from earlier periods and the current one. Pure functions.

The usual remaining demand is scaled by the ratio of today's demand to the usual one. Before the end of the first
period, demand is assumed to be even.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SLOTS = 24
"""Number of parts of a period; the demand is stored per part."""

_RECENT = 0.3  # weight of the last period against all earlier ones: one unusual day must not dominate
_SURPRISE = 0.1  # of a whole period: assumed excess of a slot that was busier than ever before
_DOUBT = 0.1  # share of a period's demand that is needed as evidence that today is different


@dataclass(slots=True)
class Demand:
    """Observed demand in units of one resource.

    Args:
        today: demand per slot of this period.
        usual: weighted mean per slot of earlier periods; empty before the end of the first.
        since: share of this period that had passed when observation began.
    """

    today: list[float] = field(default_factory=lambda: [0.0] * SLOTS)
    usual: list[float] = field(default_factory=list)
    since: float = 0.0

    def __post_init__(self) -> None:
        if len(self.today) != SLOTS or len(self.usual) not in (0, SLOTS) or not 0 <= self.since < 1:
            raise ValueError(f"demand is remembered for {SLOTS} parts of a period")

    def add(self, amount: float, passed: float) -> None:
        """Adds demand.

        Args:
            amount: at least 0.
            passed: share of the period that has passed, below 1.
        """
        self.today[int(passed * SLOTS)] += amount

    def begin(self) -> None:
        """Ends the period and learns its demand; slots before the start of observation use its average."""
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
        """Returns the forecast for the rest of the period, after this share of it has passed."""
        seen, whole = sum(self.today), sum(self.usual)
        if not whole:
            watched = max(passed - self.since, 0.0) + 1 / SLOTS  # one more slot: a single request is not a rate
            return Forecast(seen, to_come=1 - passed, expected=watched, doubt=0.0)
        slot = int(passed * SLOTS)
        to_come = sum(self.usual[slot + 1 :]) + self.usual[slot] * (slot + 1 - passed * SLOTS)
        doubt = _DOUBT * whole
        return Forecast(seen, to_come, whole - to_come + doubt, doubt)


@dataclass(slots=True)
class Forecast:
    """The usual remaining demand, scaled by the demand so far; valid for a short time.

    Args:
        seen: demand of this period so far; the caller adds new demand.
        to_come: usual remaining demand.
        expected: usual demand so far, plus `doubt`.
        doubt: added to both, so that the first few requests have limited influence.
    """

    seen: float
    to_come: float
    expected: float
    doubt: float

    @property
    def remaining(self) -> float:
        """Returns the demand from now to the end of the period."""
        return self.to_come * (self.seen + self.doubt) / self.expected
