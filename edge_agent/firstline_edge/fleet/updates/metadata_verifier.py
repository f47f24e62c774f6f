"""A short-lived process that verifies the signed metadata with python-tuf, and the messages between it and the agent.

    python -m firstline_edge.fleet.updates.metadata_verifier    started by `registry`, never by hand

An agent that imported python-tuf would keep its megabytes for good, although it verifies metadata once a month. This
process checks metadata only; `installation.py` checks the hashes of a bundle's files. It has neither a network nor a
credential: it requests each file by its name, a part at a time, and stores what it verified in the given folder.
Messages go over stdin and stdout, each as its length and MessagePack.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
from msgspec import Struct

from firstline_core.errors import BY_CODE, FirstlineError, ProtocolError
from firstline_core.storage.artefact import SignedFile

LIMIT_BYTES = 64 * 1024 * 1024
"""Size limit of a message: more than the largest list of targets."""
_LENGTH_BYTES = 4
_M = TypeVar("_M")


class Request(Struct, frozen=True, tag=True):
    """To the process, first: the folder for verified metadata, the trusted root, and the time (wall, seconds)."""

    folder: str
    anchor: bytes
    now_s: float


class Part(Struct, frozen=True, tag=True):
    """To the process: the next bytes of a file; none at its end."""

    content: bytes


class Failure(Struct, frozen=True, tag=True):
    """In either direction: an error by its code."""

    code: str
    message: str
    retry_after_s: float | None = None

    @staticmethod
    def of(error: FirstlineError) -> Failure:
        """Returns the message for an error."""
        return Failure(error.code, error.message, error.retry_after_s)

    def error(self) -> FirstlineError:
        """Returns the error of this message."""
        return BY_CODE.get(self.code, FirstlineError)(self.message, retry_after_s=self.retry_after_s)


class Fetch(Struct, frozen=True, tag=True):
    """From the process: requests a file from the start; the previous file is abandoned."""

    name: str


class More(Struct, frozen=True, tag=True):
    """From the process: requests the next part of the file."""


class Listed(Struct, frozen=True, tag=True):
    """From the process, last: all signed files."""

    files: list[SignedFile]


def send(stream: IO[bytes], message: Struct) -> None:
    """Writes one message."""
    content = msgspec.msgpack.encode(message)
    stream.write(len(content).to_bytes(_LENGTH_BYTES, "big") + content)
    stream.flush()


def receive(stream: IO[bytes], kinds: type[_M] | Any) -> _M | None:
    """Returns the next message; None at the end of the stream.

    Args:
        stream: to read from.
        kinds: the expected messages.

    Raises:
        ProtocolError: the message is unknown or too long.
    """
    size_bytes = int.from_bytes(head := stream.read(_LENGTH_BYTES), "big")
    if size_bytes > LIMIT_BYTES:
        raise ProtocolError(f"A message of {size_bytes} bytes is not read; the limit is {LIMIT_BYTES}.")
    content = stream.read(size_bytes)
    if len(head) < _LENGTH_BYTES or len(content) < size_bytes:
        return None
    try:
        message: _M = msgspec.msgpack.decode(content, type=kinds)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"A message is not understood: {error}.") from error
    return message


class _ParentSource:
    """A `MetadataSource` that requests files from the parent process."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def fetch(self, name: str) -> Iterator[bytes]:
        """See `MetadataSource`."""
        request: Struct = Fetch(name)
        while content := self._part(request):
            yield content
            request = More()

    def _part(self, request: Struct) -> bytes:
        send(self._outgoing, request)
        message: Part | Failure | None = receive(self._incoming, Part | Failure)
        if message is None:
            raise SystemExit(1)  # the parent has ended
        if isinstance(message, Failure):
            raise message.error()
        return message.content


def main() -> int:
    """Verifies once; returns 0 after the result was sent."""
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    request: Request | None = receive(incoming, Request)
    if request is None:
        return 1
    from firstline_core.bundle.trust import Trust

    now_s = request.now_s
    source = _ParentSource(incoming, outgoing)
    trust = Trust(Path(request.folder), source, anchor=request.anchor, now_s=lambda: now_s)
    try:
        result: Listed | Failure = Listed(list(trust.refresh().values()))
    except FirstlineError as error:
        result = Failure.of(error)
    send(outgoing, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
