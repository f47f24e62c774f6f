"""One provider or delegate runs a small model: for a process of its own, `python -m`, which it may take down with it.

    engine_trial onnx           names the providers, as a list in JSON
    engine_trial onnx NAME      tries one, and says how that went, as an `Engine` in JSON

The model is a convolution, a rectifier and a mean over numbers of 32 bits, all ones: what comes out is 9.
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
    """Does what the module's docstring says."""
    use_lowest_priority()
    runtime, *named = arguments
    if not named:
        sys.stdout.buffer.write(msgspec.json.encode(onnx.providers() if runtime == "onnx" else litert.delegates()))
        return 0
    sys.stdout.buffer.write(msgspec.json.encode(trial(runtime, named[0])))
    sys.stdout.flush()
    # What a driver does at its end is not asked for: it often crashes there, after all is done.
    os._exit(0)


def trial(runtime: str, name: str) -> Engine:
    """How the small model ran."""
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
        return Engine(runtime, name, works=False, reason=f"It ran, and said {value:g} where {_EXPECTED:g} is right.")
    return Engine(runtime, name, works=True, reason="It ran the trial model.", first_run_ms=round(first_s * 1e3, 3))


def _sentence(message: str) -> str:
    words = " ".join(message.split())
    return words if len(words) <= _REASON_CHARACTERS else f"{words[: _REASON_CHARACTERS - 3]}..."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
