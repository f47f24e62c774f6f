"""Request ids: UUIDv7, minted here and nowhere else."""

from __future__ import annotations

import secrets
import time
from uuid import UUID


def new_request_id() -> str:
    """An unguessable, time-ordered id (RFC 9562, section 5.7).

    The 74 bits that are not time come from the system's secure source: libraries that use them as a counter
    leave ids of the same millisecond guessable, and an id is half of what guards an answer.
    """
    milliseconds = time.time_ns() // 1_000_000
    noise = secrets.randbits(74)
    value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | (noise >> 62) << 64
    value |= 0b10 << 62 | (noise & 0x3FFF_FFFF_FFFF_FFFF)
    return str(UUID(int=value))
