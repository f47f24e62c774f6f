"""For a process that measures beside live traffic: it runs when nobody else wants to."""

from __future__ import annotations

import os
from contextlib import suppress

_NICENESS = 19


def use_lowest_priority() -> None:
    """Gives this process, and what it will start, the lowest priority that the system has.

    Niceness alone still takes turns of milliseconds from a busy server; Linux's SCHED_IDLE takes none (sched(7)).
    Containers that forbid it leave the niceness.
    """
    os.nice(_NICENESS)
    with suppress(AttributeError, OSError):  # no Linux, or forbidden
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
