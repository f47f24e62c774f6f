"""Where bundles' files are: by their sha256, in a local folder, or behind the same port elsewhere (`s3.py`).

A file is there whole, with the content that its name says, or not at all.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Collection, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol
from urllib.parse import urlsplit

from firstline_core.clock import Clock
from firstline_core.errors import (
    ConfigError,
    NoRoomError,
    NotFoundError,
    PayloadTooLargeError,
    RequestError,
    StoreUnavailableError,
)
from firstline_core.storage.artefact import SignedFile
from firstline_core.storage.files import make_folder, sync_folder
from firstline_gateway.settings.settings import Registry as RegistrySettings

PART_BYTES = 1 << 20

_ABANDONED_S = 86_400.0
_RETRY_S = 30.0
_INCOMING = "incoming"


class Blob(NamedTuple):
    """A file: its sha256, its size, and when it came (wall time, seconds)."""

    sha256: str
    size_bytes: int
    came_s: float


class Blobs(Protocol):
    """The port. `StoreUnavailableError` of each method: it is away, full, or refuses."""

    async def put(self, sha256: str, parts: AsyncIterable[bytes]) -> None:
        """Keeps a file once its last part has come; where `parts` raises, or the disk refuses, there is nothing."""
        ...

    async def find(self, sha256: str) -> Blob | None: ...

    def read(self, sha256: str, start: int, end: int) -> AsyncIterator[bytes]:
        """The bytes from `start` to before `end`.

        Raises:
            NotFoundError: there is no such file.
        """
        ...

    async def all(self) -> list[Blob]: ...

    async def remove(self, sha256: str) -> None:
        """Forgets a file, if it is there."""
        ...


async def checked(parts: AsyncIterable[bytes], sha256: str, limit_bytes: int) -> AsyncIterator[bytes]:
    """A file's parts as they come, which end in an error where they are not what its name says.

    Raises:
        PayloadTooLargeError: more than `limit_bytes`.
        RequestError: their sha256 is another.
    """
    digest, size_bytes = hashlib.sha256(), 0
    async for part in parts:
        size_bytes += len(part)
        if size_bytes > limit_bytes:
            raise PayloadTooLargeError(
                f"The file has more than {limit_bytes} bytes, the most that registry.blob_limit_bytes allows."
            )
        digest.update(part)
        yield part
    if digest.hexdigest() != sha256:
        raise RequestError(
            f"What came has {size_bytes} bytes and the sha256 {digest.hexdigest()}, not {sha256}; send the file again."
        )


class LocalBlobs:
    """A folder on this machine, or one that replicas share; names are two letters deep, so that no folder is huge."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            make_folder(folder / _INCOMING)
        except OSError as error:
            raise ConfigError(f"registry.blobs {folder} cannot be written: {error.strerror}.") from error

    async def put(self, sha256: str, parts: AsyncIterable[bytes]) -> None:
        """See `Blobs`."""
        incoming = self._folder / _INCOMING / f"{sha256}.{secrets.token_hex(8)}"
        try:
            with incoming.open("xb") as file:
                held, held_bytes = [], 0
                async for part in parts:
                    held.append(part)
                    held_bytes += len(part)
                    if held_bytes >= PART_BYTES:
                        await asyncio.to_thread(file.writelines, held)
                        held, held_bytes = [], 0
                await asyncio.to_thread(self._finish, file, held, incoming, self._path(sha256))
        except OSError as error:
            raise self._refusal(error) from error
        finally:
            incoming.unlink(missing_ok=True)

    def _finish(self, file: BinaryIO, held: list[bytes], incoming: Path, path: Path) -> None:
        file.writelines(held)
        file.flush()
        os.fsync(file.fileno())
        make_folder(path.parent)
        incoming.replace(path)
        sync_folder(path.parent)

    async def find(self, sha256: str) -> Blob | None:
        """See `Blobs`."""
        try:
            found = await asyncio.to_thread(self._path(sha256).stat)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._refusal(error) from error
        return Blob(sha256, found.st_size, found.st_mtime)

    async def read(self, sha256: str, start: int, end: int) -> AsyncIterator[bytes]:
        """See `Blobs`."""
        try:
            with await asyncio.to_thread(self._path(sha256).open, "rb") as file:
                file.seek(start)
                while start < end:
                    part = await asyncio.to_thread(file.read, min(PART_BYTES, end - start))
                    if not part:
                        return  # somebody cut it short: the client sees that bytes are missing
                    start += len(part)
                    yield part
        except FileNotFoundError as error:
            raise NotFoundError(f"There is no file {sha256}.") from error
        except OSError as error:
            raise self._refusal(error) from error

    async def all(self) -> list[Blob]:
        """See `Blobs`."""
        return await asyncio.to_thread(self._all)

    def _all(self) -> list[Blob]:
        found = []
        for path in self._folder.glob("[0-9a-f][0-9a-f]/*"):
            try:
                status = path.stat()
            except FileNotFoundError:  # removed since
                continue
            found.append(Blob(path.name, status.st_size, status.st_mtime))
        self._sweep()
        return found

    def _sweep(self) -> None:
        """Forgets what was being received when a process ended."""
        try:
            paths = [(path, path.stat().st_mtime) for path in (self._folder / _INCOMING).iterdir()]
        except FileNotFoundError:  # one that has just arrived whole
            return
        newest_s = max((came_s for _, came_s in paths), default=0.0)
        for path, came_s in paths:
            if came_s < newest_s - _ABANDONED_S:
                path.unlink(missing_ok=True)

    async def remove(self, sha256: str) -> None:
        """See `Blobs`."""
        try:
            await asyncio.to_thread(self._path(sha256).unlink, missing_ok=True)
        except OSError as error:
            raise self._refusal(error) from error

    def _path(self, sha256: str) -> Path:
        return self._folder / sha256[:2] / sha256

    def _refusal(self, error: OSError) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"The registry's folder {self._folder} refuses: {error.strerror}.", retry_after_s=_RETRY_S
        )


