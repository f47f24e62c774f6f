"""The memory of this process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_STATM = Path("/proc/self/statm")


def own_bytes() -> int:
    """Resident, and of no file that could be read again; 0 where the system does not say (proc_pid_statm(5))."""
    with suppress(OSError, ValueError, IndexError):
        _, resident, shared = (int(pages) for pages in _STATM.read_text().split()[:3])
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return 0
