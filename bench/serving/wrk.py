"""wrk as the client: a closed loop with a fixed number of requests in flight, on a core of its own, from C.

What a Python client takes for a request is more than what a good server does; wrk takes a few microseconds.
"""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from bench.serving.processes import Cores, Server, prefer

_TIMEOUT_S = 30


class Load(NamedTuple):
    """What came of it.

    Attributes:
        requests: that were answered, with whichever status.
        bad: of them, those with an error status, and those without an answer.
        server_cpu_s, client_cpu_s: processor time that was used meanwhile.
    """

    requests: int
    seconds: float
    bad: int
    p50_us: float
    p99_us: float
    server_cpu_s: float
    client_cpu_s: float

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.seconds

    @property
    def cpu_us(self) -> float:
        """The server's processor time for each request."""
        return self.server_cpu_s / max(1, self.requests) * 1e6


def available() -> bool:
    """Whether it is installed: `make wrk`."""
    return shutil.which("wrk") is not None


def load(server: Server, script: Path, *, in_flight: int, seconds: int, on: Cores) -> Load:
    """Sends the requests of `script` (see `bodies.plan`) for `seconds`.

    Raises:
        subprocess.CalledProcessError: wrk could not.
    """
    command = ["wrk", "-t1", f"-c{in_flight}", f"-d{seconds}s", "--timeout", f"{_TIMEOUT_S}s"]
    command += ["--script", str(script), f"http://127.0.0.1:{server.port}"]
    before_s, used = server.cpu_s(), _children_cpu_s()
    client = subprocess.Popen(
        ["taskset", "--cpu-list", ",".join(map(str, sorted(on))), *command],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    prefer(client.pid)
    try:
        output, _ = client.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            client.kill()
    if client.returncode:
        raise subprocess.CalledProcessError(client.returncode, command, output)
    summary = json.loads(output.strip().splitlines()[-1])
    return Load(
        requests=summary["requests"],
        seconds=summary["microseconds"] / 1e6,
        bad=summary["bad_status"] + summary["broken"] + summary["late"],
        p50_us=summary["p50_us"],
        p99_us=summary["p99_us"],
        server_cpu_s=server.cpu_s() - before_s,
        client_cpu_s=_children_cpu_s() - used,
    )


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def raise_descriptors() -> None:
    """256 connections need more than some shells allow; servers inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536
    if soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def version() -> str:
    """As it says."""
    completed = subprocess.run(["wrk", "--version"], capture_output=True, text=True, check=False)  # it exits with 1
    return (completed.stdout + completed.stderr).splitlines()[0]
