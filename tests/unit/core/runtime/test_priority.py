"""Processes and threads that give way to others."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from firstline_core.runtime.priority import use_low_priority_in_thread

_SAYS = """
import os
from firstline_core.runtime.priority import use_lowest_priority
if {forbidden}:
    def refuse(*_): raise PermissionError
    os.sched_setscheduler = refuse
use_lowest_priority()
print(os.nice(0), os.sched_getscheduler(0) == os.SCHED_IDLE)
"""


@pytest.mark.parametrize(("forbidden", "expected"), [(False, "19 True"), (True, "19 False")])
def test_the_priority_is_the_lowest_that_is_allowed(forbidden: bool, expected: str) -> None:
    script = _SAYS.format(forbidden=forbidden)
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == expected


def test_a_thread_gives_way_to_those_of_its_own_process() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    with ThreadPoolExecutor(1, initializer=use_low_priority_in_thread) as threads:
        found = threads.submit(niceness).result()
    assert found == min(19, niceness() + 10)
