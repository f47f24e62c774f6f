"""Low scheduling priorities, for work next to live traffic."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_NICENESS = 19
_THREAD_NICENESS = 10


def use_lowest_priority() -> None:
    """Sets the lowest priority of the system for this process and its future children.

    Niceness alone still takes time slices of milliseconds from a busy server; Linux's SCHED_IDLE takes none (sched(7)).
    In containers that forbid it, only the niceness applies.
    """
    os.nice(_NICENESS)
    with suppress(AttributeError, OSError):  # no Linux, or forbidden
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def use_low_priority_in_thread() -> None:
    """Lowers the priority of the calling thread, which Linux schedules like a process (sched(7)).

    On a busy core, each other thread of the process gets about ten times as much time. The value is relative, because a
    fixed one would starve this thread in a process of raised priority.
    """
    with suppress(AttributeError, OSError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _THREAD_NICENESS)
