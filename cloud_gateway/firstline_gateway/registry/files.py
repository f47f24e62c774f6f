"""The files of bundles by their sha256: uploaded once, served whole or in parts, within a limit on their total size.

`Blobs` is the port to the place where they are stored: a local folder here, or an S3-compatible store (`s3.py`). A file
is stored whole, with the content that its name says, or not at all.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

from firstline_core.clock import Clock
from firstline_core.errors import NoRoomError, NotFoundError, PayloadTooLargeError, RequestError, StoreUnavailableError
from firstline_core.runtime.threads import in_daemon_thread
from firstline_core.storage.artefact import SignedFile
from firstline_core.storage.files import make_folder, naming, sync_folder, system_reason
from firstline_gateway.settings.settings import RegistrySection

PART_BYTES = 1 << 20

_ABANDONED_S = 86_400.0
_RETRY_S = 30.0
_INCOMING = "incoming"
# A folder that replicas share may hang for any time: calls have threads of their own, for which no process waits.
_CALLS = 16
_PATIENCE_S = 120.0

_T = TypeVar("_T")


class Blob(NamedTuple):
    """A stored file: its sha256, its size, and when it was stored (wall time, seconds)."""

    sha256: str
    size_bytes: int
    stored_s: float


class Blobs(Protocol):
    """The port. Each method raises `StoreUnavailableError` if the store is unreachable, full, or refuses."""

    async def put(self, sha256: str, parts: AsyncIterable[bytes]) -> None:
        """Stores a file after its last part; if `parts` raises, nothing is stored."""
        ...

    async def find(self, sha256: str) -> Blob | None: ...

    def read(self, sha256: str, start: int, end: int) -> AsyncIterator[bytes]:
        """Yields the bytes from `start` to before `end`.

        Raises:
            NotFoundError: there is no such file.
        """
        ...

    async def all(self) -> list[Blob]: ...

    async def remove(self, sha256: str) -> None:
        """Deletes a file, if it exists."""
        ...


class LocalBlobs:
    """A folder on this machine, or one that replicas share, with 256 subfolders so that no folder is huge.

    Raises:
        ConfigError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls = asyncio.Semaphore(_CALLS)
        with naming(f"registry.blobs {folder}", "written"):
            make_folder(folder / _INCOMING)

    async def put(self, sha256: str, parts: AsyncIterable[bytes]) -> None:
        """See `Blobs`."""
        incoming = self._folder / _INCOMING / f"{sha256}.{secrets.token_hex(8)}"
        with self._translated():
            file = await self._call(lambda: incoming.open("xb"))
            try:
                buffered, buffered_bytes = [], 0
                async for part in parts:
                    buffered.append(part)
                    buffered_bytes += len(part)
                    if buffered_bytes >= PART_BYTES:
                        await self._call(partial(file.writelines, buffered))
                        buffered, buffered_bytes = [], 0
                await self._call(partial(self._finish, file, buffered, incoming, self._path(sha256)))
            finally:
                await self._call(partial(self._close, file, incoming))

    async def _call(self, call: Callable[[], _T]) -> _T:
        """Runs a call in a thread, at most `_CALLS` at the same time, those that hang included.

        Raises:
            OSError: it fails, or does not return in time.
        """
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._calls.acquire()
                running = asyncio.ensure_future(in_daemon_thread(call))
                running.add_done_callback(self._returned)
                return await asyncio.shield(running)
        except TimeoutError as error:
            raise OSError(f"it did not answer within {_PATIENCE_S:g} s") from error

    def _returned(self, running: asyncio.Future[_T]) -> None:
        self._calls.release()
        if not running.cancelled():
            running.exception()  # its caller may have given up; asyncio would log an error that nothing retrieves

    def _close(self, file: BinaryIO, incoming: Path) -> None:
        try:
            file.close()
        finally:
            incoming.unlink(missing_ok=True)

    def _finish(self, file: BinaryIO, buffered: list[bytes], incoming: Path, path: Path) -> None:
        file.writelines(buffered)
        file.flush()
        os.fsync(file.fileno())
        make_folder(path.parent)
        incoming.replace(path)
        sync_folder(path.parent)

    async def find(self, sha256: str) -> Blob | None:
        """See `Blobs`."""
        with self._translated():
            try:
                status = await self._call(self._path(sha256).stat)
            except FileNotFoundError:
                return None
        return Blob(sha256, status.st_size, status.st_mtime)

    async def read(self, sha256: str, start: int, end: int) -> AsyncIterator[bytes]:
        """See `Blobs`."""
        with self._translated():
            while start < end:
                try:
                    part = await self._call(partial(self._part, sha256, start, min(PART_BYTES, end - start)))
                except FileNotFoundError as error:
                    raise NotFoundError(f"There is no file {sha256}.") from error
                if not part:
                    return  # the file was truncated: the client sees that bytes are missing
                start += len(part)
                yield part

    def _part(self, sha256: str, start: int, size_bytes: int) -> bytes:
        with self._path(sha256).open("rb") as file:
            file.seek(start)
            return file.read(size_bytes)

    async def all(self) -> list[Blob]:
        """See `Blobs`."""
        with self._translated():
            return await self._call(self._all)

    def _all(self) -> list[Blob]:
        blobs = []
        for path in self._folder.glob("[0-9a-f][0-9a-f]/*"):
            with suppress(FileNotFoundError):  # removed since
                status = path.stat()
                blobs.append(Blob(path.name, status.st_size, status.st_mtime))
        self._delete_abandoned()
        return blobs

    def _delete_abandoned(self) -> None:
        """Deletes incomplete uploads of processes that ended."""
        before_s = time.time() - _ABANDONED_S
        with suppress(FileNotFoundError):  # an upload that has just been completed; the next call continues
            for path in (self._folder / _INCOMING).iterdir():
                if path.stat().st_mtime < before_s:
                    path.unlink()

    async def remove(self, sha256: str) -> None:
        """See `Blobs`."""
        with self._translated():
            await self._call(partial(self._path(sha256).unlink, missing_ok=True))

    def _path(self, sha256: str) -> Path:
        return self._folder / sha256[:2] / sha256

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = f"refuses: {system_reason(error)}."
            raise StoreUnavailableError(
                f"The registry's folder {self._folder} {reason}",
                retry_after_s=_RETRY_S,
                public=f"The registry's folder {reason}",
            ) from error


