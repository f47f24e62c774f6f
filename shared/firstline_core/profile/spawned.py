"""Has one point measured by a process of its own, and waits for it; `child` is what runs in that process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec
from msgspec.structs import replace

from firstline_core.profile.child import Job
from firstline_core.profile.profile import REASON_CHARACTERS, Point, Refused
from firstline_core.profile.throttled import held_back

_LIMIT_S = 120.0


def in_child(job: Job) -> Point | Refused:
    """Measures one point by a process of its own; whatever ends that process is a reason."""
    runtime = "tflite" if job.key.provider == "tflite" else "onnxruntime"
    limit_s = (_LIMIT_S + 10 * job.seconds) / job.share + job.heat_s
    child = subprocess.Popen(
        [sys.executable, "-m", "firstline_core.profile.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )
    try:
        with held_back(child, job.share):
            said, complained = child.communicate(msgspec.json.encode(job), timeout=limit_s)
    except subprocess.TimeoutExpired:
        return Refused(job.key, runtime, f"It was not measured within {limit_s:.0f} s.")
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    if child.returncode:
        lines = complained.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines and child.returncode > 0 else f"Its process ended with {ending(child.returncode)}."
        return Refused(job.key, runtime, reason[:REASON_CHARACTERS])
    try:
        point = msgspec.json.decode(said, type=Point)
        return replace(point, heat_limit_s=job.heat_s, alone=job.alone, given_s=job.seconds)
    except msgspec.MsgspecError as error:
        return Refused(job.key, runtime, f"What its process said is no point: {error}."[:REASON_CHARACTERS])


def ending(code: int | None) -> str:
    """How a process ended: its exit code, or the name of the signal."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
