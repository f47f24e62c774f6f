"""Verifies signed metadata in a separate, short-lived process, and defines the messages between the two processes.

    python -m firstline_edge.fleet.updates.verifier       started by `verifying`, never by hand

python-tuf and what it rests on would stay in an agent for good once they were imported, for a look a month. This
process has neither a network nor a credential: it asks for each file by its name, a part at a time, and keeps what it
verified in the folder that it was told. Words go over stdin and stdout, each as its length and MessagePack.
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
"""Of one word: more than what lists all targets that are read."""
_LENGTH_BYTES = 4
_W = TypeVar("_W")


class Look(Struct, frozen=True, tag=True):
    """To the child, first: where it keeps metadata, whom to believe to begin with, and what time it is."""

    folder: str
    anchor: bytes
    now_s: float


class Part(Struct, frozen=True, tag=True):
    """To the child: the next of a file's bytes; none at its end."""

    content: bytes


class Failure(Struct, frozen=True, tag=True):
    """In either direction: an error by its code."""

    code: str
    message: str
    retry_after_s: float | None = None

    @staticmethod
    def of(error: FirstlineError) -> Failure:
        """The word for an error."""
        return Failure(error.code, error.message, error.retry_after_s)

    def error(self) -> FirstlineError:
        """The same error."""
        return BY_CODE.get(self.code, FirstlineError)(self.message, retry_after_s=self.retry_after_s)


class Fetch(Struct, frozen=True, tag=True):
    """From the child: it wants a file from its beginning; the one before is not wanted any more."""

    name: str


class More(Struct, frozen=True, tag=True):
    """From the child: it wants the file's next part."""


class Listed(Struct, frozen=True, tag=True):
    """From the child, last: all that is signed now."""

    files: list[SignedFile]


def say(stream: IO[bytes], word: Struct) -> None:
    """Writes one word."""
    content = msgspec.msgpack.encode(word)
    stream.write(len(content).to_bytes(_LENGTH_BYTES, "big") + content)
    stream.flush()


def hear(stream: IO[bytes], kinds: type[_W] | Any) -> _W | None:
    """The next word; None where there is no more.

    Args:
        stream: to read from.
        kinds: which words it may be.

    Raises:
        ProtocolError: the message is unknown or too long.
    """
    size_bytes = int.from_bytes(head := stream.read(_LENGTH_BYTES), "big")
    if size_bytes > LIMIT_BYTES:
        raise ProtocolError(f"A word of {size_bytes} bytes is not read; at most {LIMIT_BYTES} are.")
    content = stream.read(size_bytes)
    if len(head) < _LENGTH_BYTES or len(content) < size_bytes:
        return None
    try:
        word: _W = msgspec.msgpack.decode(content, type=kinds)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"A word is not understood: {error}.") from error
    return word


class _Asked:
    """A `MetadataSource` that asks the parent process."""

    def __init__(self, heard: IO[bytes], said: IO[bytes]) -> None:
        self._heard = heard
        self._said = said

    def fetch(self, name: str) -> Iterator[bytes]:
        """See `MetadataSource`."""
        wanted: Struct = Fetch(name)
        while content := self._asked(wanted):
            yield content
            wanted = More()

    def _asked(self, wanted: Struct) -> bytes:
        say(self._said, wanted)
        word: Part | Failure | None = hear(self._heard, Part | Failure)
        if word is None:
            raise SystemExit(1)  # nobody waits for this look any more
        if isinstance(word, Failure):
            raise word.error()
        return word.content


def main() -> int:
    """One look; 0 once it was told how it ended."""
    heard, said = sys.stdin.buffer, sys.stdout.buffer
    look: Look | None = hear(heard, Look)
    if look is None:
        return 1
    from firstline_core.bundle.trust import Trust

    now_s = look.now_s
    trust = Trust(Path(look.folder), _Asked(heard, said), anchor=look.anchor, now_s=lambda: now_s)
    try:
        word: Listed | Failure = Listed(list(trust.refresh().values()))
    except FirstlineError as error:
        word = Failure.of(error)
    say(said, word)
    return 0


if __name__ == "__main__":
    sys.exit(main())
