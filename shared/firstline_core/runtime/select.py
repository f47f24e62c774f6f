"""Which runtime loads a model, and with what options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from firstline_core.runtime.base import Runtime
from firstline_core.runtime.litert import LiteRtRuntime
from firstline_core.runtime.onnx import OnnxRuntime

CPU = "CPUExecutionProvider"


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """How models run here.

    Args:
        providers: ONNX Runtime's execution providers by name, preferred first; one that is absent is an error.
        threads: that one run may use; 0 leaves it to the runtime.
    """

    providers: tuple[str, ...] = (CPU,)
    threads: int = 1


def load_runtime(path: Path, runtime: Literal["onnx", "tflite"], options: RuntimeOptions) -> Runtime:
    """Loads a model file.

    Raises:
        ModelLoadError: the runtime is not installed, a provider is absent, or the file does not load.
    """
    if runtime == "onnx":
        return OnnxRuntime(path, providers=options.providers, threads=options.threads)
    return LiteRtRuntime(path, threads=options.threads)
