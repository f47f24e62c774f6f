"""Range requests (RFC 9110, section 14) and conditional requests (section 13)."""

from __future__ import annotations

import re
from typing import NamedTuple

# One range only: a request for several gets the whole file, as the RFC allows.
_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))", re.ASCII)


class Part(NamedTuple):
    """The bytes from `start` to before `end`."""

    start: int
    end: int


def part_of(size_bytes: int, asked: str | None, if_range: str | None, etag: str) -> Part | None:
    """Returns the part of a file that a request asks for.

    Args:
        size_bytes: of the file.
        asked: the header Range.
        if_range: the header If-Range; for another ETag, or a date, the whole file is sent.
        etag: of the file, strong.

    Returns:
        The part; None if the whole file is to be sent with status 200.

    Raises:
        ValueError: the file has no such bytes; the status is 416.
    """
    if asked is None or (if_range is not None and if_range.strip() != etag):
        return None
    found = _RANGE.fullmatch(asked.strip().lower().replace(" ", ""))
    if found is None:
        return None
    first, last, suffix = found.groups()
    if suffix is not None:
        start, end = max(0, size_bytes - int(suffix)), size_bytes
    else:
        start, end = int(first), min(int(last) + 1, size_bytes) if last else size_bytes
        if last and int(last) < start:
            return None  # an invalid range is ignored
    if start >= end:
        raise ValueError(f"bytes={start}- begins after the end of the file")
    return Part(start, end)


def has_already(if_none_match: str | None, etag: str) -> bool:
    """Returns whether the client has the current version."""
    if if_none_match is None:
        return False
    known = {one.strip().removeprefix("W/") for one in if_none_match.split(",")}
    return etag in known or "*" in known
