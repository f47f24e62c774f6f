"""Controls when glibc returns freed memory to the system: not between two queries, but at once after a model was freed.

By default glibc returns memory at the end of a heap from 128 KiB on, and the next query faults it in again page by
page: half a millisecond for an image of 160 pixels. This depends on earlier allocations (mallopt(3): the thresholds
grow with the largest freed block), so that one process can be a fifth slower than another one at the same work. Other C
libraries are not affected.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST_BYTES = 16 << 20
"""A frame of 5.6 megapixels, or of 1,180 x 1,180 pixels as floats, or what orjson takes to parse 1.3 MB: 12 bytes for
each byte of JSON. Larger blocks are mapped and returned when freed: a query with a larger tensor takes milliseconds
longer, but no thread keeps many dozens of megabytes.
"""
_TUNED = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def keep_freed_memory() -> None:
    """Makes each heap keep up to 32 MiB of freed memory at its end; a thread may have its own heap.

    Thresholds that are set in the environment are not changed.
    """
    if any(name in os.environ for name in _TUNED) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        if libc.mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES):  # refused on 32 bits; the other threshold alone would do harm
            libc.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST_BYTES)


def release_freed_memory() -> None:
    """Returns free memory to the system, except what `keep_freed_memory` keeps; blocks for milliseconds."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
