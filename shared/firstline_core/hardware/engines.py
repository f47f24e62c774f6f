"""Tries every provider and delegate of the runtimes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from firstline_core.hardware.catalogue import MOST, Engine
from firstline_core.hardware.kernel_files import printable_name
from firstline_core.runtime.child import ChildFailed, run_python

_TRIAL_S = 60.0
_REASON_CHARACTERS = 160
_TRIAL = ("-m", "firstline_core.hardware.engine_trial")


def engines(progress: Callable[[str], None], must_end: Callable[[], str]) -> tuple[Engine, ...]:
    """Tries every provider and delegate that this Python's runtimes list, one after the other.

    That a build lists a provider only means that it was compiled in. A missing or old driver fails when a session is
    made, when it runs, or by ending the process, so each is tried in a process of its own.

    Args:
        progress: receives what is tried next.
        must_end: see `run_python`.
    """
    found: list[Engine] = []
    for runtime in ("onnx", "tflite"):
        progress(f"which providers {runtime} has")
        try:
            listed = run_python((*_TRIAL, runtime), limit_s=_TRIAL_S, must_end=must_end)
            names = [printable_name(name) for name in msgspec.json.decode(listed, type=list[str])]
        except (ChildFailed, msgspec.MsgspecError):
            names = []
        for name in names[: MOST - len(found)]:
            progress(f"{runtime} on {name}")
            found.append(try_engine(runtime, name, must_end=must_end))
    return tuple(found)


def try_engine(
    runtime: str,
    name: str,
    *,
    limit_s: float = _TRIAL_S,
    trial: Sequence[str] = _TRIAL,
    must_end: Callable[[], str] = lambda: "",
) -> Engine:
    """Returns whether a provider or delegate runs the trial model.

    Args:
        runtime: "onnx" or "tflite".
        name: of the provider or delegate.
        limit_s: after which the process is ended.
        trial: arguments of Python that try it.
        must_end: see `run_python`.
    """
    try:
        output = run_python((*trial, runtime, name), limit_s=limit_s, must_end=must_end)
        return msgspec.json.decode(output, type=Engine)
    except ChildFailed as error:
        why = str(error)
    except msgspec.MsgspecError:
        why = "Its trial gave no readable result."
    return Engine(runtime, printable_name(name), works=False, reason=why[:_REASON_CHARACTERS])
