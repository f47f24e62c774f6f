"""Tries every provider and delegate of the runtimes, each in a process of its own, which a driver may crash.

    python -m firstline_core.hardware.engines onnx          writes the names of the providers as a JSON list
    python -m firstline_core.hardware.engines onnx NAME     tries one, and writes an `Engine` as JSON

The model is a convolution, a rectifier and a mean of 32-bit floats; with an input of ones its output is 9.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from firstline_core.errors import InferenceError, ModelLoadError
from firstline_core.hardware.catalogue import MOST, Engine
from firstline_core.hardware.kernel_files import printable_name
from firstline_core.runtime.child import ChildFailed, run_python
from firstline_core.runtime.priority import use_lowest_priority
from firstline_core.runtime.select import RUNTIMES

_TRIAL_S = 60.0
_REASON_CHARACTERS = 160
_TRIAL = ("-m", "firstline_core.hardware.engines")
_FOLDER = Path(__file__).parent
_EXPECTED = 9.0


def engines(progress: Callable[[str], None], must_end: Callable[[], str]) -> tuple[Engine, ...]:
    """Tries every provider and delegate that this Python's runtimes list, one after the other.

    That a build lists a provider only means that it was compiled in. A missing or old driver fails when a session is
    made, when it runs, or by ending the process, so each is tried in a process of its own.

    Args:
        progress: receives what is tried next.
        must_end: see `run_python`.
    """
    found: list[Engine] = []
    for runtime in RUNTIMES:
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
        runtime: as a bundle's manifest names it.
        name: of the provider or delegate.
        limit_s: after which the process is ended.
        trial: arguments of Python that try it.
        must_end: see `run_python`.
    """
    try:
        output = run_python((*trial, runtime, name), limit_s=limit_s, must_end=must_end)
        return msgspec.json.decode(output, type=Engine)
    except ChildFailed as error:
        return _failed(runtime, name, str(error))
    except msgspec.MsgspecError:
        return _failed(runtime, name, "Its trial gave no readable result.")


def trial(runtime: str, name: str) -> Engine:
    """Returns the result of running the trial model in this process."""
    began_s = time.perf_counter()
    kind = RUNTIMES[runtime]
    ones = np.ones((1, 1, 8, 8) if kind.channels_first else (1, 8, 8, 1), np.float32)
    try:
        found = kind.run_alone(_FOLDER / f"trial.{runtime}", name, ones)
    except (ModelLoadError, InferenceError) as error:
        return _failed(runtime, name, error.message)
    first_s = time.perf_counter() - began_s
    value = float(found.reshape(-1)[0]) if found.size else math.nan
    if not math.isclose(value, _EXPECTED, rel_tol=1e-2):
        return _failed(runtime, name, f"It ran, and gave {value:g} where {_EXPECTED:g} is right.")
    return Engine(runtime, name, works=True, reason="It ran the trial model.", first_run_ms=round(first_s * 1e3, 3))


def _failed(runtime: str, name: str, why: str) -> Engine:
    words = " ".join(why.split())
    reason = words if len(words) <= _REASON_CHARACTERS else f"{words[: _REASON_CHARACTERS - 3]}..."
    return Engine(runtime, printable_name(name), works=False, reason=reason)


def main(arguments: list[str]) -> int:
    """Runs the command in the module's docstring."""
    use_lowest_priority()
    runtime, *named = arguments
    if not named:
        sys.stdout.buffer.write(msgspec.json.encode(RUNTIMES[runtime].engines()))
        return 0
    sys.stdout.buffer.write(msgspec.json.encode(trial(runtime, named[0])))
    sys.stdout.flush()
    # Skip the driver's own clean-up, in which drivers often crash.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