_COUNT_S = 60.0  # the files of other replicas are counted as often


class Files:
    """The registry's files. Used on one event loop.

    Args:
        blobs: stores them.
        settings: the limits.
        clock: gives wall and monotonic time.

    Attributes:
        limit_bytes: largest total size.
    """

    def __init__(self, blobs: Blobs, settings: RegistrySection, *, clock: Clock) -> None:
        self.blobs = blobs
        self.limit_bytes = settings.limit_bytes
        self.blob_limit_bytes = settings.blob_limit_bytes
        self._clock = clock
        self._stored_bytes = 0
        self._incoming_bytes = 0
        self._counted_s: float | None = None

    async def put(self, digest: str, parts: AsyncIterable[bytes], size_bytes: int | None = None) -> bool:
        """Stores a file; returns False, without reading `parts`, if it exists already.

        A file that was stored with another size is replaced: the disk has damaged it.

        Args:
            digest: its sha256.
            parts: its content.
            size_bytes: its size as declared; None if it is not known.

        Raises:
            RequestError: the content has another digest.
            PayloadTooLargeError: it is too large.
            NoRoomError: the total size would be over the limit.
            StoreUnavailableError: the store refuses.
        """
        found = await self.blobs.find(digest)
        if found is not None and size_bytes in (None, found.size_bytes):
            return False
        if self._counted_s is None or self._clock.monotonic_s() - self._counted_s >= _COUNT_S:
            await self.all()
        await self.blobs.put(digest, self._checked(digest, parts))
        self._stored_bytes -= found.size_bytes if found is not None else 0
        return True

    async def blob(self, digest: str) -> Blob:
        """Returns a file's size.

        Raises:
            NotFoundError: there is no such file.
        """
        blob = await self.blobs.find(digest)
        if blob is None:
            raise NotFoundError(f"The registry has no file {digest}; PUT it first.")
        return blob

    def read(self, digest: str, start: int, end: int) -> AsyncIterator[bytes]:
        """Yields the bytes of a file from `start` to before `end`."""
        return self.blobs.read(digest, start, end)

    async def all(self) -> list[Blob]:
        """Returns all files."""
        blobs = await self.blobs.all()
        self._stored_bytes = sum(blob.size_bytes for blob in blobs)
        self._counted_s = self._clock.monotonic_s()
        return blobs

    async def sweep(self, listed: Collection[str], grace_s: float) -> int:
        """Deletes unlisted files that are older than `grace_s`: a newer file may be about to be listed."""
        before_s = self._clock.wall_s() - grace_s
        unlisted = [blob for blob in await self.all() if blob.sha256 not in listed and blob.stored_s < before_s]
        for blob in unlisted:
            await self.blobs.remove(blob.sha256)
            self._stored_bytes -= blob.size_bytes
        return len(unlisted)

    async def check(self, files: Mapping[str, SignedFile], before: Mapping[str, SignedFile]) -> None:
        """Checks that newly listed files are stored.

        Args:
            files: the files that will be listed, by path.
            before: the files that are listed.

        Raises:
            RequestError: one is not stored.
        """
        for path, file in files.items():
            if path in before and before[path].sha256 == file.sha256:
                continue
            blob = await self.blobs.find(file.sha256)
            if blob is None or blob.size_bytes != file.size_bytes:
                raise RequestError(
                    f"The targets list {path} with the sha256 {file.sha256}, which the registry has not; send the file "
                    "before what is signed of it."
                )

    async def _checked(self, sha256: str, parts: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """Yields the parts of a file while there is room for them and for other uploads, and verifies them at the end.

        Raises:
            PayloadTooLargeError, NoRoomError, RequestError: as `put`.
        """
        digest, size_bytes = hashlib.sha256(), 0
        try:
            async for part in parts:
                size_bytes += len(part)
                self._incoming_bytes += len(part)
                if size_bytes > self.blob_limit_bytes:
                    raise PayloadTooLargeError(
                        f"The file has more than {self.blob_limit_bytes} bytes, the most that "
                        "registry.blob_limit_bytes allows."
                    )
                if self._stored_bytes + self._incoming_bytes > self.limit_bytes:
                    raise NoRoomError(
                        f"The registry has {self._stored_bytes} of the {self.limit_bytes} bytes that "
                        "registry.limit_bytes allows, and no room for this file; remove old versions "
                        "(`firstline model delete`: their files go a day later), or raise the limit."
                    )
                digest.update(part)
                yield part
            if digest.hexdigest() != sha256:
                raise RequestError(
                    f"What came has {size_bytes} bytes and the sha256 {digest.hexdigest()}, not {sha256}; send the "
                    "file again."
                )
            self._stored_bytes += size_bytes
        finally:
            self._incoming_bytes -= size_bytes
