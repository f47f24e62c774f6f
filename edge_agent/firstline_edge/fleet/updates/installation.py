"""Installs a bundle in the spare slot of a model: its files are downloaded, verified and stored; it does not run yet.

The manifest is written last, so that a slot is a complete bundle or none. A download resumes after an interruption,
also in another process, and files that are on the device already are copied.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from firstline_core.bundle.manifest import MANIFEST_LIMIT_BYTES, MANIFEST_NAME
from firstline_core.bundle.store import open_bundle
from firstline_core.clock import Clock
from firstline_core.errors import IntegrityError, LinkDownError, NoRoomError, ProtocolError
from firstline_core.fleet.target import Hardware, ListedBundle, choose_variants, files_for, target_path
from firstline_core.fleet.twin import DesiredModel
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.storage.artefact import SignedFile
from firstline_core.storage.files import copy_whole, make_folder, read_limited, sync_folder
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.updates.model_store import Slot
from firstline_edge.fleet.updates.state_machine import TEMPORARY

log = logger(__name__)

_RETRY_S, _RETRY_MAX_S = 2.0, 600.0
_RESERVE_BYTES = 16 << 20
_MISMATCH_LIMIT = 2


class Registry(Protocol):
    """The signed files of a fleet; `GatewayRegistry` and simulations implement it."""

    async def files(self) -> dict[str, SignedFile]:
        """Returns all signed files by path.

        Raises:
            UpdateError: the metadata is not trusted.
            LinkError: the metadata is not available now.
        """

    def read(self, sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        """Yields the rest of a file of that size, in parts as they arrive.

        Raises:
            NotFoundError: there is no such file.
            FirstlineError: the file is not available now; the received bytes are valid.
        """


class RateLimit:
    """An average download speed, which leaves bandwidth to requests.

    Args:
        bytes_per_s: 0 means no limit.
        clock: for waits.
    """

    def __init__(self, bytes_per_s: float, clock: Clock) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._free_s = 0.0

    async def consume(self, size_bytes: int) -> None:
        """Waits until the received bytes are within the limit."""
        if self._bytes_per_s:
            now_s = self._clock.monotonic_s()
            self._free_s = max(self._free_s, now_s) + size_bytes / self._bytes_per_s
            await self._clock.sleep(self._free_s - now_s)


async def download(
    registry: Registry, file: SignedFile, path: Path, rate: RateLimit, on_bytes: Callable[[int], None]
) -> None:
    """Downloads a file to its full size; the caller verifies its content.

    Args:
        registry: of the file.
        file: the expected file.
        path: the file on disk; bytes that it has are not downloaded again.
        rate: limits the speed.
        on_bytes: receives the number of bytes of each part.

    Raises:
        FirstlineError: the connection broke, or too many bytes came; the received bytes stay, call again.
        OSError: the disk refuses.
    """
    with path.open("ab") as stream:
        have_bytes = stream.tell()
        if have_bytes > file.size_bytes:
            stream.truncate(0)
            have_bytes = 0
        if have_bytes == file.size_bytes:
            return
        async for part in registry.read(file.sha256, have_bytes, file.size_bytes):
            have_bytes += len(part)
            if have_bytes > file.size_bytes:
                stream.truncate(0)
                raise ProtocolError(f"{file.path} goes on after its {file.size_bytes} bytes; is this the registry?")
            stream.write(part)
            stream.flush()
            on_bytes(len(part))
            await rate.consume(len(part))
    if have_bytes < file.size_bytes:
        raise LinkDownError(f"{file.path} ended after {have_bytes} of {file.size_bytes} bytes.")


class RequiredFiles(NamedTuple):
    """The files of a bundle that this device needs, by their paths in it; the manifest is last."""

    name: str
    version: int
    files: tuple[tuple[str, SignedFile], ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for _, file in self.files)


def required_files(bundle: ListedBundle, desired: DesiredModel, device: Hardware) -> RequiredFiles:
    """Returns the files that belong in the slot.

    Raises:
        IntegrityError: the fleet desires another manifest than the signed one.
        IncompatibleTargetError: no variant runs here.
    """
    if bundle.manifest.sha256 != desired.sha256:
        raise IntegrityError(
            f"{desired.name} version {desired.version} is signed with the manifest {bundle.manifest.sha256[:12]}, and "
            f"{desired.sha256[:12]} is desired; start the rollout again."
        )
    variants = choose_variants(bundle.release, device)
    folder = target_path(desired.name, desired.version, "")
    manifest, *files = files_for(bundle, *(variant.id for variant in variants))
    inside = ((file.path.removeprefix(folder), file) for file in files)
    return RequiredFiles(desired.name, desired.version, (*inside, (MANIFEST_NAME, manifest)))


class SlotFiles:
    """The slots of one model on the disk. Calls block.

    Args:
        folder: of the model: `a`, `b`, and `fetch` for unfinished downloads.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._partial = folder / "fetch"

    def path(self, slot: Slot) -> Path:
        """Returns the folder of a slot."""
        return self._folder / slot

    def partial(self, sha256: str) -> Path:
        """Returns the path of an unfinished download."""
        return self._partial / sha256

    def partial_bytes(self) -> int:
        """Returns the size of the unfinished downloads."""
        try:
            return sum(path.stat().st_size for path in self._partial.iterdir())
        except OSError:
            return 0

    def begin(self, slot: Slot, files: Sequence[tuple[str, SignedFile]]) -> int:
        """Removes the manifest first, then all files that the next bundle does not need.

        Args:
            slot: to be filled.
            files: of the next bundle, with their paths in it.

        Returns:
            Freed bytes.

        Raises:
            OSError: the disk refuses.
        """
        path = self.path(slot)
        make_folder(path)
        freed_bytes = _remove(path, lambda inside: inside != MANIFEST_NAME)
        sync_folder(path)
        needed, digests = dict(files), {file.sha256 for _, file in files}
        freed_bytes += _remove(path, lambda inside: inside in needed and is_intact(path / inside, needed[inside]))
        make_folder(self._partial)
        freed_bytes += _remove(self._partial, lambda inside: inside in digests)
        sync_folder(path)
        return freed_bytes

    def missing(self, slot: Slot, files: Sequence[tuple[str, SignedFile]], elsewhere: Iterable[Path]) -> set[str]:
        """Returns the paths of files that must be downloaded; copies those of other bundles on this device.

        Args:
            slot: to be filled.
            files: with their paths in the bundle.
            elsewhere: folders of other bundles.

        Raises:
            OSError: the disk refuses.
        """
        folders = list(elsewhere)
        return {inside for inside, file in files if not self._has(slot, inside, file, folders)}

    def _has(self, slot: Slot, inside: str, file: SignedFile, folders: Sequence[Path]) -> bool:
        if inside != MANIFEST_NAME and is_intact(self.path(slot) / inside, file):
            return True
        original = next((folder / inside for folder in folders if is_intact(folder / inside, file)), None)
        if original is None:
            return False
        copy_whole(original, self.partial(file.sha256))
        self.place(slot, inside, file)
        return True

    def place(self, slot: Slot, inside: str, file: SignedFile) -> None:
        """Moves a complete download into the slot.

        Raises:
            IntegrityError: it differs from the signed file, and was deleted.
            OSError: the disk refuses.
        """
        partial, target = self.partial(file.sha256), self.path(slot) / inside
        if not is_intact(partial, file):
            partial.unlink(missing_ok=True)
            raise IntegrityError(f"{inside} is not what was signed: another sha256 than {file.sha256}.")
        with partial.open("rb+") as stream:
            os.fsync(stream.fileno())
        make_folder(target.parent)
        partial.replace(target)
        sync_folder(target.parent)

    def finish(self, slot: Slot) -> None:
        """Removes the folder for downloads after the bundle is complete.

        Raises:
            OSError: the disk refuses.
        """
        self.delete_partial()
        sync_folder(self.path(slot))

    def delete_partial(self) -> None:
        """Deletes unfinished downloads."""
        shutil.rmtree(self._partial, ignore_errors=True)

    def clear(self, slot: Slot) -> None:
        """Deletes the content of a slot."""
        shutil.rmtree(self.path(slot), ignore_errors=True)


