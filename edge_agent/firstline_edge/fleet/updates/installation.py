"""From the fleet's desired state to a bundle in the other slot: verified, and not yet answering requests."""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.bundle.store import open_bundle
from firstline_core.clock import Clock
from firstline_core.errors import (
    CapacityError,
    FirstlineError,
    IntegrityError,
    LinkError,
    NoRoomError,
    UnauthorizedError,
)
from firstline_core.fleet.target import Hardware, ListedBundle, choose_variants, files_for, target_path
from firstline_core.fleet.twin import DesiredModel
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.storage.artefact import SignedFile
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.updates.fetching import Pace, fetch
from firstline_edge.fleet.updates.pointer import Slot
from firstline_edge.fleet.updates.ports import ByteSource
from firstline_edge.fleet.updates.slots import Slots

log = logger(__name__)

PASSING = (LinkError, CapacityError, UnauthorizedError)
"""What may go better later: a refused right is the operator's to mend."""

_RETRY_S, _RETRY_MAX_S = 2.0, 600.0
_SPARE_BYTES = 16 << 20
_WRONG_LIMIT = 2


def refusal(error: OSError) -> tuple[str, str]:
    """A disk's refusal as a word for programs and a sentence for people."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoRoomError.code, f"The disk has no room ({error.strerror}); make some in the state directory."
    return "disk", f"The disk refuses: {error.strerror or error}."


class Needed(NamedTuple):
    """What this device takes of a bundle: the files by their paths in it, the manifest last."""

    name: str
    version: int
    files: tuple[tuple[str, SignedFile], ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for _, file in self.files)


def needed(bundle: ListedBundle, wanted: DesiredModel, device: Hardware) -> Needed:
    """Returns the files that belong in the slot.

    Raises:
        IntegrityError: the fleet desires another manifest than the one that is signed.
        IncompatibleTargetError: no variant runs here.
    """
    if bundle.manifest.sha256 != wanted.sha256:
        raise IntegrityError(
            f"{wanted.name} version {wanted.version} is signed with the manifest {bundle.manifest.sha256[:12]}, and "
            f"{wanted.sha256[:12]} is desired; start the rollout anew."
        )
    variants = choose_variants(bundle.release, device)
    folder = target_path(wanted.name, wanted.version, "")
    manifest, *files = files_for(bundle, *(variant.id for variant in variants))
    inside = ((file.path.removeprefix(folder), file) for file in files)
    return Needed(wanted.name, wanted.version, (*inside, (MANIFEST_NAME, manifest)))


class Installation:
    """Fills one slot; resumes after an interruption, also in another process.

    Args:
        slots: of the model.
        slot: to be filled; nothing else relies on it.
        what: is to be in it.
        source: of bytes.
        elsewhere: bundles on this device whose files are as good.
        free_bytes: on the disk; None if unknown.
        pace: how fast bytes may come.
        jitter_s: longest random delay before the first request; it prevents a thundering herd.
        off_loop: has a blocking call made elsewhere.
    """

    def __init__(
        self,
        slots: Slots,
        slot: Slot,
        what: Needed,
        source: ByteSource,
        *,
        elsewhere: list[Path],
        free_bytes: int | None,
        pace: Pace,
        jitter_s: float,
        clock: Clock,
        rng: random.Random,
        off_loop: Callable[..., Awaitable[Any]],
    ) -> None:
        self._slots = slots
        self._slot = slot
        self._what = what
        self._source = source
        self._elsewhere = elsewhere
        self._free_bytes = free_bytes
        self._pace = pace
        self._jitter_s = jitter_s
        self._clock = clock
        self._rng = rng
        self._off_loop = off_loop
        self.received_bytes = 0
        self.problem = ""

    async def run(self) -> None:
        """Returns when the slot is a bundle that is what was signed.

        Raises:
            NoRoomError: it does not fit.
            IntegrityError: repeated downloads differ from the signed content.
            FirstlineError: a permanent refusal.
            OSError: the disk refuses.
        """
        files = self._what.files
        freed_bytes = await self._off_loop(self._slots.begin, self._slot, files)
        lacking = await self._off_loop(self._slots.lacking, self._slot, files, self._elsewhere)
        missing_bytes = sum(file.size_bytes for inside, file in files if inside in lacking)
        self.received_bytes = self._what.size_bytes - missing_bytes + self._slots.partial_bytes()
        self._check_room(missing_bytes - self._slots.partial_bytes(), freed_bytes)
        if lacking:
            await self._clock.sleep(self._rng.uniform(0, self._jitter_s))
        for inside, file in files:
            if inside in lacking:
                await self._bring(inside, file)
        self.received_bytes = self._what.size_bytes
        await self._off_loop(self._slots.finish, self._slot)
        bundle = await self._off_loop(open_bundle, self._slots.path(self._slot))
        if (bundle.manifest.name, bundle.manifest.version) != (self._what.name, self._what.version):
            raise IntegrityError(
                f"What is signed as {self._what.name} version {self._what.version} says that it is "
                f"{bundle.manifest.name} version {bundle.manifest.version}; sign it as what it is."
            )

    def _check_room(self, missing_bytes: int, freed_bytes: int) -> None:
        if self._free_bytes is None:
            return
        free_bytes = self._free_bytes + freed_bytes
        if missing_bytes + _SPARE_BYTES > free_bytes:
            raise NoRoomError(
                f"{missing_bytes} bytes are still to come, and {free_bytes} are free, of which {_SPARE_BYTES} stay "
                "free; make room in the state directory."
            )

    async def _bring(self, inside: str, file: SignedFile) -> None:
        partial = self._slots.partial(file.sha256)
        failures = wrong = 0
        while True:
            before_bytes = self.received_bytes
            try:
                await fetch(self._source, file, partial, self._pace, self._came)
                await self._off_loop(self._slots.place, self._slot, inside, file)
                self.problem = ""
                return
            except IntegrityError:
                wrong += 1
                self.received_bytes = max(0, self.received_bytes - file.size_bytes)
                if wrong == _WRONG_LIMIT:
                    raise
            except PASSING as error:
                failures = 0 if self.received_bytes > before_bytes else failures + 1
                if self.problem == "":
                    log.warning("a download was cut off, and goes on", file=file.path, error=error.message)
                self.problem = error.message
                pause_s = full_jitter_s(self._rng, failures, base_s=_RETRY_S, max_s=_RETRY_MAX_S)
                await self._clock.sleep(max(pause_s, _asked_s(error)))

    def _came(self, size_bytes: int) -> None:
        self.received_bytes += size_bytes


def _asked_s(error: FirstlineError) -> float:
    return min(error.retry_after_s or 0.0, _RETRY_MAX_S)
