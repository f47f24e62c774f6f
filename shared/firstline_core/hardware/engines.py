"""Tries every provider and delegate of the runtimes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

import msgspec

from firstline_core.hardware.catalogue import MOST, Engine
from firstline_core.hardware.kernel_files import printable_name

_TRIAL_S = 60.0
_OUTPUT_BYTES = 16 * 1024
_REASON_CHARACTERS = 160
_TRIAL = ("-P", "-m", "firstline_core.hardware.engine_trial")


def engines(progress: Callable[[str], None] = lambda _: None, limit_s: float = _TRIAL_S) -> tuple[Engine, ...]:
    """Tries every provider and delegate that this Python's runtimes list, one after the other.

    That a build lists a provider only means that it was compiled in. A missing or old driver fails when a session is
    made, when it runs, or by ending the process, so each is tried in a process of its own.

    Args:
        progress: receives what is tried next.
        limit_s: for each.
    """
    found: list[Engine] = []
    for runtime in ("onnx", "tflite"):
        progress(f"which providers {runtime} has")
        listed, _ = _run_trial([runtime], limit_s)
        try:
            names = [printable_name(name) for name in msgspec.json.decode(listed, type=list[str])][:MOST]
        except msgspec.MsgspecError:
            names = []
        for name in names:
            progress(f"{runtime} on {name}")
            found.append(try_engine(runtime, name, limit_s=limit_s))
    return tuple(found[:MOST])


def try_engine(runtime: str, name: str, *, limit_s: float = _TRIAL_S, trial: Sequence[str] = _TRIAL) -> Engine:
    """Returns whether a provider or delegate runs the trial model.

    Args:
        runtime: "onnx" or "tflite".
        name: of the provider or delegate.
        limit_s: after which the process is ended.
        trial: arguments of Python that try it.
    """
    output, why = _run_trial([runtime, name], limit_s, trial)
    if not why:
        try:
            return msgspec.json.decode(output, type=Engine)
        except msgspec.MsgspecError:
            why = "Its trial gave no readable result."
    return Engine(runtime, printable_name(name), works=False, reason=why[:_REASON_CHARACTERS])


def _run_trial(arguments: list[str], limit_s: float, trial: Sequence[str] = _TRIAL) -> tuple[bytes, str]:
    """Returns the output of the trial, and why it failed; "" if it did not."""
    try:
        child = subprocess.run(  # noqa: S603 (this Python, and names that it listed itself)
            [sys.executable, *trial, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # drivers write to it
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return b"", f"It did not end within {limit_s:.0f} s."
    if child.returncode < 0:
        return b"", f"It ended its process with {signal.Signals(-child.returncode).name}."
    if child.returncode:
        return b"", f"Its process ended with exit code {child.returncode}."
    return child.stdout[:_OUTPUT_BYTES], ""
