"""Installs a bundle in the spare slot of a model: its files are downloaded, verified and stored; it does not run yet.

The manifest is written last, so that a slot is a complete bundle or none. A download resumes after an interruption,
also in another process, and files that are on the device already are copied.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

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
from firstline_edge.fleet.updates.state_machine import TEMPORARY, UpdateServices

log = logger(__name__)

UNFINISHED = "fetch"
"""Name of the folder of unfinished downloads, next to the slots of a model."""

_RETRY_S, _RETRY_MAX_S = 2.0, 600.0
_RESERVE_BYTES = 16 << 20
_MISMATCH_LIMIT = 2


class SignedFileSource(Protocol):
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
    registry: SignedFileSource, file: SignedFile, path: Path, rate: RateLimit, on_bytes: Callable[[int], None]
) -> None:
    """Downloads a file to its full size; the caller verifies its content.

    Args:
        registry: of the file.
        file: the expected file.
        path: the file on disk; bytes that it has are not downloaded again.
        rate: limits the speed.
        on_bytes: receives the number of bytes of each part; a negative number if received bytes are discarded.

    Raises:
        FirstlineError: the connection broke, or too many bytes came; the received bytes stay, call again.
        OSError: the disk refuses.
    """
    with path.open("ab") as stream:
        have_bytes = stream.tell()
        if have_bytes > file.size_bytes:
            stream.truncate(0)
            on_bytes(-have_bytes)
            have_bytes = 0
        if have_bytes == file.size_bytes:
            return
        async for part in registry.read(file.sha256, have_bytes, file.size_bytes):
            have_bytes += len(part)
            if have_bytes > file.size_bytes:
                stream.truncate(0)
                on_bytes(len(part) - have_bytes)
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


@dataclass(eq=False)
class SlotFiles:
    """The files of one bundle in a slot on the disk, and the progress of their download. Calls block.

    Args:
        path: of the slot, next to the folder of unfinished downloads; nothing else relies on the slot.
        required: the files that belong in it.

    Attributes:
        received_bytes: of all required files.
        problem: why the download is interrupted; "" if it is not.
    """

    path: Path
    required: RequiredFiles
    received_bytes: int = field(default=0, init=False)
    problem: str = field(default="", init=False)

    @property
    def _unfinished(self) -> Path:
        return self.path.with_name(UNFINISHED)

    def partial(self, file: SignedFile) -> Path:
        """Returns the path of an unfinished download."""
        return self._unfinished / file.sha256

    def partial_bytes(self) -> int:
        """Returns the size of the unfinished downloads."""
        try:
            return sum(path.stat().st_size for path in self._unfinished.iterdir())
        except OSError:
            return 0

    def count(self, size_bytes: int) -> None:
        """Adds received bytes, or subtracts discarded ones."""
        self.received_bytes += size_bytes

    def begin(self) -> int:
        """Removes the manifest first, then all files that the bundle does not need; returns the freed bytes.

        Raises:
            OSError: the disk refuses.
        """
        make_folder(self.path)
        freed_bytes = _remove(self.path, lambda inside: inside != MANIFEST_NAME)
        sync_folder(self.path)
        needed = dict(self.required.files)
        digests = {file.sha256 for file in needed.values()}
        freed_bytes += _remove(
            self.path, lambda inside: inside in needed and is_intact(self.path / inside, needed[inside])
        )
        make_folder(self._unfinished)
        freed_bytes += _remove(self._unfinished, lambda inside: inside in digests)
        sync_folder(self.path)
        return freed_bytes

    def missing(self, elsewhere: Sequence[Path]) -> list[tuple[str, SignedFile]]:
        """Returns the files that must be downloaded; copies those of other bundles on this device.

        Args:
            elsewhere: folders of other bundles.

        Raises:
            OSError: the disk refuses.
        """
        return [(inside, file) for inside, file in self.required.files if not self._has(inside, file, elsewhere)]

    def _has(self, inside: str, file: SignedFile, elsewhere: Sequence[Path]) -> bool:
        if inside != MANIFEST_NAME and is_intact(self.path / inside, file):
            return True
        original = next((folder / inside for folder in elsewhere if is_intact(folder / inside, file)), None)
        if original is None:
            return False
        copy_whole(original, self.partial(file))
        self.place(inside, file)
        return True

    def place(self, inside: str, file: SignedFile) -> None:
        """Moves a complete download into the slot.

        Raises:
            IntegrityError: it differs from the signed file, and was deleted.
            OSError: the disk refuses.
        """
        partial, target = self.partial(file), self.path / inside
        if not is_intact(partial, file):
            partial.unlink(missing_ok=True)
            raise IntegrityError(f"{inside} is not what was signed: another sha256 than {file.sha256}.")
        with partial.open("rb+") as stream:
            os.fsync(stream.fileno())
        make_folder(target.parent)
        partial.replace(target)
        sync_folder(target.parent)

    def finish(self) -> None:
        """Removes the folder for downloads after the bundle is complete.

        Raises:
            OSError: the disk refuses.
        """
        shutil.rmtree(self._unfinished, ignore_errors=True)
        sync_folder(self.path)


@dataclass(eq=False)
class Installer:
    """Fills slots with signed bundles; all models of a device share its download speed.

    Args:
        registry: of the files.
        services: of the device; their limits have the speed, and the longest random delay before a download.
    """

    registry: SignedFileSource
    services: UpdateServices
    _rate: RateLimit = field(init=False)

    def __post_init__(self) -> None:
        self._rate = RateLimit(self.services.limits.download_bytes_per_s, self.services.clock)

    async def fill(self, slot: SlotFiles, *, elsewhere: Sequence[Path], free_bytes: int | None) -> None:
        """Returns when the slot holds the signed bundle.

        Args:
            slot: to be filled.
            elsewhere: bundles on this device, whose files may be copied.
            free_bytes: on the disk; None if unknown.

        Raises:
            NoRoomError: it does not fit.
            IntegrityError: repeated downloads differ from the signed content.
            FirstlineError: a permanent refusal.
            OSError: the disk refuses.
        """
        required, services = slot.required, self.services
        freed_bytes = await services.off_loop(slot.begin)
        missing = await services.off_loop(slot.missing, elsewhere)
        missing_bytes = sum(file.size_bytes for _, file in missing)
        slot.received_bytes = required.size_bytes - missing_bytes + slot.partial_bytes()
        if free_bytes is not None:
            _check_room(missing_bytes - slot.partial_bytes(), free_bytes + freed_bytes)
        if missing:
            await services.clock.sleep(services.rng.uniform(0, services.limits.download_jitter_s))
        for inside, file in missing:
            await self._fetch(slot, inside, file)
        slot.received_bytes = required.size_bytes
        await services.off_loop(slot.finish)
        manifest = (await services.off_loop(open_bundle, slot.path)).manifest
        if (manifest.name, manifest.version) != (required.name, required.version):
            raise IntegrityError(
                f"What is signed as {required.name} version {required.version} says that it is "
                f"{manifest.name} version {manifest.version}; sign it as what it is."
            )

    async def _fetch(self, slot: SlotFiles, inside: str, file: SignedFile) -> None:
        """Downloads one file and moves it into the slot; retries temporary errors without an end."""
        failures = mismatches = 0
        while True:
            before_bytes = slot.received_bytes
            try:
                await download(self.registry, file, slot.partial(file), self._rate, slot.count)
                await self.services.off_loop(slot.place, inside, file)
                slot.problem = ""
                return
            except IntegrityError:
                mismatches += 1
                slot.received_bytes = max(0, slot.received_bytes - file.size_bytes)
                if mismatches == _MISMATCH_LIMIT:
                    raise
            except TEMPORARY as error:
                failures = 0 if slot.received_bytes > before_bytes else failures + 1
                if slot.problem == "":
                    log.warning("download interrupted; resuming", file=file.path, error=error.message)
                slot.problem = error.message
                pause_s = full_jitter_s(self.services.rng, failures, base_s=_RETRY_S, max_s=_RETRY_MAX_S)
                await self.services.clock.sleep(max(pause_s, min(error.retry_after_s or 0.0, _RETRY_MAX_S)))


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
