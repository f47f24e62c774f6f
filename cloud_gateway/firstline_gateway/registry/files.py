"""The registry's files: each is stored once and served in parts or whole; their total size is limited."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Collection, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError, NoRoomError, NotFoundError, RequestError
from firstline_core.storage.artefact import SignedFile
from firstline_gateway.registry.blobs import Blob, Blobs, LocalBlobs, checked
from firstline_gateway.settings.settings import Registry as RegistrySettings

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
