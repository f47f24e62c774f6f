"""Memory that only the garbage collector would free."""

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def growth_below(limit_bytes: int) -> Iterator[None]:
    """Checks that a block leaves fewer bytes in memory than this, without the garbage collector."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
        left_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert left_bytes < limit_bytes
