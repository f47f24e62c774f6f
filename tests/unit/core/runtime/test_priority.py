"""A process that gives way has the lowest priority there is."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SAYS = """
import os
from firstline_core.runtime.priority import use_lowest_priority
if {forbidden}:
    def refuse(*_): raise PermissionError
    os.sched_setscheduler = refuse
use_lowest_priority()
print(os.nice(0), os.sched_getscheduler(0) == os.SCHED_IDLE)
"""


@pytest.mark.parametrize(("forbidden", "said"), [(False, "19 True"), (True, "19 False")])
def test_the_priority_is_the_lowest_that_is_allowed(forbidden: bool, said: str) -> None:
    script = _SAYS.format(forbidden=forbidden)
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == said
