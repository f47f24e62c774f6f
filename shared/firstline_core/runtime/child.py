"""Runs Python in a process of its own, which a driver may crash or hang, and which takes memory of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

CHECK_S = 0.5
"""Time between two checks whether the process must end."""


class ChildFailed(Exception):  # noqa: N818 (callers report it as a result)
    """The process gave no result; the text is a sentence with the reason."""


class Interrupted(Exception):  # noqa: N818 (not a fault)
    """The process was ended early on request; the text is the reason."""


def run_python(
    arguments: Sequence[str], given: bytes = b"", *, limit_s: float, must_end: Callable[[], str] = lambda: ""
) -> bytes:
    """Returns the output of this Python with other arguments; blocks. The process ends with this call.

    Args:
        arguments: of Python, such as ("-m", MODULE).
        given: its standard input.
        limit_s: time limit.
        must_end: returns why the process has to end now; "" if it may continue. Its exceptions are passed on.

    Raises:
        ChildFailed: it crashed, failed, or exceeded the time limit; with the last line of its error output, if it has
            an exit code.
        Interrupted: it had to end.
        OSError: the system refuses a process.
    """
    until_s, text = time.monotonic() + limit_s, given or None
    child = subprocess.Popen(  # noqa: S603 (this Python)
        [sys.executable, "-P", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )
    try:
        while True:
            left_s = until_s - time.monotonic()
            try:
                output, errors = child.communicate(text, timeout=max(0.0, min(CHECK_S, left_s)))
                break
            except subprocess.TimeoutExpired:
                text = None
            if reason := must_end():
                raise Interrupted(reason)
            if left_s <= CHECK_S:
                raise ChildFailed(f"It did not end within {limit_s:g} s.")
    except BaseException:
        with suppress(ProcessLookupError):  # its group, because a process that it started may hold its pipes
            os.killpg(child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # what hangs within a driver does not end when it is killed
            child.communicate(timeout=5.0)  # closes the pipes, also of a child that ended before it had to
        raise
    if child.returncode < 0:
        raise ChildFailed(f"It ended its process with {_signal_name(-child.returncode)}.")
    if child.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise ChildFailed(lines[-1] if lines else f"Its process ended with exit code {child.returncode}.")
    return output


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
