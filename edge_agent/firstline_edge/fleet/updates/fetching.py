"""Downloads one file by its sha256 over an unreliable connection; resumes after an interruption."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from firstline_core.clock import Clock
from firstline_core.errors import LinkDownError, ProtocolError
from firstline_core.storage.artefact import SignedFile
from firstline_edge.fleet.updates.ports import ByteSource


class Pace:
    """So many bytes a second on average, so that a download leaves the line to requests.

    Args:
        bytes_per_s: 0 for as fast as it comes.
    """

    def __init__(self, bytes_per_s: float, clock: Clock) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._free_s = 0.0

    async def took(self, size_bytes: int) -> None:
        """Waits until so much more may come."""
        if self._bytes_per_s:
            now_s = self._clock.monotonic_s()
            self._free_s = max(self._free_s, now_s) + size_bytes / self._bytes_per_s
            await self._clock.sleep(self._free_s - now_s)


async def fetch(source: ByteSource, file: SignedFile, path: Path, pace: Pace, came: Callable[[int], None]) -> None:
    """Downloads a file to its full size; the caller verifies its content.

    Args:
        source: where it comes from.
        file: the expected file.
        path: the file on disk; bytes that it has are not downloaded again.
        pace: how fast.
        came: receives the number of bytes of each part.

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
        async for part in source.read(file.sha256, have_bytes, file.size_bytes):
            have_bytes += len(part)
            if have_bytes > file.size_bytes:
                stream.truncate(0)
                raise ProtocolError(f"{file.path} goes on after its {file.size_bytes} bytes; is this the registry?")
            stream.write(part)
            stream.flush()
            came(len(part))
            await pace.took(len(part))
    if have_bytes < file.size_bytes:
        raise LinkDownError(f"{file.path} ended after {have_bytes} of {file.size_bytes} bytes.")
