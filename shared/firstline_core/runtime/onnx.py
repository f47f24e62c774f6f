"""ONNX Runtime. The only file that imports onnxruntime, and only when a model is loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from firstline_core.errors import ConfigError, InferenceError, InvalidTensorError, ModelLoadError
from firstline_core.runtime.base import Feeds, cast_feed, check_feeds, fixed_batch, run_in_batches
from firstline_core.storage.files import naming
from firstline_core.types import DATATYPES, Array, TensorSpec

# Since version 1.29 ONNX Runtime reports each process and model to its makers by default, over any link of the device.
# It reads this variable when it loads the first model.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_CPU = "CPUExecutionProvider"
_LOG_NO_ERRORS = 4  # they are raised, and the runtime would print them too

_FLOATS = {"tensor(float16)": "FP16", "tensor(float)": "FP32", "tensor(double)": "FP64"}
_DATATYPES = _FLOATS | {f"tensor({dtype.name})": name for name, dtype in DATATYPES.items() if dtype.kind in "bui"}
_STRING = "tensor(string)"
_INPUT_DATATYPES = _DATATYPES | {_STRING: "BYTES"}


def check_providers(providers: tuple[str, ...], setting: str) -> None:
    """Checks that this onnxruntime has the providers of a setting.

    Args:
        providers: execution providers by name.
        setting: where they are configured, for the message.

    Raises:
        ConfigError: a provider or onnxruntime is missing; the message names the available ones.
    """
    try:
        problem = _absence(_onnxruntime(), providers)
    except ModelLoadError as error:
        raise ConfigError(f"{setting} names {', '.join(providers) or 'none'}, but {error.message}") from error
    if problem:
        raise ConfigError(f"{setting} names {problem}")


def providers() -> tuple[str, ...]:
    """Returns the execution providers of this onnxruntime; none without onnxruntime."""
    try:
        return tuple(_onnxruntime().get_available_providers())
    except ModelLoadError:
        return ()


def run_alone(path: Path, provider: str, feed: Array) -> Array:
    """Runs a model with one input on one provider only: no operator may fall back to the CPU.

    Args:
        path: of the model.
        provider: by name.
        feed: the input.

    Returns:
        The first output.

    Raises:
        ModelLoadError: the provider does not support the whole model.
        InferenceError: the run failed.
    """
    ort = _onnxruntime()
    failures, options = _failures(), _options(ort, 1)
    if provider != _CPU:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    try:
        session = ort.InferenceSession(_read(path), options, providers=[provider])
        session.disable_fallback()
    except failures as error:
        if "default CPU EP" in str(error):
            raise ModelLoadError("It leaves operators of the trial model to the processor.") from error
        raise ModelLoadError(f"It does not take the trial model: {error}") from error
    if session.get_providers()[0] != provider:
        raise ModelLoadError(f"ONNX Runtime put {session.get_providers()[0]} into its place.")
    try:
        found: Array = session.run(None, {session.get_inputs()[0].name: feed})[0]
    except failures as error:
        raise InferenceError(f"It took the trial model, and failed to run it: {error}") from error
    return found


class OnnxRuntime:
    """A `Runtime` over an ONNX Runtime session, which is thread-safe.

    ONNX does not describe the quantisation of integer inputs: they are integers, without a known range.
    """

    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({})

    def __init__(self, path: Path, *, providers: tuple[str, ...], threads: int, content: bytes | None = None) -> None:
        """Loads the model and checks that the requested providers really execute it.

        Args:
            path: a single-file ONNX model; weights in a second file are refused.
            providers: execution providers by name, preferred first.
            threads: that one run may use; 0 for ONNX Runtime's default (one per core).
            content: the model itself, if there is no such file; `path` then only names it in messages.

        Raises:
            ModelLoadError: onnxruntime is missing, a provider is absent, or it cannot run the file.
        """
        ort = _onnxruntime()
        self._failures = _failures()
        model = _read(path) if content is None else content
        if problem := _absence(ort, providers):
            raise ModelLoadError(f"{path}: the configuration names {problem}")
        options = _options(ort, threads)
        self._session: Any = self._open(ort, model, path, providers, options)
        self.provider: str = self._session.get_providers()[0]
        nodes = self._session.get_inputs()
        if unreadable := [f"'{node.name}' ({node.type})" for node in nodes if node.type not in _INPUT_DATATYPES]:
            raise ModelLoadError(
                f"{path}: inputs must be tensors of numbers or strings; these are not: {', '.join(unreadable)}. Export "
                "the model with a tensor for each input."
            )
        self.inputs = tuple(_specs(nodes))
        found = self._session.get_outputs()
        numbers = tuple(_specs(node for node in found if node.type in _DATATYPES))
        _refuse_maps(found, numbers, path)
        strings = tuple(_specs(node for node in found if node.type == _STRING))
        self.outputs = (*numbers, *strings)
        self._strings = [spec.name for spec in strings]
        self._output_names = [spec.name for spec in self.outputs]
        self._dtypes = {spec.name: DATATYPES[spec.datatype] for spec in self.inputs}
        self._batch = fixed_batch(self.inputs, self.outputs, path)

    def _open(self, ort: ModuleType, model: bytes, path: Path, providers: tuple[str, ...], options: Any) -> Any:
        try:
            session = ort.InferenceSession(model, options, providers=list(providers))
        except self._failures as error:
            raise ModelLoadError(f"{path}: {_explained(str(error))}") from error
        session.disable_fallback()  # otherwise a provider that fails later is silently replaced by the CPU
        running = tuple(session.get_providers())
        if running[: len(providers)] != providers:
            raise ModelLoadError(
                f"{path}: asked for {', '.join(providers)}, but ONNX Runtime fell back to {', '.join(running)}; "
                "repair the provider's installation (drivers, libraries) or configure another."
            )
        return session

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        check_feeds(feeds, self.inputs)
        ready: dict[str, Array] = {}
        for name, dtype in self._dtypes.items():
            ready[name] = _texts(name, feeds[name]) if dtype.hasobject else cast_feed(name, feeds[name], dtype)
        return self._run(ready) if self._batch is None else run_in_batches(ready, self._batch, self._run)

    def _run(self, feeds: Feeds) -> dict[str, Array]:
        session = self._session
        if session is None:
            raise InferenceError("The model was closed; load it again.")
        try:
            outputs = session.run(self._output_names, feeds)
        except self._failures as error:
            raise InferenceError(
                f"ONNX Runtime fails to run this model on rows that fit its declared input: {_shortened(error)}"
            ) from error
        results = dict(zip(self._output_names, outputs, strict=True))
        for name in self._strings:
            encoded: Array = np.frompyfunc(str.encode, 1, 1)(results[name])
            results[name] = encoded
        return results

    def close(self) -> None:
        self._session = None


def _texts(name: str, array: Array) -> Array:
    """Returns strings: ONNX Runtime would feed a model the Python notation of bytes.

    Raises:
        InvalidTensorError: an element is not UTF-8.
    """
    try:
        texts: Array = np.frompyfunc(lambda text: text.decode() if isinstance(text, bytes) else text, 1, 1)(array)
    except UnicodeDecodeError as error:
        raise InvalidTensorError(f"Input '{name}' has an element that is not UTF-8 text.") from error
    return texts


def _onnxruntime() -> ModuleType:
    try:
        import onnxruntime
        from google.protobuf import __version__  # noqa: F401 (`onnx_file.py` needs it, `edge-core` does not install it)
    except ImportError as error:
        raise ModelLoadError(
            f"ONNX models need onnxruntime and protobuf, and one cannot be imported ({error}): pip install "
            "'firstline[edge]', or on a Jetson NVIDIA's onnxruntime-gpu and protobuf."
        ) from error
    module: ModuleType = onnxruntime
    return module


def _failures() -> tuple[type[Exception], ...]:
    """ONNX Runtime's exceptions share no base class, so they are collected."""
    # Imported by its name: if the first import of onnxruntime was interrupted, the second has no attribute `capi`.
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    own = {found for found in vars(state).values() if isinstance(found, type) and issubclass(found, Exception)}
    return (*own, RuntimeError, ValueError, TypeError)


