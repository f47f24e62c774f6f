"""Runs the finished files as a device does, so that figures are those of the artefacts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firstline_core.runtime.select import RuntimeOptions, load_runtime


def logits_of(file: Path, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n, 10) float32 logits of (n, 8, 8, 1) images, by the runtime that the file's suffix names."""
    runtime = load_runtime(file, "tflite" if file.suffix == ".tflite" else "onnx", RuntimeOptions())
    try:
        return np.asarray(runtime.run({"image": images})["logits"])
    finally:
        runtime.close()
