"""Requests that ask for another protocol, as Java's client does for HTTP/2: they are answered in this one.

llhttp ends at such a head, before its body, which would be lost, or taken for the next request. So another parser is
told how long that body is, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import httptools

_FRAMING = (b"content-length", b"transfer-encoding")


class Callbacks(Protocol):
    """Who is told what httptools finds.

    Where the parser should upgrade, `on_message_complete` comes too early, to be passed over.
    """

    def on_message_begin(self) -> None: ...
    def on_url(self, url: bytes) -> None: ...
    def on_header(self, name: bytes, value: bytes) -> None: ...
    def on_headers_complete(self) -> None: ...
    def on_body(self, body: bytes) -> None: ...
    def on_message_complete(self) -> None: ...


def feed(
    parser: httptools.HttpRequestParser, data: bytes, go_on: Callable[[], tuple[httptools.HttpRequestParser, bytes]]
) -> None:
    """Parses what came, whichever protocols it asks for.

    Args:
        parser: the present one.
        data: as it came.
        go_on: puts a parser for `AfterHead` in its place, and says what that is fed first, see `framing`.

    Raises:
        httptools.HttpParserError: it is no HTTP/1.1, or a callback refused it.
    """
    left: bytes | memoryview = data
    while True:
        try:
            parser.feed_data(left)
        except httptools.HttpParserUpgrade as upgrade:
            left = memoryview(left)[upgrade.args[0] :]
            parser, head = go_on()
            parser.feed_data(head)
        else:
            return


def framing(lines: Iterable[tuple[bytes, bytes]], *, keep_alive: bool) -> bytes:
    """A head that says how the body of another is to be read, and nothing else.

    Args:
        lines: of that, by lowered names.
        keep_alive: whether the connection stays open after it.
    """
    kept = [b"%b: %b\r\n" % line for line in lines if line[0] in _FRAMING]
    return b"POST / HTTP/1.1\r\n%b%b\r\n" % (b"" if keep_alive else b"Connection: close\r\n", b"".join(kept))


class AfterHead:
    """Hears a parser that is fed a `framing` first, which is kept from who has had that head already.

    Args:
        callbacks: told all that comes after it.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._is_after = False
        self.on_body = callbacks.on_body
        self.on_message_complete = callbacks.on_message_complete

    def on_message_begin(self) -> None:
        if self._is_after:
            self._callbacks.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._is_after:
            self._callbacks.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_after:
            self._callbacks.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_after:
            self._callbacks.on_headers_complete()
        self._is_after = True
