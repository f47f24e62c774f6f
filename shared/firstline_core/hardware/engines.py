"""Which of the runtimes' providers and delegates really work: each runs a small model in a process of its own.

That a build lists a provider says that it was compiled in; a driver that is missing, or too old for it, shows when a
session is made, when it runs, or by the end of the process. So each is tried where it can do no harm.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

import msgspec

from firstline_core.hardware.catalogue import MOST, Engine
from firstline_core.hardware.tree import name_of

_LIMIT_S = 60.0
_OUTPUT_BYTES = 16 * 1024
_REASON_CHARACTERS = 160
_TRIAL = ("-m", "firstline_core.hardware.engine_trial")


def engines(progress: Callable[[str], None] = lambda _: None, limit_s: float = _LIMIT_S) -> tuple[Engine, ...]:
    """Tries all that this Python's runtimes list, one after the other.

    Args:
        progress: told what is tried.
        limit_s: for each.
    """
    found: list[Engine] = []
    for runtime in ("onnx", "tflite"):
        progress(f"which providers {runtime} has")
        listed, _ = _child([runtime], limit_s)
        for name in _names(listed):
            progress(f"{runtime} on {name}")
            found.append(tried(runtime, name, limit_s=limit_s))
    return tuple(found[:MOST])


def tried(runtime: str, name: str, *, limit_s: float = _LIMIT_S, trial: Sequence[str] = _TRIAL) -> Engine:
    """Whether one of them runs the small model.

    Args:
        runtime: "onnx" or "tflite".
        name: of the provider or delegate.
        limit_s: after which it is ended.
        trial: arguments of Python's that try it.
    """
    said, why = _child([runtime, name], limit_s, trial)
    if not why:
        try:
            return msgspec.json.decode(said, type=Engine)
        except msgspec.MsgspecError:
            why = "Its trial said nothing that makes sense."
    return Engine(runtime, name_of(name), works=False, reason=why[:_REASON_CHARACTERS])


def _names(listed: bytes) -> list[str]:
    try:
        return [name_of(name) for name in msgspec.json.decode(listed, type=list[str])][:MOST]
    except msgspec.MsgspecError:
        return []


def _child(arguments: list[str], limit_s: float, trial: Sequence[str] = _TRIAL) -> tuple[bytes, str]:
    """What the trial wrote, and why it ended as it should not have; "" where it did not."""
    with subprocess.Popen(  # noqa: S603 (this Python, and names that it listed itself)
        [sys.executable, *trial, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # drivers chat
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as child:
        try:
            said, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return b"", f"It did not end within {limit_s:.0f} s."
        except BaseException:
            child.kill()
            raise
    if child.returncode < 0:
        return b"", f"It ended its process with {signal.Signals(-child.returncode).name}."
    if child.returncode:
        return b"", f"Its process ended with exit code {child.returncode}."
    return said[:_OUTPUT_BYTES], ""