def _read(path: Path) -> bytes:
    with naming(path, refusal=ModelLoadError):
        model = path.read_bytes()
    try:
        external = external_data(model)
    except ValueError as error:
        raise ModelLoadError(f"{path} is not an ONNX model, or it is damaged; export or copy it again.") from error
    if external is not None:
        raise ModelLoadError(
            f"{path} keeps weights in another file, {external[:200]!a}, which the bundle's digest does not cover; save "
            'the model as one file: onnx.save(onnx.load("MODEL.onnx"), "ONE.onnx").'
        )
    return model


_SOURCE_PLACE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : |/onnxruntime_src/\S+ .*?\) (?=[A-Z])", re.DOTALL)
_REPORT_CHARACTERS = 300
# What ONNX Runtime reports, and what it means for the user.
_REASONS = (
    (
        re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)"),
        "it has IR version {0}, and this ONNX Runtime reads up to {1}; export the model again for an older version, or "
        "upgrade onnxruntime on every machine.",
    ),
    (
        re.compile(r"Opset (\d+) is under development.*domain (\S+) is till opset (\d+)", re.DOTALL),
        "it uses opset {0} of {1}, and this ONNX Runtime supports up to {2}; export the model again with that opset, "
        "or upgrade onnxruntime on every machine.",
    ),
    (
        re.compile(r"(?:Could not find an implementation for |Fatal error: |No Op registered for )([\w.:]+)"),
        "this ONNX Runtime does not have its operator {0}; export the model with standard operators.",
    ),
)