@dataclass(slots=True)
class Progress:
    """The progress of one installation.

    Args:
        received_bytes: of all required files.
        problem: why the download is interrupted; "" if it is not.
    """

    received_bytes: int = 0
    problem: str = ""

    def count(self, size_bytes: int) -> None:
        """Adds received bytes."""
        self.received_bytes += size_bytes


class Installer:
    """Fills slots with signed bundles; all models of a device share its download speed.

    Args:
        registry: of the files.
        clock: for waits.
        rng: for jitter.
        bytes_per_s: download speed of all models together; 0 means no limit.
        jitter_s: longest random delay before a download; it prevents a thundering herd.
        off_loop: runs a blocking call; `asyncio.to_thread` except in simulations.
    """

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        rng: random.Random,
        *,
        bytes_per_s: float = 0.0,
        jitter_s: float = 0.0,
        off_loop: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._rng = rng
        self._rate = RateLimit(bytes_per_s, clock)
        self._jitter_s = jitter_s
        self._off_loop = off_loop

    async def files(self) -> dict[str, SignedFile]:
        """Returns all signed files by path; see `Registry.files`."""
        return await self._registry.files()

    async def fill(
        self,
        slots: SlotFiles,
        slot: Slot,
        required: RequiredFiles,
        *,
        elsewhere: Sequence[Path],
        free_bytes: int | None,
        progress: Progress,
    ) -> None:
        """Returns when the slot holds the signed bundle.

        Args:
            slots: of the model.
            slot: to be filled; nothing else relies on it.
            required: the files that belong in it.
            elsewhere: bundles on this device, whose files may be copied.
            free_bytes: on the disk; None if unknown.
            progress: updated on the way.

        Raises:
            NoRoomError: it does not fit.
            IntegrityError: repeated downloads differ from the signed content.
            FirstlineError: a permanent refusal.
            OSError: the disk refuses.
        """
        files = required.files
        freed_bytes = await self._off_loop(slots.begin, slot, files)
        missing = await self._off_loop(slots.missing, slot, files, elsewhere)
        missing_bytes = sum(file.size_bytes for inside, file in files if inside in missing)
        progress.received_bytes = required.size_bytes - missing_bytes + slots.partial_bytes()
        if free_bytes is not None:
            _check_room(missing_bytes - slots.partial_bytes(), free_bytes + freed_bytes)
        if missing:
            await self._clock.sleep(self._rng.uniform(0, self._jitter_s))
        for inside, file in files:
            if inside in missing:
                await self._fetch(slots, slot, inside, file, progress)
        progress.received_bytes = required.size_bytes
        await self._off_loop(slots.finish, slot)
        manifest = (await self._off_loop(open_bundle, slots.path(slot))).manifest
        if (manifest.name, manifest.version) != (required.name, required.version):
            raise IntegrityError(
                f"What is signed as {required.name} version {required.version} says that it is "
                f"{manifest.name} version {manifest.version}; sign it as what it is."
            )

    async def _fetch(self, slots: SlotFiles, slot: Slot, inside: str, file: SignedFile, progress: Progress) -> None:
        """Downloads one file and moves it into the slot; retries temporary errors without an end."""
        failures = mismatches = 0
        while True:
            before_bytes = progress.received_bytes
            try:
                await download(self._registry, file, slots.partial(file.sha256), self._rate, progress.count)
                await self._off_loop(slots.place, slot, inside, file)
                progress.problem = ""
                return
            except IntegrityError:
                mismatches += 1
                progress.received_bytes = max(0, progress.received_bytes - file.size_bytes)
                if mismatches == _MISMATCH_LIMIT:
                    raise
            except TEMPORARY as error:
                failures = 0 if progress.received_bytes > before_bytes else failures + 1
                if progress.problem == "":
                    log.warning("download interrupted; resuming", file=file.path, error=error.message)
                progress.problem = error.message
                pause_s = full_jitter_s(self._rng, failures, base_s=_RETRY_S, max_s=_RETRY_MAX_S)
                await self._clock.sleep(max(pause_s, min(error.retry_after_s or 0.0, _RETRY_MAX_S)))


