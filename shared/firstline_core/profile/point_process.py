"""Measures a point in a process of its own; `measure_point` runs in that process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from signal import SIGCONT, SIGSTOP

import msgspec
from msgspec.structs import replace

from firstline_core.profile.measure_point import Job
from firstline_core.profile.profile import REASON_CHARACTERS, Point, Refused

_LIMIT_S = 120.0
_PERIOD_S = 0.01
"""Of stops: too short to be noticed as a stop, longer than the scheduler's own time slice."""


class PointProcess:
    """The process that measures one point.

    Args:
        job: the point.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._runtime = "tflite" if job.key.provider == "tflite" else "onnxruntime"
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "firstline_core.profile.measure_point"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )

    def run(self) -> Point | Refused:
        """Waits for the result; an end of the process without one is a refusal with the reason."""
        job, child = self._job, self._child
        limit_s = (_LIMIT_S + 10 * job.seconds) / job.share + job.heat_s
        try:
            with stopped_for_a_share(child, job.share):
                output, errors = child.communicate(msgspec.json.encode(job), timeout=limit_s)
        except subprocess.TimeoutExpired:
            return self._refused(f"It was not measured within {limit_s:.0f} s.")
        finally:
            if child.poll() is None:
                self.kill()
                child.communicate()
        if child.returncode:
            lines = errors.decode(errors="replace").strip().splitlines()
            ended = f"Its process ended with {exit_description(child.returncode)}."
            return self._refused(lines[-1] if lines and child.returncode > 0 else ended)
        try:
            point = msgspec.json.decode(output, type=Point)
        except msgspec.MsgspecError as error:
            return self._refused(f"The output of its process is no point: {error}.")
        return replace(point, heat_limit_s=job.heat_s, alone=job.alone, given_s=job.seconds)

    def kill(self) -> None:
        """Ends the process and everything that it has started, without waiting for it."""
        with suppress(ProcessLookupError):
            if self._child.returncode is None:
                os.killpg(self._child.pid, signal.SIGKILL)

    def _refused(self, reason: str) -> Refused:
        return Refused(self._job.key, self._runtime, reason[:REASON_CHARACTERS])


def measure_in_process(job: Job) -> Point | Refused:
    """Measures one point and returns it, or the reason why it could not be measured."""
    return PointProcess(job).run()


@contextmanager
def stopped_for_a_share(child: subprocess.Popen[bytes], share: float) -> Iterator[None]:
    """Lets a process run for a share of every hundredth of a second (SIGSTOP, SIGCONT), as a slower clock would.

    This needs no privileges, unlike the quota of a control group. On average a query takes 1 / share of its time; a
    query that is much shorter than the period takes its own time or waits for a stop to end.

    Args:
        child: with a single process; it may end meanwhile.
        share: above 0 to 1; at 1 the process is never stopped.
    """
    over = threading.Event()

    def alternate() -> None:
        while not over.wait(_PERIOD_S * share):
            child.send_signal(SIGSTOP)
            over.wait(_PERIOD_S * (1 - share))
            child.send_signal(SIGCONT)

    thread = threading.Thread(target=alternate, daemon=True)
    if share < 1:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if share < 1:
            thread.join()


def exit_description(code: int) -> str:
    """Returns the exit code, or the name of the signal that ended the process."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
