"""Reads the signed metadata through a short-lived process that verifies it; see `verifier`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from firstline_core.errors import CapacityError, FirstlineError
from firstline_core.storage.artefact import SignedFile
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.updates.verifier import Failure, Fetch, Listed, Look, More, Part, hear, say

log = logger(__name__)

_LIMIT_S = 120.0  # from a word until the next: a slow device imports and verifies for seconds
_COMMAND = (sys.executable, "-m", "firstline_edge.fleet.updates.verifier")
_OWN = "FIRSTLINE_"


class Source(Protocol):
    """As `trust.MetadataSource`, which this process does not import."""

    def fetch(self, name: str) -> Iterator[bytes]:
        """A file's bytes, in parts as they come."""
        ...


def verified(
    folder: Path,
    source: Source,
    *,
    anchor: bytes,
    now_s: float,
    limit_s: float = _LIMIT_S,
    command: tuple[str, ...] = _COMMAND,
) -> dict[str, SignedFile]:
    """Returns the signed files by path; blocks.

    Args:
        folder: where verified metadata is kept, for this alone.
        source: where metadata comes from.
        anchor: the root metadata that the device was given.
        now_s: the time to judge expiry by (wall time, seconds).
        limit_s: how long the process may take from word to word before it is ended.
        command: that starts it.

    Raises:
        FirstlineError: as `Trust.refresh`, and what else the source raises.
        CapacityError: the process did not last: it was killed, or hung.
    """
    with _started(command) as child:
        asked = _Child(child, limit_s)
        word = asked.answer(Look(str(folder), anchor, now_s))
        parts: Iterator[bytes] = iter(())
        while not isinstance(word, Listed | Failure):
            if isinstance(word, Fetch):
                parts = source.fetch(word.name)
            word = asked.answer(_next(parts))
    if isinstance(word, Failure):
        raise word.error()
    return {found.path: found for found in word.files}


def _next(parts: Iterator[bytes]) -> Part | Failure:
    try:
        return Part(next((part for part in parts if part), b""))  # an empty one would be the end
    except FirstlineError as error:
        return Failure.of(error)


class _Child:
    """What is said to the process, and heard of it, within a time."""

    def __init__(self, process: subprocess.Popen[bytes], limit_s: float) -> None:
        self._process = process
        self._limit_s = limit_s

    def answer(self, word: Struct) -> Fetch | More | Listed | Failure:
        """Sends a message and returns the answer."""
        process, late = self._process, threading.Event()
        assert process.stdin is not None and process.stdout is not None  # noqa: S101 (they are pipes)

        def end() -> None:
            late.set()
            process.kill()

        watch = threading.Timer(self._limit_s, end)
        watch.daemon = True
        watch.start()
        try:
            say(process.stdin, word)
            found: Fetch | More | Listed | Failure | None = hear(process.stdout, Fetch | More | Listed | Failure)
        except BrokenPipeError:
            found = None
        finally:
            watch.cancel()
        if found is None:
            how = self._ended(late.is_set())
            raise CapacityError(f"The registry's metadata is not verified yet: the process that does it {how}.")
        return found

    def _ended(self, late: bool) -> str:
        if late:
            return f"said nothing for {self._limit_s:g} s"
        code = self._process.wait()
        if code >= 0:
            return f"ended with exit code {code}"
        return f"was killed by {signal.Signals(-code).name}; is there too little memory?"


@contextmanager
def _started(command: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the process, which ends with the block; it gets no settings or secrets of this one."""
    told = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
    process = subprocess.Popen(  # noqa: S603 (this Python)
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=told | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    log.debug("the verifying process ended before it heard all")
