"""The table of runtimes, and their options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from firstline_core.protocol.limits import DEFAULT_DECODING_LIMITS, DecodingLimits
from firstline_core.runtime import litert, onnx
from firstline_core.runtime.base import Runtime, RuntimeName
from firstline_core.types import Array

CPU = "CPUExecutionProvider"


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
        onnx.check_providers(options.providers, setting)


@dataclass(frozen=True, slots=True)
class RuntimeKind:
    """The properties of a runtime in which it differs from others.

    Args:
        load: loads a model file.
        engines: returns the names of the providers or delegates on this machine; imports the runtime.
        run_alone: runs a file once on one of them, with one input, and returns the output.
        channels_first: whether the axes of its images are channels, height, width.
        only_provider: its name in profiles if the runtime chooses by itself; "" if the settings choose.
        platform: its name in V2 metadata, as Triton calls it.
        modules: importable modules that provide it, preferred first.
        install: what to do if it is missing.
    """

    load: Callable[[Path, RuntimeOptions], Runtime]
    engines: Callable[[], Sequence[str]]
    run_alone: Callable[[Path, str, Array], Array]
    channels_first: bool
    only_provider: str
    platform: str
    modules: tuple[str, ...]
    install: str

    def providers(self, configured: Sequence[str]) -> Sequence[str]:
        """Returns the providers by which a profile may measure a model."""
        return (self.only_provider,) if self.only_provider else configured


RUNTIMES: Mapping[str, RuntimeKind] = {
    "onnx": RuntimeKind(
        load=lambda path, options: onnx.OnnxRuntime(path, providers=options.providers, threads=options.threads),
        engines=onnx.providers,
        run_alone=onnx.run_alone,
        channels_first=True,
        only_provider="",
        platform="onnxruntime_onnx",
        modules=("onnxruntime",),
        install=(
            "pip install 'firstline[edge]'; on a Jetson instead 'firstline[edge-core]' and NVIDIA's onnxruntime-gpu"
        ),
    ),
    "tflite": RuntimeKind(
        load=lambda path, options: litert.LiteRtRuntime(path, threads=options.threads),
        engines=litert.delegates,
        run_alone=litert.run_alone,
        channels_first=False,
        only_provider="tflite",
        platform="tflite",
        modules=("ai_edge_litert", "tflite_runtime"),
        install="pip install 'firstline[litert]'",
    ),
}


def load_runtime(path: Path, runtime: RuntimeName, options: RuntimeOptions) -> Runtime:
    """Loads a model file.

    Raises:
        ModelLoadError: the runtime is not installed, a provider is absent, or the file does not load.
    """
    return RUNTIMES[runtime].load(path, options)
