"""Selects the runtime of a model, and its options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from firstline_core.protocol.limits import DEFAULT_DECODING_LIMITS, DecodingLimits
from firstline_core.runtime.base import Runtime
from firstline_core.runtime.litert import LiteRtRuntime
from firstline_core.runtime.onnx import OnnxRuntime, check_providers

CPU = "CPUExecutionProvider"

PLATFORMS = {"onnx": "onnxruntime_onnx", "tflite": "tflite"}
"""Names of the runtimes in V2 metadata, as Triton uses them."""


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Options of all models on this machine.

    Args:
        providers: ONNX Runtime's execution providers by name, preferred first; an absent one is an error.
        threads: that one run may use; 0 leaves it to the runtime.
        decoding: limits of each image and recording that is decoded for a model.
    """

    providers: tuple[str, ...] = (CPU,)
    threads: int = 1
    decoding: DecodingLimits = DEFAULT_DECODING_LIMITS


def check_options(options: RuntimeOptions, setting: str) -> None:
    """Checks the options as far as possible without a model, so that models run only on the configured providers.

    The CPU provider alone is not checked: a device with TFLite models needs no onnxruntime.

    Args:
        options: from the settings.
        setting: the providers' key, for the message.

    Raises:
        ConfigError: a provider that this onnxruntime does not offer.
    """
    if options.providers != (CPU,):
        check_providers(options.providers, setting)


def load_runtime(path: Path, runtime: Literal["onnx", "tflite"], options: RuntimeOptions) -> Runtime:
    """Loads a model file.

    Raises:
        ModelLoadError: the runtime is not installed, a provider is absent, or the file does not load.
    """
    if runtime == "onnx":
        return OnnxRuntime(path, providers=options.providers, threads=options.threads)
    return LiteRtRuntime(path, threads=options.threads)
