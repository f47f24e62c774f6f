"""Request ids: UUIDv7."""

from __future__ import annotations

import os
import time

# Random bytes are read for this many ids at once: a system call per id would double its cost.
_DRAWN = 256
# Each id has 18 random hexadecimal digits, and 2 random bits in the digit of the UUID variant.
_DIGITS = 20
_VARIANT = {f"{digit:x}": "89ab"[digit & 3] for digit in range(16)}

_noise: list[str] = []


def new_request_id() -> str:
    """Returns an unguessable, time-ordered id (RFC 9562, section 5.7).

    The 74 bits after the time come from the system's secure source. Libraries that use them as a counter make ids of
    the same millisecond guessable, and an id is part of the access control of an answer.
    """
    try:
        noise = _noise.pop()
    except IndexError:
        noise = _draw()
    time_ms = f"{time.time_ns() // 1_000_000:012x}"
    return f"{time_ms[:8]}-{time_ms[8:]}-7{noise[:3]}-{_VARIANT[noise[3]]}{noise[4:7]}-{noise[7:19]}"


def _draw() -> str:
    drawn = os.urandom(_DIGITS // 2 * _DRAWN).hex()
    _noise.extend([drawn[start : start + _DIGITS] for start in range(_DIGITS, len(drawn), _DIGITS)])
    return drawn[:_DIGITS]


# Two processes must not mint the same ids. Windows cannot fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_noise.clear)
