"""What queries free stays for the next ones; what a model frees goes back when that is asked for."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_FAULTS = """
import json, resource, sys
from firstline_core import heap

if sys.argv[1] == "keep":
    heap.keep()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
held = bytearray(64)
bytearray(4 << 20)
before = faults()
for _ in range(100):
    bytearray(b"x") * (4 << 20)
queries = faults() - before
blocks = [bytearray(b"x") * 100_000 for _ in range(600)]
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
full = resident()
del blocks
heap.give_back()
print(json.dumps([queries, full - resident()]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux with glibc")
def test_a_query_need_not_fault_in_what_the_one_before_freed() -> None:
    def faults(how: str) -> list[int]:
        command = [sys.executable, "-c", _FAULTS, how]
        environment = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        found: list[int] = json.loads(done.stdout)
        return found

    (kept, returned), (given_back, _) = faults("keep"), faults("")
    assert given_back > 50_000, "as it is shipped it faults in a thousand pages each time"
    assert kept < given_back / 20
    assert returned > 40_000_000
