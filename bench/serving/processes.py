"""A server's processes: started on given cores, asked until they answer, counted, and ended with all they started."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_MARK = "FIRSTLINE_BENCH_SERVER"
_STOP_S = 15.0

Cores = frozenset[int]


class StartError(Exception):
    """A server did not come to answer; says why, with the end of its log."""


def cores() -> tuple[Cores, Cores, Cores]:
    """For the server, for the client, and both; where the machine has one core they are the same."""
    found = sorted(os.sched_getaffinity(0))
    return frozenset(found[:1]), frozenset(found[-1:]), frozenset((found[0], found[-1]))


def free_port() -> int:
    """Returns a loopback port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True)
class Server:
    """What answers on a port: one process and those that it started.

    Attributes:
        headers: that every request needs.
        start_s: from the first process's start to the first right answer.
    """

    port: int
    process: subprocess.Popen[bytes]
    mark: str
    headers: dict[str, str] = field(default_factory=dict)
    start_s: float = 0.0

    def cpu_s(self) -> float:
        """Processor time of all its processes so far."""
        return sum(_cpu_s(pid) for pid in marked(self.mark))

    def rss_mb(self) -> float:
        """Resident memory as `ps` tells it, of all its processes added up (MB of 10^6 bytes)."""
        return sum(_resident_kib(pid) for pid in marked(self.mark)) * 1024 / 1e6


@contextlib.contextmanager
def started(
    command: Sequence[str | Path],
    *,
    port: int,
    on: Cores,
    log: Path,
    answers: Callable[[int], bool],
    patience_s: float = 60.0,
    headers: dict[str, str] | None = None,
    environ: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[Server]:
    """Runs a server while the context is open.

    Args:
        command: which makes it listen on `port` of 127.0.0.1.
        port: a free one.
        on: the cores it may use, which it can count.
        log: takes what it says.
        answers: asks it; False while it does not answer yet.
        patience_s: how long that may take.
        headers: that every request needs.
        environ: instead of this process's.
        cwd: where it runs.

    Raises:
        StartError: it ended, or did not answer in time.
    """
    mark = uuid.uuid4().hex
    environ = (dict(os.environ) if environ is None else environ) | {_MARK: mark}
    began_s = time.monotonic()
    with log.open("ab") as stream:
        process = subprocess.Popen(
            ["taskset", "--cpu-list", ",".join(map(str, sorted(on))), *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=environ,
            cwd=cwd,
            start_new_session=True,
        )
    prefer(process.pid)
    try:
        while not _asked(answers, port):
            if process.poll() is not None:
                raise StartError(f"ended with {process.returncode} before it answered: {_end_of(log)}")
            if time.monotonic() - began_s > patience_s:
                raise StartError(f"did not answer within {patience_s:g} s: {_end_of(log)}")
            time.sleep(0.02)
        yield Server(port, process, mark, headers or {}, time.monotonic() - began_s)
    finally:
        end(process, mark)


def prefer(pid: int) -> None:
    """Puts a process before this machine's other work, where that is allowed.

    Linux weighs sessions against each other first (autogroup), and niceness only within one.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, -15)
        Path(f"/proc/{pid}/autogroup").write_text("-20")


@contextlib.contextmanager
def undisturbed() -> Iterator[bool]:
    """Runs this thread, and what it starts meanwhile, before all other work of the machine, where that is allowed.

    `prefer` is not enough for a server with more threads than cores: Linux leaves a thread that is to run behind
    another one of its process for milliseconds, while another core does other work. Real-time threads move at once.

    Yields:
        Whether it is allowed; otherwise the measurement competes with the machine's other work.
    """
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
        allowed = True
    except PermissionError:
        allowed = False
    try:
        yield allowed
    finally:
        os.sched_setscheduler(0, *before)


def end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Ends a process as its users would, and then whatever is left of those that it started."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    until_s = time.monotonic() + _STOP_S
    while (left := marked(mark)) and time.monotonic() < until_s:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        time.sleep(0.05)
    process.wait()


def marked(mark: str) -> list[int]:
    """Every process that inherited the mark, in whichever session it is now."""
    variable, found = f"{_MARK}={mark}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if variable in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def post(port: int, path: str, headers: dict[str, str], content: bytes) -> tuple[int, dict[str, str], bytes]:
    """One request by itself: status, headers by lowered names, body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, content, headers)
        reply = connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
    finally:
        connection.close()


def _asked(answers: Callable[[int], bool], port: int) -> bool:
    try:
        return answers(port)
    except (OSError, http.client.HTTPException):
        return False


def _cpu_s(pid: int) -> float:
    """Processor time of a process. The ticks of /proc are 10 ms, which is more than a brief load takes."""
    try:
        return time.clock_gettime(_cpu_clock(pid))
    except OSError:  # it has ended meanwhile
        return 0.0


def _cpu_clock(pid: int) -> int:
    # Linux's encoding of another process's CPU clock, as glibc's clock_getcpuclockid(3) makes it: CPUCLOCK_SCHED is 2.
    return ~pid << 3 | 2


def _resident_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)


def _end_of(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").split("\n")[-12:])[-1200:]
