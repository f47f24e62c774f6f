"""From the bytes of a connection to requests, within bounds: httptools parses, and heads that repeat are known."""

from __future__ import annotations

from typing import Protocol
from urllib.parse import unquote

import httptools

from firstline_core.protocol.http_bounds import HEAD_LIMIT_BYTES
from firstline_core.protocol.http_errors import Lowered
from firstline_core.protocol.http_request import Head
from firstline_core.protocol.http_upgrade import AfterHead, feed, framing
from firstline_core.protocol.repeated_head import TRACED_BYTES, repeatable, untraced
from firstline_core.telemetry.trace import from_lines, with_tracestate
from firstline_core.types import TRACEPARENT, TRACESTATE

# Larger bodies do not come in one piece with their head.
_KNOWN_BODY_BYTES = 65_536


class NoRequestError(Exception):
    """What came is no request that this server reads.

    Args:
        status: that says so.
        sentence: that says why.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class Reader(Protocol):
    """Who is told of requests, each with its body before the next."""

    def begun(self, head: Head) -> None:
        """A head is whole.

        Raises:
            NoRequestError: there are too many.
        """
        ...

    def came(self, chunk: bytes) -> None:
        """More of its body is here."""
        ...

    def ended(self) -> None:
        """All of it is here."""
        ...


class RequestParser:
    """The parser of one connection.

    Args:
        reader: told of what is found.

    Attributes:
        in_message: whether a request has begun and not ended.
        ended_whole: whether what came last ended with a request.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._parser = httptools.HttpRequestParser(self)
        self.in_message = self.ended_whole = False
        self._in_head = False
        self._url = b""
        self._lines: list[tuple[bytes, bytes]] = []
        self._read_bytes = 0  # since the last body, by packets: also what the parser has not made a header of yet
        self._head_bytes = 0  # of head and trailer, by fields: not the body that came in the same packet
        self._first = b""  # what the message is the first of; b"" where it began elsewhere
        self._known: Head | None = None

    def feed(self, data: bytes) -> None:
        """Reads what came.

        Raises:
            NoRequestError: it is no HTTP/1.1, or too much; nothing more may be fed.
        """
        self.ended_whole = False
        if self._is_known(data):
            return
        self._first = b"" if self.in_message else data
        self._read_bytes += len(data)
        try:
            feed(self._parser, data, self._go_on)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, NoRequestError):  # raised below, by a callback
                raise error.__context__ from None
            said = "This is no valid HTTP/1.1 request; check its request line, headers and chunks."
            raise NoRequestError(400, said) from error
        finally:
            self._first = b""
        if self._read_bytes > HEAD_LIMIT_BYTES:
            raise self._too_large()

    def _go_on(self) -> tuple[httptools.HttpRequestParser, bytes]:
        rest = framing(self._lines, keep_alive=self._parser.should_keep_alive())
        self._parser = httptools.HttpRequestParser(AfterHead(self))
        return self._parser, rest

    def _is_known(self, data: bytes) -> bool:
        """Takes a request whose head came before and whose body came with it: nothing is left to parse."""
        head = self._known
        if head is None or self.in_message:
            return False
        end = len(data) - head.body_bytes
        if end == len(head.raw):
            if not data.startswith(head.raw):
                return False
        else:
            found = untraced(data, end) if end == len(head.raw) + TRACED_BYTES else None
            if found is None or found[0] != head.raw:
                return False
            trace = found[1]
            if TRACESTATE in head.headers:
                trace = with_tracestate(trace, head.headers[TRACESTATE])
            head = head._replace(trace=trace)
        self._reader.begun(head)
        self._reader.came(data[end:])
        self.ended_whole = True
        self._reader.ended()
        return True

    def _count(self, size_bytes: int) -> None:
        self._head_bytes += size_bytes
        if self._head_bytes > HEAD_LIMIT_BYTES:
            raise self._too_large()

    def _too_large(self) -> NoRequestError:
        part = "request line and headers are" if self._in_head else "chunk's extension or the trailer is"
        return NoRequestError(431, f"The {part} larger than {HEAD_LIMIT_BYTES} bytes; send fewer.")

    # What httptools calls.

    def on_message_begin(self) -> None:
        self._in_head = self.in_message = True
        self.ended_whole = False
        self._read_bytes = self._head_bytes = 0
        self._url, self._lines = b"", []

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        self._lines.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        head = self._head()
        if head.raw:
            self._known = head if head.trace is None else head._replace(trace=None)
        self._first = b""  # another message in the same packet does not begin where that does
        self._reader.begun(head)

    def on_body(self, body: bytes) -> None:
        self._read_bytes = 0
        self._reader.came(body)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return  # its body comes yet, see `http_upgrade`
        self.in_message = False
        self.ended_whole = True
        self._reader.ended()

    def _head(self) -> Head:
        parser, url = self._parser, httptools.parse_url(self._url)
        is_1_1 = parser.get_http_version() == "1.1"
        headers = Lowered((name.decode("latin-1"), value.decode("latin-1")) for name, value in reversed(self._lines))
        trace = from_lines(self._lines) if headers.pop(TRACEPARENT, None) is not None else None
        keep_alive = is_1_1 and parser.should_keep_alive()
        raw, body_bytes = repeatable(self._first, self._lines, _KNOWN_BODY_BYTES) if keep_alive else (b"", 0)
        return Head(
            raw,
            body_bytes,
            parser.get_method().decode("ascii"),
            unquote((url.path or b"/").decode("ascii")),
            url.query or b"",
            headers,
            keep_alive,
            is_1_1 and headers.get("expect", "").lower() == "100-continue",
            trace,
        )