_COUNT_S = 60.0  # what other replicas keep is known so late


class Files:
    """Asked on one event loop.

    Args:
        blobs: where they are.
        settings: the limits.
        clock: gives wall and monotonic time.
    """

    def __init__(self, blobs: Blobs, settings: RegistrySettings, *, clock: Clock) -> None:
        self.blobs = blobs
        self._settings = settings
        self._clock = clock
        self._held_bytes = 0
        self._coming_bytes = 0
        self._counted_s: float | None = None

    @property
    def limit_bytes(self) -> int:
        """The most that all of them may have together."""
        return self._settings.limit_bytes

    async def put(self, digest: str, parts: AsyncIterable[bytes]) -> bool:
        """Keeps a file; False where it was there already, and was not read.

        Raises:
            RequestError: it is another file.
            PayloadTooLargeError: it is too large.
            NoRoomError: all files together would be.
            StoreUnavailableError: it cannot be kept.
        """
        if await self.blobs.find(digest) is not None:
            return False
        if self._counted_s is None or self._clock.monotonic_s() - self._counted_s >= _COUNT_S:
            await self.all()
        await self.blobs.put(digest, self._fitting(checked(parts, digest, self._settings.blob_limit_bytes)))
        return True

    async def blob(self, digest: str) -> Blob:
        """A file's size.

        Raises:
            NotFoundError: there is none.
        """
        found = await self.blobs.find(digest)
        if found is None:
            raise NotFoundError(f"The registry has no file {digest}.")
        return found

    def read(self, digest: str, start: int, end: int) -> AsyncIterator[bytes]:
        """A file's bytes from `start` to before `end`."""
        return self.blobs.read(digest, start, end)

    async def all(self) -> list[Blob]:
        """Every file."""
        found = await self.blobs.all()
        self._held_bytes = sum(blob.size_bytes for blob in found)
        self._counted_s = self._clock.monotonic_s()
        return found

    async def sweep(self, wanted: Collection[str], grace_s: float) -> int:
        """Forgets files that are not wanted, and that are older than that: a new file may be about to be listed."""
        before_s = self._clock.wall_s() - grace_s
        gone = [blob for blob in await self.all() if blob.sha256 not in wanted and blob.came_s < before_s]
        for blob in gone:
            await self.blobs.remove(blob.sha256)
            self._held_bytes -= blob.size_bytes
        return len(gone)

    async def check(self, files: Mapping[str, SignedFile], before: Mapping[str, SignedFile]) -> None:
        """Whether what is newly listed can be fetched.

        Args:
            files: that are to be listed, by path.
            before: that are.

        Raises:
            RequestError: it cannot.
        """
        for path, file in files.items():
            if path in before and before[path].sha256 == file.sha256:
                continue
            found = await self.blobs.find(file.sha256)
            if found is None or found.size_bytes != file.size_bytes:
                raise RequestError(
                    f"The targets list {path} with the sha256 {file.sha256}, which the registry has not; send the file "
                    "before what is signed of it."
                )

    async def _fitting(self, parts: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """Yields a file's parts while there is room for them and for other uploads in progress."""
        came_bytes = 0
        try:
            async for part in parts:
                came_bytes += len(part)
                self._coming_bytes += len(part)
                if self._held_bytes + self._coming_bytes > self.limit_bytes:
                    raise NoRoomError(
                        f"The registry has {self._held_bytes} of the {self.limit_bytes} bytes that "
                        "registry.limit_bytes allows, and no room for this file; remove old versions "
                        "(`firstline model rm`: their files go a day later), or raise the limit."
                    )
                yield part
            self._held_bytes += came_bytes
        finally:
            self._coming_bytes -= came_bytes


def open_blobs(where: str, *, endpoint: str = "", region: str = "") -> Blobs:
    """Opens the setting `registry.blobs`: a folder, or s3://BUCKET/PREFIX.

    Raises:
        ConfigError: it cannot be used, or its library is missing.
    """
    if not where.startswith("s3://"):
        return LocalBlobs(Path(where))
    parts = urlsplit(where)
    if not parts.hostname:
        raise ConfigError(f'registry.blobs is {where!a}, without a bucket; write "s3://BUCKET/PREFIX".')
    try:
        from firstline_gateway.registry.s3 import S3Blobs
    except ImportError as error:
        raise ConfigError(
            "registry.blobs names an S3 store, and its library is missing: pip install 'firstline[s3]'."
        ) from error
    return S3Blobs(parts.hostname, parts.path.strip("/"), endpoint=endpoint, region=region)
