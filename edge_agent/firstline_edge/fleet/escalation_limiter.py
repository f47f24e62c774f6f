"""The fleet's brake: limits the rows that the full model answers for this device in an hour, over all links.

It stands at the gate of the links, before the budgets: live escalations, hedges, redeliveries and audits alike pass
there. Hours are those of UTC, and nothing is carried over. The used rows are stored, so that a restart gains nothing; a
killed process forgets at most the last `SAVE_EVERY_S`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from firstline_core.clock import Clock
from firstline_core.errors import BudgetExceededError, IntegrityError
from firstline_core.fleet.twin import Brake
from firstline_core.storage.files import make_folder, read_checked, with_checksum, write_whole
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferRequest
from firstline_edge.cloud.chain import BudgetGate

log = logger(__name__)

SAVE_EVERY_S = 5.0
_HOUR_S = 3600


class Used(Struct, frozen=True):
    """Rows escalated in one hour, counted from 1970."""

    hour: int = 0
    rows: int = 0


class EscalationLimiter:
    """Limits escalations while the fleet is braked.

    Args:
        path: keeps what was used.
        clock: hours are by the wall.

    Attributes:
        brake: None if the fleet is not braked.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._used = self._saved = _read(path)
        self.brake: Brake | None = None

    @property
    def holds(self) -> Brake | None:
        """The brake, while it is in force."""
        brake = self.brake
        if brake is not None and 0 < brake.until_s <= self._clock.wall_s():
            self.brake = brake = None
        return brake

    def before(self, inner: BudgetGate) -> BudgetGate:
        """A budget_gate that asks the brake first."""

        def paid(request: InferRequest, link: str) -> AbstractContextManager[None]:
            return self._paid(request, link, inner) if self.brake is not None else inner(request, link)

        return paid

    @contextmanager
    def _paid(self, request: InferRequest, link: str, inner: BudgetGate) -> Iterator[None]:
        brake = self.holds
        if brake is not None:
            self._take(request.rows, brake)
        with inner(request, link):
            yield

    def _take(self, rows: int, brake: Brake) -> None:
        now_s = self._clock.wall_s()
        used = self._in(now_s)
        if self._used.hour > now_s // _HOUR_S:  # the clock was ahead: from the next hour on it begins anew
            self._used = Used(int(now_s // _HOUR_S), used)
        if used + rows > brake.escalations_per_hour:
            ends_s = (now_s // _HOUR_S + 1) * _HOUR_S
            raise BudgetExceededError(
                f"The fleet is braked ({brake.reason or 'no reason was given'}): {used} of "
                f"{brake.escalations_per_hour:g} escalations of this hour are used.",
                retry_after_s=(min(ends_s, brake.until_s) if brake.until_s else ends_s) - now_s,
            )
        self._used = Used(int(now_s // _HOUR_S), used + rows)

    def _in(self, now_s: float) -> int:
        """Rows of this hour; where the clock was set back, of the latest known."""
        return self._used.rows if self._used.hour >= now_s // _HOUR_S else 0

    def save(self) -> None:
        """Keeps what was used, if that has changed; a disk that refuses costs what a restart forgets."""
        if self._used == self._saved:
            return
        used = self._used
        try:
            make_folder(self._path.parent)
            write_whole(self._path, with_checksum(msgspec.json.encode(used)))
        except OSError as error:
            log.warning("cannot keep what was escalated under the brake", error=str(error))
        else:
            self._saved = used

    def status(self) -> dict[str, Any] | None:
        """Returns the brake for `status`; None if the fleet is not braked."""
        brake = self.holds
        if brake is None:
            return None
        return {
            "escalations_per_hour": brake.escalations_per_hour,
            "used": self._in(self._clock.wall_s()),
            "reason": brake.reason,
            "until_s": brake.until_s or None,
        }


def _read(path: Path) -> Used:
    try:
        return msgspec.json.decode(read_checked(path), type=Used)
    except FileNotFoundError:
        return Used()
    except (OSError, IntegrityError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("what was escalated under the brake is not known; this hour begins anew", error=str(error))
        return Used()
