"""What queries free stays for the next ones; what a model frees goes back when that is asked for."""

import json
import subprocess
import sys

import pytest

_FAULTS = """
import json, resource, sys
from firstline_core.runtime.memory import keep_freed_memory, release_freed_memory

faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
query = lambda: [bytearray(b"x") * 250_000 for _ in range(4)]
bytearray(b"x") * 300_000  # from now on what is smaller lies on the heap, and twice as much goes back
if sys.argv[1] == "keep":
    keep_freed_memory()
query()
before = faults()
for _ in range(100):
    query()
queries = faults() - before
blocks = [bytearray(b"x") * 100_000 for _ in range(600)]
full = resident()
del blocks
release_freed_memory()
print(json.dumps([queries, full - resident()]))
"""

_PARSING = """
import resource, orjson
from firstline_core.runtime.memory import keep_freed_memory

faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
text = orjson.dumps([0] * 480_000)
keep_freed_memory()
orjson.loads(text)
before = faults()
for _ in range(20):
    orjson.loads(text)
print((faults() - before) // 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux with glibc")
def test_json_of_an_image_is_parsed_without_page_faults() -> None:
    command = [sys.executable, "-c", _PARSING]
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) < 100, "of some thousand pages"


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux with glibc")
def test_freed_memory_is_reused_without_page_faults() -> None:
    def faults(how: str, **environment: str) -> list[int]:
        command = [sys.executable, "-c", _FAULTS, how]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
        return json.loads(done.stdout)

    (kept, returned), (given_back, _) = faults("keep"), faults("")
    assert given_back > 10_000, "as it is shipped a query faults in hundreds of pages"
    assert kept < given_back / 20
    assert returned > 40_000_000
    (tuned, _) = faults("keep", MALLOC_TRIM_THRESHOLD_="600000", MALLOC_MMAP_THRESHOLD_="300000")
    assert tuned > 10_000, "who has tuned it is left alone"
