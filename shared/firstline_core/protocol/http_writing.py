"""Answers as the bytes of HTTP/1.1. Pure functions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus

from firstline_core.protocol.http import Reply

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_PIECE = b"0\r\n\r\n"

# An answer up to this is worth a copy, to be one packet with its head.
_COPIED_BYTES = 16_384
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_NO_CONTENT = 204
_CLOSE, _CHUNKED = b"connection: close\r\n", b"transfer-encoding: chunked\r\n"
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def reply_packets(reply: Reply, *, head_only: bool, keep_alive: bool) -> tuple[bytes, ...]:
    """An answer as what is written of it at a time.

    Args:
        reply: status, headers beside those of the connection, and body.
        head_only: for the method HEAD.
        keep_alive: whether the connection stays open after it.
    """
    body = reply.body
    length = b"" if reply.status == _NO_CONTENT else b"content-length: %d\r\n" % len(body)
    head = b"%b%b%b%b%b\r\n" % (
        _STATUS_LINES[reply.status],
        _date_line(int(time.time())),
        _lines(*reply.headers.items()),
        length,
        b"" if keep_alive else _CLOSE,
    )
    if head_only:
        return (head,)
    return (head + body,) if len(body) <= _COPIED_BYTES else (head, body)


def stream_head(headers: Mapping[str, str], *, keep_alive: bool) -> bytes:
    """The head of an answer in pieces: chunks, or bytes that end with the connection."""
    travels = _CHUNKED if keep_alive else _CLOSE
    return b"%b%b%b%b\r\n" % (_STATUS_LINES[200], _date_line(int(time.time())), _lines(*headers.items()), travels)


def chunk(piece: bytes) -> bytes:
    """One piece, not empty, of an answer in chunks."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


@lru_cache(256)
def _lines(*headers: tuple[str, str]) -> bytes:
    return "".join([f"{name}: {value}\r\n" for name, value in headers]).encode("latin-1")


@lru_cache(1)
def _date_line(now_s: int) -> bytes:
    """RFC 9110, section 5.6.7, whatever the locale."""
    now = time.gmtime(now_s)
    day = f"{_DAYS[now.tm_wday]}, {now.tm_mday:02} {_MONTHS[now.tm_mon - 1]} {now.tm_year:04}"
    return f"date: {day} {now.tm_hour:02}:{now.tm_min:02}:{now.tm_sec:02} GMT\r\n".encode()
