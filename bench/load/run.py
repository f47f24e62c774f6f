"""Puts a gateway on one core under load from the generator on another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.load.generator import Record, Stream
from bench.serving.processes import Cores, Server, prefer


@dataclass(frozen=True)
class Measured:
    """What a load was answered with.

    Attributes:
        records: one for each request.
        start_s: what their times count from, on this machine's monotonic clock.
        generator_share: of its core that the generator used; near 1 it was what limited.
        gateway_share: of its core that the gateway used.
        gateway_cpu_s: processor time of the gateway.
        rss_mb: the most resident memory that was seen.
    """

    records: list[Record]
    start_s: float
    generator_share: float
    gateway_share: float
    gateway_cpu_s: float
    rss_mb: float


def put_under(running: Server, streams: Sequence[Stream], core: Cores, seed: int) -> Measured:
    """Sends the streams' requests from a process of its own and waits for the last answer."""
    plan = {
        "host": "127.0.0.1",
        "port": running.port,
        "streams": [stream._asdict() for stream in streams],
        "seed": seed,
    }
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    generator = subprocess.Popen(
        [sys.executable, "-m", "bench.load.generator"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
        start_new_session=True,
    )
    prefer(generator.pid)
    os.sched_setaffinity(generator.pid, core)
    started_s, cpu_s = time.monotonic(), running.cpu_s()
    most_mb = running.rss_mb()
    ended = threading.Event()

    def watch() -> None:
        nonlocal most_mb
        while not ended.wait(0.2):
            most_mb = max(most_mb, running.rss_mb())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        output, _ = generator.communicate(json.dumps(plan))
    finally:
        ended.set()
        watching.join()
        generator.kill()  # where it was not waited for
    seconds, gateway_cpu_s = time.monotonic() - started_s, running.cpu_s() - cpu_s
    found = json.loads(output)
    return Measured(
        [Record(*record) for record in found["records"]],
        found["start_s"],
        found["cpu_s"] / seconds,
        gateway_cpu_s / seconds,
        gateway_cpu_s,
        most_mb,
    )
