"""Runs a small model with one provider or delegate, in a process of its own that a driver may crash (`python -m`).

    engine_trial onnx           writes the names of the providers as a JSON list
    engine_trial onnx NAME      tries one, and writes an `Engine` as JSON

The model is a convolution, a rectifier and a mean of 32-bit floats; with an input of ones its output is 9.
"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from firstline_core.errors import InferenceError, ModelLoadError
from firstline_core.hardware.catalogue import Engine
from firstline_core.runtime import litert, onnx
from firstline_core.runtime.priority import use_lowest_priority

_FOLDER = Path(__file__).parent
_EXPECTED = 9.0
_REASON_CHARACTERS = 160


def main(arguments: list[str]) -> int:
    """Runs the command in the module's docstring."""
    use_lowest_priority()
    runtime, *named = arguments
    if not named:
        sys.stdout.buffer.write(msgspec.json.encode(onnx.providers() if runtime == "onnx" else litert.delegates()))
        return 0
    sys.stdout.buffer.write(msgspec.json.encode(trial(runtime, named[0])))
    sys.stdout.flush()
    # Skip the driver's own clean-up, in which drivers often crash.
    os._exit(0)


def trial(runtime: str, name: str) -> Engine:
    """Returns the result of running the trial model."""
    began_s = time.perf_counter()
    ones = np.ones((1, 1, 8, 8) if runtime == "onnx" else (1, 8, 8, 1), np.float32)
    try:
        if runtime == "onnx":
            found = onnx.run_alone(_FOLDER / "trial.onnx", name, ones)
        else:
            found = litert.run_alone(_FOLDER / "trial.tflite", name, ones)
    except (ModelLoadError, InferenceError) as error:
        return Engine(runtime, name, works=False, reason=_sentence(error.message))
    first_s = time.perf_counter() - began_s
    value = float(found.reshape(-1)[0]) if found.size else math.nan
    if not math.isclose(value, _EXPECTED, rel_tol=1e-2):
        return Engine(runtime, name, works=False, reason=f"It ran, and gave {value:g} where {_EXPECTED:g} is right.")
    return Engine(runtime, name, works=True, reason="It ran the trial model.", first_run_ms=round(first_s * 1e3, 3))


def _sentence(message: str) -> str:
    words = " ".join(message.split())
    return words if len(words) <= _REASON_CHARACTERS else f"{words[: _REASON_CHARACTERS - 3]}..."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
