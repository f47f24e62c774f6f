"""Limits the rows that the full model answers for this device in an hour, over all links, while the fleet is braked.

It guards the links before the budgets: live escalations, hedges, redeliveries and audits pass it. Hours are those of
UTC, and nothing is carried over. The used rows are stored, so that a restart gains nothing; a killed process forgets at
most the last `SAVE_EVERY_S`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from msgspec import Struct

from firstline_core.clock import Clock
from firstline_core.errors import BudgetExceededError
from firstline_core.fleet.twin import Brake
from firstline_core.types import InferRequest
from firstline_core.units import HOUR_S
from firstline_edge.cloud.chain import BudgetGate
from firstline_edge.state import read_stored, store

SAVE_EVERY_S = 5.0


class Used(Struct, frozen=True):
    """Rows escalated in one hour, counted from 1970."""

    hour: int = 0
    rows: int = 0


class EscalationLimiter:
    """Limits escalations while the fleet is braked.

    Args:
        path: stores the used rows.
        clock: hours are wall time.

    Attributes:
        brake: None if the fleet is not braked.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._used = self._saved = read_stored(path, Used, "escalations under the brake") or Used()
        self.brake: Brake | None = None

    @property
    def active_brake(self) -> Brake | None:
        """The brake while it is in force; otherwise None."""
        brake = self.brake
        if brake is None or 0 < brake.until_s <= self._clock.wall_s():
            return None  # a clock that is set back later puts the brake in force again
        return brake

    def before(self, inner: BudgetGate) -> BudgetGate:
        """Returns a budget gate that checks the brake first."""

        def gate(request: InferRequest, link: str) -> AbstractContextManager[None]:
            if (brake := self.active_brake) is not None:
                self._use(request.rows, brake)
            return inner(request, link)

        return gate

    def _use(self, rows: int, brake: Brake) -> None:
        now_s = self._clock.wall_s()
        hour, used = int(now_s // HOUR_S), self._used_at(now_s)
        if self._used.hour > hour:  # the clock was ahead; counting continues in the present hour
            self._used = Used(hour, used)
        if used + rows > brake.escalations_per_hour:
            ends_s = (hour + 1) * HOUR_S
            raise BudgetExceededError(
                f"The fleet is braked ({brake.reason or 'no reason was given'}): {used} of "
                f"{brake.escalations_per_hour:g} escalations of this hour are used.",
                retry_after_s=(min(ends_s, brake.until_s) if brake.until_s else ends_s) - now_s,
            )
        self._used = Used(hour, used + rows)

    def _used_at(self, now_s: float) -> int:
        """Returns the rows of this hour; if the clock was set back, those of the latest known hour."""
        return self._used.rows if self._used.hour >= now_s // HOUR_S else 0

    def save(self) -> None:
        """Stores the used rows if they changed; if the disk refuses, a restart forgets them."""
        if self._used == self._saved:
            return
        used = self._used
        if store(self._path, used, "escalations under the brake"):
            self._saved = used

    def status(self) -> dict[str, Any] | None:
        """Returns the brake for `status`; None if the fleet is not braked."""
        brake = self.active_brake
        if brake is None:
            return None
        return {
            "escalations_per_hour": brake.escalations_per_hour,
            "used": self._used_at(self._clock.wall_s()),
            "reason": brake.reason,
            "until_s": brake.until_s or None,
        }
