"""When glibc returns freed memory to the system: not between two queries, and at once when a model has gone.

As it is shipped, what a query frees at a heap's end goes back at 128 KiB, and the next query has to fault it in again
page by page: half a millisecond for an image of 160 pixels. Whether that happens depends on what a process freed before
(mallopt(3): the thresholds grow with the largest block that was), so that of two processes one is a fifth slower than
the other at the same work. Other C libraries keep to their own ways.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST_BYTES = 8 << 20
"""A frame of 2.7 megapixels, or of 830 pixels square as floats. Larger blocks are mapped, and go back by themselves: a
query with a raw tensor of more takes milliseconds longer, and no thread keeps dozens of megabytes for it."""
_TUNED = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def keep_freed_memory() -> None:
    """From now on each heap keeps at its end what queries free, up to 16 MiB; a thread may have a heap of its own.

    Whoever has set glibc's thresholds in the environment is left alone.
    """
    if any(name in os.environ for name in _TUNED) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        if libc.mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES):  # refused on 32 bits; the other one alone would do harm
            libc.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST_BYTES)


def release_freed_memory() -> None:
    """Returns what is free to the system, but for what `keep` has threads' heaps keep; blocks for milliseconds."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
