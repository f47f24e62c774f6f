"""A request over HTTP as `http_server` hands it on, and an answer that comes in pieces. Others are `http.Reply`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import parse_qsl

from firstline_core.protocol.http_errors import Lowered
from firstline_core.types import TraceContext

_NO_PARAMETERS: Mapping[str, str] = MappingProxyType({})


class ClientLeftError(Exception):
    """The client left before the end of its request."""


class Head(NamedTuple):
    """What the head of a request says.

    Args:
        raw: its bytes, with the empty line; b"" where they may mean something else the next time.
        body_bytes: of the body, where `raw` is known.
        method: such as POST.
        path: unquoted.
        query_string: as it was sent.
        headers: of a name that is there twice the first counts.
        keep_alive: whether the connection stays open for another.
        waits: whether the client waits for a word before it sends the body (`Expect: 100-continue`).
        trace: that the request belongs to; neither `raw` nor `headers` have it.
    """

    raw: bytes
    body_bytes: int
    method: str
    path: str
    query_string: bytes
    headers: Lowered
    keep_alive: bool
    waits: bool
    trace: TraceContext | None = None


class Request:
    """One request, and its body as it comes.

    Args:
        head: of it.
        peer: address and port of the client; None over a Unix socket.
        arrived_s: when its head came, on the monotonic clock.
        wanted: called before more of the body is waited for.

    Attributes:
        parameters: from the path, once it was found to be an address.
        size_bytes: of the part of the body that is here and was not taken.
        is_whole: whether all of the body has come.
        waits: whether the client still waits for a word before it sends the body.
    """

    __slots__ = (
        "_answered", "_chunks", "_lost", "_waiting", "_wanted", "arrived_s", "head", "is_whole", "parameters", "peer",
        "size_bytes", "waits",
    )  # fmt: skip

    def __init__(self, head: Head, peer: tuple[str, int] | None, arrived_s: float, wanted: Callable[[], None]) -> None:
        self.head = head
        self.peer = peer
        self.arrived_s = arrived_s
        self.parameters = _NO_PARAMETERS
        self.size_bytes = 0
        self.is_whole = False
        self.waits = head.waits
        self._wanted = wanted
        self._lost = self._answered = False
        self._chunks: list[bytes] = []
        self._waiting: asyncio.Future[None] | None = None

    @property
    def headers(self) -> Lowered:
        return self.head.headers

    @property
    def query(self) -> dict[str, str]:
        """What the address says after `?`, unquoted; of a name that is there twice the last counts."""
        return dict(parse_qsl(self.head.query_string.decode("latin-1"), keep_blank_values=True))

    @property
    def body(self) -> bytes | None:
        """All of the body, where it is here; else None."""
        if not self.is_whole:
            return None
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes.

        Raises:
            ClientLeftError: its end will not come.
        """
        while True:
            taken, self._chunks, self.size_bytes = self._chunks, [], 0
            for chunk in taken:
                yield chunk
            if self._chunks:
                continue
            if self.is_whole:
                return
            if self._lost:
                raise ClientLeftError
            self._wanted()
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting

    # What the connection tells.

    def feed(self, chunk: bytes) -> None:
        """More of the body came."""
        if self._answered:
            return
        self._chunks.append(chunk)
        self.size_bytes += len(chunk)
        self._wake()

    def feed_end(self) -> None:
        """All of it came."""
        self.is_whole = True
        self._wake()

    def lost(self) -> None:
        """No more of it will come."""
        self._lost = True
        self._wake()

    def forget(self) -> None:
        """It is answered: its body is held no longer."""
        self._answered = True
        self._chunks, self.size_bytes = [], 0

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Streamed:
    """An answer in pieces, sent as they come.

    Args:
        headers: beside those that say how it travels.
        pieces: closed at the end, also where the client leaves before it.
        held: closed at the end too.
    """

    def __init__(
        self, headers: Mapping[str, str], pieces: AsyncGenerator[bytes, None], held: contextlib.ExitStack
    ) -> None:
        self.headers = headers
        self.pieces = pieces
        self.held = held
