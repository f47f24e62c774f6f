"""The state of the configuration in this process and on the disk, changed one step at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from firstline_core.clock import Clock
from firstline_core.fleet.twin import Update
from firstline_core.fleet.update import UpdateState
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.configuration.kept import Kept, settle_kept, write_kept

log = logger(__name__)


class Ledger:
    """Of one device.

    Args:
        path: of the file.
        kept: the content of the file.
        clock: for when.
        changed: called whenever the state changes.
        off_loop: runs a blocking call in a thread.

    Attributes:
        kept: the state that holds.
        settled: whether the disk has the same state.
    """

    def __init__(
        self,
        path: Path,
        kept: Kept,
        *,
        clock: Clock,
        changed: Callable[[], None] = lambda: None,
        off_loop: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._path = path
        self._clock = clock
        self._changed = changed
        self._off_loop = off_loop
        self._writing = asyncio.Lock()
        self.kept = kept
        self.settled = False

    def running(self) -> dict[str, Any] | None:
        """Returns the configuration that runs, with its digest; None for the device's own settings."""
        held = self.kept.running
        return {"name": held.name, "version": held.version, "sha256": held.sha256} if held is not None else None

    def updates(self) -> tuple[Update, ...]:
        """Returns the latest update; empty if there was none."""
        record = self.kept.record
        return (record.update(),) if record is not None else ()

    async def note(self, state: UpdateState, reason: str = "", message: str = "") -> None:
        """The update is in another state.

        Raises:
            OSError: the disk refuses; the old one holds.
        """
        await self.write(lambda kept: kept.noted(state, self._clock.wall_s(), reason, message))

    async def write(self, change: Callable[[Kept], Kept], *, at_once: bool = False) -> None:
        """A change counts once it is on the disk; or at once, and is there as soon as the disk takes it.

        Raises:
            OSError: the disk refuses a change that must be stored first; the previous state holds.
        """
        async with self._writing:
            kept = change(self.kept)
            if at_once:
                self.kept = kept
            self.settled = False  # a write that fails may have come to the disk all the same
            try:
                await self._off_loop(write_kept, self._path, kept)
            except OSError as error:
                if not at_once:
                    raise
                log.error("going back from a configuration is not on the disk yet", error=str(error))
            else:
                self.kept, self.settled = kept, True
        record = kept.record
        if record is not None:
            log.info("configuration", name=record.target.name, version=record.target.version, state=record.state.value)
        self._changed()

    def hold(self, change: Callable[[Kept], Kept]) -> None:
        """A change that holds in this process, and is on the disk once that takes it again."""
        self.kept, self.settled = change(self.kept), False
        self._changed()

    async def settle(self) -> None:
        """Has on the disk what holds, where an earlier refusal left that open.

        Raises:
            OSError: the disk refuses.
        """
        if not self.settled:
            async with self._writing:
                await self._off_loop(settle_kept, self._path, self.kept)
                self.settled = True
