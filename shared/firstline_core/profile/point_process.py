"""Measures a point in a process of its own; `measure_point` runs in that process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from firstline_core.profile.measure_point import Job
from firstline_core.profile.profile import REASON_CHARACTERS, Point, Refused

_LIMIT_S = 120.0


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
        limit_s = _LIMIT_S + 10 * job.seconds + job.heat_s
        try:
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


def exit_description(code: int) -> str:
    """Returns the exit code, or the name of the signal that ended the process."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
