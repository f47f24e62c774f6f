"""The collaborators of all updates of a device."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from firstline_core.clock import Clock
from firstline_core.fleet.update import UpdateState, may_follow
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.updates.fetching import Pace
from firstline_edge.fleet.updates.history import History
from firstline_edge.fleet.updates.ports import ByteSource, Catalogue, Serving
from firstline_edge.fleet.updates.record import Record

log = logger(__name__)


@dataclass(frozen=True)
class Patience:
    """How a device fetches.

    Args:
        bytes_per_s: at most, of all models together; 0 for as fast as it comes.
        jitter_s: longest random delay before the first request; it prevents a thundering herd.
    """

    bytes_per_s: float = 0.0
    jitter_s: float = 0.0


@dataclass(frozen=True)
class Trials:
    """How a bundle proves itself.

    Args:
        tries: starts of the agent that a trial may take.
        trial_s: so long it must answer, in one process, before it stays.
    """

    tries: int = 3
    trial_s: float = 300.0


@dataclass(frozen=True)
class Means:
    """Of one device.

    Args:
        history: of each model: pointer, record and slots.
        catalogue: the signed bundles.
        source: of bytes.
        serving: the models that answer.
        clock: how long things take.
        now_s: wall time in seconds, for windows and expiry.
        rng: jitter.
        patience: of fetching.
        trials: of trying.
        changed: called whenever the state of an update changes.
        off_loop: has a blocking call made elsewhere; `asyncio.to_thread` but in simulations.
    """

    history: History
    catalogue: Catalogue
    source: ByteSource
    serving: Serving
    clock: Clock
    now_s: Callable[[], float]
    rng: random.Random
    patience: Patience = Patience()
    trials: Trials = Trials()
    changed: Callable[[], None] = lambda: None
    off_loop: Callable[..., Awaitable[Any]] = asyncio.to_thread
    pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pace", Pace(self.patience.bytes_per_s, self.clock))

    def next(self, record: Record, state: UpdateState, reason: str = "", message: str = "") -> Record:
        """An update's record in its next state.

        Raises:
            ValueError: that does not follow.
        """
        if not may_follow(record.state, state):
            raise ValueError(f"{state} does not follow {record.state}")
        return replace(record, state=state, reason=reason, message=message, since_s=self.now_s())

    async def note(self, name: str, state: UpdateState, reason: str = "", message: str = "") -> None:
        """Has an update's next state on the disk when it returns.

        Raises:
            OSError: the disk refuses; the state before holds.
        """
        await self.write(name, self.next(self.history.records[name], state, reason, message))

    async def write(self, name: str, record: Record) -> None:
        """Has a record on the disk when it returns; raises OSError as `note` does."""
        await self.off_loop(self.history.write, name, record)
        self.tell(name)

    def tell(self, name: str) -> None:
        """Tells the log and the fleet how an update stands by now."""
        record = self.history.records.get(name)
        if record is not None:
            log.info(
                "update", model=name, version=record.target.version, state=record.state.value, reason=record.reason
            )
        self.changed()