def _check_room(missing_bytes: int, free_bytes: int) -> None:
    if missing_bytes + _RESERVE_BYTES > free_bytes:
        raise NoRoomError(
            f"{missing_bytes} bytes are still to come, and {free_bytes} are free, of which {_RESERVE_BYTES} stay "
            "free; make room in the state directory."
        )


def manifest_sha256(path: Path) -> str:
    """Returns the digest of a bundle's manifest; "" if the folder is not a bundle."""
    try:
        return hashlib.sha256(read_limited(path / MANIFEST_NAME, MANIFEST_LIMIT_BYTES)).hexdigest()
    except OSError:
        return ""


def is_intact(path: Path, file: SignedFile) -> bool:
    """Returns whether a path holds the signed file."""
    try:
        if path.is_symlink() or path.stat().st_size != file.size_bytes:
            return False
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == file.sha256
    except OSError:
        return False


def _remove(folder: Path, is_needed: Callable[[str], bool]) -> int:
    """Removes the files of a folder that are not needed, and empty folders; returns the freed bytes."""
    freed_bytes = 0
    for path in sorted(folder.rglob("*"), reverse=True):  # the content of a folder comes before the folder
        if path.is_dir() and not path.is_symlink():
            with suppress(OSError):  # it is not empty
                path.rmdir()
        elif not is_needed(path.relative_to(folder).as_posix()):
            freed_bytes += path.lstat().st_size
            path.unlink()
    return freed_bytes
