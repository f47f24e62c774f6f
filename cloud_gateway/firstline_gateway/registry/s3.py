"""Stores files in an S3-compatible store through the interface of `files.py`. Only this module uses obstore.

Credentials come from the sources of AWS's own tools: variables, a web identity, or the machine's role.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from firstline_core.errors import ConfigError, NotFoundError, StoreUnavailableError
from firstline_gateway.registry.files import PART_BYTES, Blob

if TYPE_CHECKING:
    from obstore.store import S3Config

_BLOBS = "blobs"
_RETRY_S = 30.0
_TRIES = 3
_PATIENCE = timedelta(seconds=30)
_CAUSE_LENGTH = 1000
# Limits of a list, which a store may send without an end; also of its empty pages, which obstore skips.
_LISTED_LIMIT = 250_000
_LIST_S = 120.0


class S3Blobs:
    """One bucket, below a prefix.

    Args:
        bucket: its name.
        prefix: of every key; "" for none.
        endpoint: of a store other than AWS's own; one without TLS has to be on a protected network.
        region: "" for what the environment says.

    Raises:
        ConfigError: the store cannot be used.
    """

    def __init__(self, bucket: str, prefix: str = "", *, endpoint: str = "", region: str = "") -> None:
        self._shown = f"s3://{bucket}/{prefix}".rstrip("/")
        config: S3Config = {}
        if endpoint:
            config["endpoint"] = endpoint
        if region:
            config["region"] = region
        try:
            self._store = S3Store(
                bucket,
                prefix=prefix or None,
                config=config,
                client_options={"allow_http": endpoint.startswith("http://")},
                retry_config={"max_retries": _TRIES, "retry_timeout": _PATIENCE},
            )
        except (BaseError, ValueError) as error:
            raise ConfigError(f"registry.blobs {self._shown} cannot be used: {_cause(error)}.") from error

    async def put(self, sha256: str, parts: AsyncIterable[bytes]) -> None:
        """See `Blobs`: where `parts` raises, obstore aborts the upload, and the store never shows it."""
        with self._translated():
            await obstore.put_async(self._store, f"{_BLOBS}/{sha256}", aiter(parts))

    async def find(self, sha256: str) -> Blob | None:
        """See `Blobs`."""
        try:
            with self._translated():
                found = await obstore.head_async(self._store, f"{_BLOBS}/{sha256}")
        except NotFoundError:
            with suppress(NotFoundError):  # the answer to HEAD has no body that would tell a missing bucket
                await self._part(sha256, 0, 1)
            return None
        return Blob(sha256, found["size"], found["last_modified"].timestamp())

    async def read(self, sha256: str, start: int, end: int) -> AsyncIterator[bytes]:
        """See `Blobs`."""
        # A request for each part: its time limit includes the body, and a device may read slowly.
        for first in range(start, end, PART_BYTES):
            yield await self._part(sha256, first, min(first + PART_BYTES, end))

    async def _part(self, sha256: str, start: int, end: int) -> bytes:
        content = bytearray()
        with self._translated():
            found = await obstore.get_async(self._store, f"{_BLOBS}/{sha256}", options={"range": (start, end)})
            async for part in found.stream(min_chunk_size=PART_BYTES):
                content += part
                if len(content) > end - start:
                    raise OSError("it sends more than was requested")
            if len(content) < end - start:
                raise OSError("it sends less than was requested")
        return bytes(content)

    async def all(self) -> list[Blob]:
        """See `Blobs`."""
        found: list[Blob] = []
        with self._translated():
            try:
                async with asyncio.timeout(_LIST_S):
                    async for some in obstore.list(self._store, _BLOBS):
                        found += [
                            Blob(one["path"].rpartition("/")[2], one["size"], one["last_modified"].timestamp())
                            for one in some
                        ]
                        if len(found) > _LISTED_LIMIT:
                            raise OSError(f"it lists more than {_LISTED_LIMIT:,} files")
            except TimeoutError:
                raise OSError(f"its list of files did not end within {_LIST_S:g} s") from None
        return found

    async def remove(self, sha256: str) -> None:
        """See `Blobs`."""
        with self._translated():
            await obstore.delete_async(self._store, f"{_BLOBS}/{sha256}")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            if isinstance(error, FileNotFoundError) and "<Code>NoSuchBucket<" not in str(error):
                raise NotFoundError(
                    f"There is no such file in {self._shown}.", public="There is no such file in the registry."
                ) from error
            raise StoreUnavailableError(
                f"The registry's store {self._shown} refuses: {_cause(error)}.",
                retry_after_s=_RETRY_S,
                public="The registry's store refuses; the gateway's log has the reason.",
            ) from error


def _cause(error: Exception) -> str:
    """Returns the cause with the store's own words, shortened to one line; obstore appends how often it tried."""
    text, *_ = str(error).partition("\n\nDebug source:")
    return " ".join(text.split())[:_CAUSE_LENGTH].rstrip(".: ") or type(error).__name__
