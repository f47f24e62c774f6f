"""When glibc returns freed memory to the system: not between two queries, and at once when a model has gone.

As it is shipped, what a query frees at the heap's end goes back at 128 KiB, and the next query has to fault it in again
page by page: half a millisecond for an image of 224 pixels. Whether that happens depends on what a process freed before
(mallopt(3): the thresholds grow with the largest block that was), so that of two processes one is a fifth slower than
the other at the same work. Other C libraries keep to their own ways.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST_BYTES = 16 << 20
"""A frame of 5 megapixels, or of 1.4 as floats; larger blocks are mapped, and go back by themselves."""


def keep() -> None:
    """From now on what queries free is kept for the next ones, up to twice the largest block."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST_BYTES)


def give_back() -> None:
    """Returns all that is free to the system; blocks for milliseconds."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
