"""What a part of the benchmark is, and running its jobs on all cores."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, NamedTuple

Record = Any
"""One measurement of a part: a dataclass of the part's own."""


class Job(NamedTuple):
    """A piece of work for one process."""

    name: str
    call: Callable[[], Sequence[Record]]


def run(jobs: Sequence[Job], processes: int) -> list[Record]:
    """Returns what the jobs gave, in their order; prints to stderr how far it is."""
    found: list[list[Record]] = [[] for _ in jobs]
    began_s = time.monotonic()
    # Forking would share what runtimes and BLAS keep in threads.
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as workers:
        futures = {workers.submit(job.call): at for at, job in enumerate(jobs)}
        for done, future in enumerate(as_completed(futures), 1):
            found[futures[future]] = list(future.result())
            seconds, name = time.monotonic() - began_s, jobs[futures[future]].name
            print(f"[{seconds:5.0f} s] {done}/{len(jobs)} {name}", file=sys.stderr, flush=True)
    return [record for records in found for record in records]