def _explained(report: str) -> str:
    """Returns a sentence that says why a model does not load."""
    for pattern, sentence in _REASONS:
        if found := pattern.search(report):
            return sentence.format(*found.groups())
    return (
        "ONNX Runtime cannot load this model, which may be damaged or made for another version; check it with "
        f"onnx.checker.check_model, or export it again. ONNX Runtime reports: {_shortened(report)}"
    )


def _shortened(report: object) -> str:
    """Returns a report of ONNX Runtime without the places in its source, on one line."""
    text = " ".join(_SOURCE_PLACE.sub("", str(report)).split())
    return text if len(text) <= _REPORT_CHARACTERS else f"{text[:_REPORT_CHARACTERS]}..."


def _refuse_maps(nodes: Any, tensors: Sequence[TensorSpec], path: Path) -> None:
    """Refuses a model whose probabilities are maps from labels to numbers, which are not tensors.

    Raises:
        ModelLoadError: no output holds real numbers, and one holds maps; says how to export the model.
    """
    maps = [node.name for node in nodes if node.type.startswith("seq(map(")]
    if maps and not any(DATATYPES[spec.datatype].kind == "f" for spec in tensors):
        raise ModelLoadError(
            f"{path}: its output '{maps[0]}' is a list of maps (ZipMap), not a tensor of probabilities; export the "
            "model again without ZipMap: options={'zipmap': False} for skl2onnx, zipmap=False for onnxmltools."
        )


def _absence(ort: ModuleType, providers: tuple[str, ...]) -> str:
    """Returns the end of a sentence that names the absent providers; "" if all are available."""
    available = ort.get_available_providers()
    absent = [provider for provider in providers if provider not in available]
    if providers and not absent:
        return ""
    return (
        f"{', '.join(absent) or 'no execution provider'}, but this onnxruntime has: {', '.join(available)}; "
        "install a build that has it, or name one of these."
    )


def _options(ort: ModuleType, threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _LOG_NO_ERRORS
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # Spinning threads save microseconds, but occupy a whole core.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Weights live as long as the session: outside the arena they take their exact size, not the next power of two.
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    return options


def _specs(nodes: Any) -> list[TensorSpec]:
    return [
        TensorSpec(
            node.name,
            _INPUT_DATATYPES[node.type],
            tuple(size if isinstance(size, int) else -1 for size in node.shape),
        )
        for node in nodes
    ]


def external_data(model: bytes) -> str | None:
    """Returns the other file in which a tensor of a serialised ONNX ModelProto has its data; None without one.

    A bundle's digest covers the bytes of the model; it would not cover weights in a second file, whose path could lead
    anywhere. ONNX Runtime cannot report them, and the `onnx` package is too large for a device.

    Raises:
        ValueError: not a ModelProto.
    """
    from firstline_core.runtime.onnx_file import messages, parse_model, text_of  # 2 MB: only for ONNX

    for each in messages(parse_model(model)):
        if each.DESCRIPTOR.name == "TensorProto" and each.data_location == each.EXTERNAL:
            return next((text_of(entry.value) for entry in each.external_data if entry.key == "location"), "")
    return None
