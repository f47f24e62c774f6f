"""The hardware catalogue: described at once, measured once in the background, stored until the hardware changes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import FirstlineError, IntegrityError, ProtocolError
from firstline_core.hardware.catalogue import LIMIT_BYTES, Catalogue, decode, encode
from firstline_core.hardware.kernel_files import Tree, read_in_time
from firstline_core.hardware.survey import describe_device, with_measurements
from firstline_core.runtime.threads import REFUSED, in_daemon_thread
from firstline_core.storage.files import read_checked
from firstline_core.storage.structs import write_struct
from firstline_core.telemetry.logs import logger

log = logger(__name__)

_LIMIT_S = 600.0
_DELAY_S = 30.0  # an agent that has just started has other things to do
_AGAIN_S = 300.0
_END_S = 5.0


@dataclass(eq=False)
class Surveyor:
    """Surveys one device.

    Args:
        tree: the kernel's files.
        folder: the state directory, whose disk is described.
        path: of the stored catalogue.
        clock: the agent's clock.
        measures: whether to measure; otherwise only files are read.
        on_change: called when the catalogue changes.

    Attributes:
        catalogue: None until the files were read, milliseconds after the start.
    """

    tree: Tree
    folder: Path
    path: Path
    _: KW_ONLY
    clock: Clock = SYSTEM_CLOCK
    measures: bool = True
    on_change: Callable[[], None] = lambda: None
    catalogue: Catalogue | None = field(default=None, init=False)

    async def run(self) -> None:
        """Describes and measures the device, then returns."""
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
            try:
                measured = await survey(self.tree.root, self.folder)
            except FirstlineError as error:
                log.warning("hardware not measured", error=error.message)
                return
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
        is_valid = stored is not None and stored.fingerprint == described.fingerprint
        return with_measurements(described, stored) if stored is not None and is_valid else described

    def read_stored(self) -> Catalogue | None:
        """Returns the stored catalogue; None if there is none or it is damaged."""
        try:
            return decode(read_checked(self.path), str(self.path))
        except FileNotFoundError:
            return None
        except (OSError, IntegrityError, ProtocolError) as error:
            log.warning("stored catalogue unreadable; measuring hardware again", error=str(error))
            return None

    def store(self, measured: Catalogue) -> None:
        """Stores the catalogue; if the disk refuses, the device is measured again at the next start."""
        try:
            write_struct(self.path, measured)
        except OSError as error:
            log.warning("catalogue not stored", path=str(self.path), error=str(error))

    def _publish(self, found: Catalogue) -> None:
        """Rejects a catalogue that a reader would refuse."""
        try:
            self.catalogue = decode(encode(found), "The catalogue of this device")
        except ProtocolError as error:
            log.warning("catalogue of this device invalid", error=error.message)
            return
        self.on_change()


async def survey(root: Path, folder: Path, limit_s: float = _LIMIT_S) -> Catalogue:
    """Measures in a process of the lowest priority, which ends with this call.

    Args:
        root: where the kernel's files begin.
        folder: the state directory.
        limit_s: time limit.

    Raises:
        ProtocolError: the process did not end in time, or failed.
        OSError: the system refuses a process.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "firstline_core.hardware.survey",
        str(folder),
        str(root),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # trials are its children, and are to end with it
    )
    assert child.stdout is not None  # noqa: S101 (it is a pipe)
    try:
        async with asyncio.timeout(limit_s):
            output = await child.stdout.read(-1)
            code = await child.wait()
    except TimeoutError as error:
        raise ProtocolError(f"The survey of this device did not end within {limit_s:.0f} s.") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):  # what hangs within a driver does not even end when it is killed
                await child.wait()
    if code:
        raise ProtocolError(
            f"The survey of this device ended with exit code {code}; `edge-agent hardware get` says more."
        )
    if len(output) > LIMIT_BYTES:
        raise ProtocolError(f"The survey of this device wrote {len(output)} bytes; at most {LIMIT_BYTES} are read.")
    return decode(output, "The survey of this device")
