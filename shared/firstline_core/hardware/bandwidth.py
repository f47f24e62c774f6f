"""How fast main memory is, by what it does: arrays larger than the last cache, copied and added up."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from firstline_core.hardware.catalogue import Bandwidth

_LEAST_BYTES, _MOST_BYTES = 32 << 20, 256 << 20
_CACHES = 4  # so many times the last cache, as STREAM asks for
_REPEATS = 7
_LIMIT_S = 3.0
_ARRAYS = 3
_PART = 8  # of the memory that is left, at most this part is taken


def buffer_bytes(last_cache_bytes: int | None, available_bytes: float) -> int:
    """How large each array is: too large for the cache, and small beside the memory that is left.

    Args:
        last_cache_bytes: None where nobody says.
        available_bytes: of memory.
    """
    wanted = min(max(_CACHES * (last_cache_bytes or 0), _LEAST_BYTES), _MOST_BYTES)
    return max(1 << 20, min(wanted, int(available_bytes) // (_PART * _ARRAYS)))


def bandwidth(size_bytes: int, now_s: Callable[[], float] = time.perf_counter) -> Bandwidth:
    """Measures it on one core, for a few seconds at most.

    The copy reads one array and writes one: 2 times the size. The triad a = b + 3 c is two passes of numpy's, which
    together read three arrays and write two. As STREAM (McCalpin 1995), this counts no reads that a write causes, and
    takes the quickest repeat: the others say what else the machine did.

    Args:
        size_bytes: of each of three arrays.
        now_s: a clock.
    """
    a, b, c = (np.ones(size_bytes // 8) for _ in range(_ARRAYS))

    def triad() -> None:
        np.multiply(c, 3.0, out=a)
        np.add(a, b, out=a)

    copies = _timed(lambda: np.copyto(a, b), now_s)
    triads = _timed(triad, now_s)
    return Bandwidth(
        2 * a.nbytes / min(copies),
        5 * a.nbytes / min(triads),
        a.nbytes,
        min(len(copies), len(triads)),
    )


def _timed(call: Callable[[], None], now_s: Callable[[], float]) -> list[float]:
    """Seconds of each repeat after a first one that is not counted: it touches the pages."""
    call()
    began_s = now_s()
    found: list[float] = []
    while not found or (len(found) < _REPEATS and now_s() - began_s < _LIMIT_S / 2):
        at_s = now_s()
        call()
        found.append(max(now_s() - at_s, 1e-9))
    return found
