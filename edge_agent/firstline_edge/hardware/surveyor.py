"""The hardware catalogue: described at once, its engines tried in the background, stored until the hardware changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.hardware.catalogue import Catalogue
from firstline_core.hardware.kernel_files import Tree, read_in_time
from firstline_core.hardware.survey import describe_device, measure_device, with_measurements
from firstline_core.runtime.threads import REFUSED, in_daemon_thread, in_stoppable_thread
from firstline_core.telemetry.logs import logger
from firstline_edge.state import StatePaths, read_stored, store

log = logger(__name__)

_DELAY_S = 30.0  # an agent that has just started has other things to do
_AGAIN_S = 300.0


@dataclass(eq=False)
class Surveyor:
    """Surveys one device.

    Args:
        tree: the kernel's files.
        folder: the state directory, which stores the catalogue, and whose disk is described.
        clock: the agent's clock.
        measures: whether to try the engines; otherwise only files are read.
        on_change: called when the catalogue changes.

    Attributes:
        catalogue: None until the files were read, milliseconds after the start.
    """

    tree: Tree
    folder: Path
    _: KW_ONLY
    clock: Clock = SYSTEM_CLOCK
    measures: bool = True
    on_change: Callable[[], None] = lambda: None
    catalogue: Catalogue | None = field(default=None, init=False)

    async def run(self) -> None:
        """Describes the device and tries its engines, then returns."""
        refused = False
        while True:
            try:
                return await self._survey()
            except REFUSED as error:
                if not refused:
                    log.warning("hardware not described yet; retrying", error=str(error))
                refused = True
            await self.clock.sleep(_AGAIN_S)

    async def _survey(self) -> None:
        found = await in_daemon_thread(lambda: self._with_stored(describe_device(self.tree, self.folder)))
        self._publish(found)
        if self.measures and not found.measured:
            await self.clock.sleep(_DELAY_S)
            measured = await in_stoppable_thread(
                lambda stopped: measure_device(found, must_end=lambda: "stopped" if stopped.is_set() else "")
            )
            self._publish(measured)
            await asyncio.to_thread(self.store, measured)

    def describe(self) -> Catalogue:
        """Returns what the files say now; blocks for milliseconds.

        Raises:
            DeadlineExceededError: a driver hangs.
        """
        return read_in_time(self.tree, partial(describe_device, self.tree, self.folder))

    def known(self) -> Catalogue:
        """Returns what the files say now, with the stored measurements if they are of this hardware."""
        return self._with_stored(self.describe())

    def _with_stored(self, described: Catalogue) -> Catalogue:
        stored = self.read_stored()
        if stored is None or stored.fingerprint != described.fingerprint:
            return described
        return with_measurements(described, stored)

    def read_stored(self) -> Catalogue | None:
        """Returns the stored catalogue; None if there is none or it is damaged."""
        return read_stored(StatePaths(self.folder).hardware_path, Catalogue, "catalogue")

    def store(self, measured: Catalogue) -> None:
        """Stores the catalogue; if the disk refuses, the device is measured again at the next start."""
        store(StatePaths(self.folder).hardware_path, measured, "catalogue")

    def _publish(self, found: Catalogue) -> None:
        self.catalogue = found
        self.on_change()
