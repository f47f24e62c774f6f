"""Damages inputs that were valid: their bytes, and the values of JSON in them. All of it follows from one `Random`."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import orjson

# Where readers of numbers, lengths and names have their edges.
NUMBERS: Sequence[Any] = (
    *(0, -1, 1, 2, 7, 127, 128, 255, 256, 4095, 4096, 65_535, 65_536, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1),
    *(-(2**63), 2**64 - 1, 0.5, -0.5, 1e-320, 1e38, 1e39, 1e308, -1e308),
)
WORDS = (
    *("", "0", "-1", "true", "null", "NaN", "BYTES", "FP32", "UINT8", "INT64", "BOOL"),
    *("a" * 300, "\0", "\n", "é", "😀"),
    *("../x", "/etc/passwd", "auto", "edge", "cloud", "local_only", "first", "ok", "image", "probabilities"),
    "01890a5d-ac96-774b-bcce-b302099a8057",
)


def damaged(random: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """The bytes with one to four things done to them: flipped, cut, put in, repeated, overwritten, spliced."""
    found = bytearray(content)
    for _ in range(random.randint(1, 4)):
        start = random.randint(0, len(found))
        end = min(len(found), start + random.choice((1, 2, 4, 8, 40)))
        match random.randrange(7):
            case 0 if start < len(found):
                found[start] ^= 1 << random.randrange(8)
            case 1:
                del found[start:end]
            case 2:
                found[start:start] = random.randbytes(random.randint(1, 12))
            case 3:
                found[start:start] = found[start:end] * random.randint(1, 4)
            case 4:
                size = random.choice((1, 2, 4, 8))
                number = random.choice((0, 1, 127, 128, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**63))
                order: Any = random.choice(("little", "big"))
                found[start : start + size] = (number % 256**size).to_bytes(size, order)
            case 5:
                other = random.choice(others)
                cut = random.randint(0, len(other))
                found[start:] = other[cut:]
            case _:
                del found[start:]
    return bytes(found)


def altered(random: Random, text: bytes) -> bytes:
    """JSON with one to three of its values taken away, moved, doubled or become something else."""
    found = orjson.loads(text)
    for _ in range(random.randint(1, 3)):
        holder, key = _place(random, found)
        if holder is None:
            return orjson.dumps(value(random))
        match random.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[random.choice(WORDS)] = holder[key]
            case 2 if isinstance(holder, list):
                holder += holder[key : key + 1] * random.randint(1, 3)
            case 3:
                holder[key] = [holder[key]]
            case _:
                holder[key] = value(random)
    try:
        return orjson.dumps(found)
    except TypeError:  # nested deeper than orjson writes
        return b"[" * 2000


def value(random: Random, depth: int = 0) -> Any:
    """Any JSON value, the awkward ones first."""
    match random.randrange(8 if depth < 3 else 5):
        case 0:
            return None
        case 1:
            return random.random() < 0.5
        case 2 | 3:
            return random.choice(NUMBERS)
        case 4:
            return random.choice(WORDS)
        case 5:
            return [value(random, depth + 1) for _ in range(random.randint(0, 4))]
        case 6:
            return {random.choice(WORDS): value(random, depth + 1) for _ in range(random.randint(0, 4))}
        case _:
            return [[random.choice(NUMBERS)] * random.randint(0, 4)] * random.randint(0, 4)


def _place(random: Random, found: Any) -> tuple[Any, Any]:
    """A way down from the root, ended at random: the holder and the key of what is there."""
    holder, key = None, None
    while isinstance(found, dict | list) and found:
        holder = found
        key = random.choice(list(found)) if isinstance(found, dict) else random.randrange(len(found))
        found = found[key]
        if random.random() < 0.3:
            break
    return holder, key
