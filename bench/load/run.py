"""A gateway on one core and the generator on another."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.load.generator import Record, Stream
from bench.serving.processes import prefer

_START_S, _STOP_S = 60, 20


def cores() -> tuple[set[int], set[int]]:
    """For the gateway, and for the generator; the same where the machine has one."""
    found = sorted(os.sched_getaffinity(0))
    return {found[0]}, {found[-1]}


@dataclass(frozen=True)
class Running:
    """A gateway's process."""

    port: int
    process: subprocess.Popen[str]

    def rss_mb(self) -> float:
        """Resident memory (MB of 10^6 bytes); none once it has ended."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0) * 1024 / 1e6

    def cpu_s(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def gateway(config: Path, core: set[int]) -> Iterator[Running]:
    """Runs `firstline-gateway run` on one core; its log is gateway.log next to the configuration."""
    command = [sys.executable, "-m", "firstline_gateway", "run", "--config", str(config), "--port", "0", "-o", "json"]
    with (config.parent / "gateway.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
    prefer(process.pid)
    os.sched_setaffinity(process.pid, core)  # before it counts its cores
    watchdog = threading.Timer(_START_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        watchdog.cancel()
        yield Running(int(json.loads(line)["url"].rpartition(":")[2]), process)
    finally:
        watchdog.cancel()
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


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


def put_under(running: Running, streams: Sequence[Stream], core: set[int], seed: int) -> Measured:
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
        told, _ = generator.communicate(json.dumps(plan))
    finally:
        ended.set()
        watching.join()
        generator.kill()  # where it was not waited for
    seconds, gateway_cpu_s = time.monotonic() - started_s, running.cpu_s() - cpu_s
    found = json.loads(told)
    return Measured(
        [Record(*record) for record in found["records"]],
        found["start_s"],
        found["cpu_s"] / seconds,
        gateway_cpu_s / seconds,
        gateway_cpu_s,
        most_mb,
    )
