"""ONNX Runtime. The only file that imports onnxruntime, and only when a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from firstline_core.errors import ConfigError, InferenceError, ModelLoadError
from firstline_core.protocol.protobuf import fields
from firstline_core.runtime.base import Feeds, cast_feed, check_feeds, run_in_batches
from firstline_core.types import DATATYPES, Array, TensorSpec

_CPU = "CPUExecutionProvider"
_LOG_ERRORS_ONLY = 3

_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
}


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
    failures, options = _failures(ort), _options(ort, 1)
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

    def __init__(self, path: Path, *, providers: tuple[str, ...], threads: int, trace: Path | None = None) -> None:
        """Loads the model and checks that the requested providers really execute it.

        Args:
            path: a single-file ONNX model; weights in a second file are refused.
            providers: execution providers by name, preferred first.
            threads: that one run may use; 0 for ONNX Runtime's default (one per core).
            trace: prefix of a file with the duration of each operator, see `end_trace`; None for no trace.

        Raises:
            ModelLoadError: onnxruntime is missing, a provider is absent, or it cannot run the file.
        """
        ort = _onnxruntime()
        self._failures = _failures(ort)
        model = _read(path)
        if problem := _absence(ort, providers):
            raise ModelLoadError(f"{path}: the configuration names {problem}")
        options = _options(ort, threads)
        if trace is not None:
            options.enable_profiling, options.profile_file_prefix = True, str(trace)
        self._session: Any = self._open(ort, model, path, providers, options)
        self.provider: str = self._session.get_providers()[0]
        nodes = self._session.get_inputs()
        if unreadable := [f"'{node.name}' ({node.type})" for node in nodes if node.type not in _DATATYPES]:
            raise ModelLoadError(f"{path}: inputs must be tensors of numbers; these are not: {', '.join(unreadable)}.")
        self.inputs = tuple(_specs(nodes))
        # Sequences and maps (scikit-learn's ZipMap) are not tensors and cannot be sent.
        self.outputs = tuple(_specs(node for node in self._session.get_outputs() if node.type in _DATATYPES))
        if not self.inputs or not self.outputs or any(not spec.shape for spec in self.inputs):
            raise ModelLoadError(f"{path}: a model needs inputs with rows on the first axis, and a tensor as output.")
        self._output_names = [spec.name for spec in self.outputs]
        self._dtypes = {spec.name: DATATYPES[spec.datatype] for spec in self.inputs}
        self._batch = _fixed_batch(self.inputs, path)

    def _open(self, ort: ModuleType, model: bytes, path: Path, providers: tuple[str, ...], options: Any) -> Any:
        try:
            session = ort.InferenceSession(model, options, providers=list(providers))
        except self._failures as error:
            raise ModelLoadError(f"{path}: ONNX Runtime cannot load this model: {error}") from error
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
        ready = {name: cast_feed(name, feeds[name], dtype) for name, dtype in self._dtypes.items()}
        return self._run(ready) if self._batch is None else run_in_batches(ready, self._batch, self._run)

    def _run(self, feeds: Feeds) -> dict[str, Array]:
        session = self._session
        if session is None:
            raise InferenceError("The model was closed; load it again.")
        try:
            outputs = session.run(self._output_names, feeds)
        except self._failures as error:
            raise InferenceError(f"ONNX Runtime failed: {error}") from error
        return dict(zip(self._output_names, outputs, strict=True))

    def end_trace(self) -> Path:
        """Ends the requested trace and returns its path; `operators` reads it."""
        return Path(self._session.end_profiling())

    def close(self) -> None:
        self._session = None


def _onnxruntime() -> ModuleType:
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelLoadError(
            f"ONNX models need onnxruntime, which cannot be imported ({error}): pip install 'firstline[edge]', or on a "
            "Jetson NVIDIA's onnxruntime-gpu."
        ) from error
    module: ModuleType = onnxruntime
    return module


def _failures(ort: ModuleType) -> tuple[type[Exception], ...]:
    """ONNX Runtime's exceptions share no base class, so they are collected."""
    state = ort.capi.onnxruntime_pybind11_state
    own = {found for found in vars(state).values() if isinstance(found, type) and issubclass(found, Exception)}
    return (*own, RuntimeError, ValueError, TypeError)


def _read(path: Path) -> bytes:
    try:
        model = path.read_bytes()
        external = has_external_data(model)
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise ModelLoadError(f"{path} is not an ONNX model: {error}.") from error
    if external:
        raise ModelLoadError(
            f"{path} keeps weights in another file, which the bundle's digest does not cover; save the model as one "
            "file (onnx.save with save_as_external_data=False)."
        )
    return model


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
    options.log_severity_level = _LOG_ERRORS_ONLY
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
            _DATATYPES[node.type],
            tuple(size if isinstance(size, int) else -1 for size in node.shape),
        )
        for node in nodes
    ]


def _fixed_batch(inputs: tuple[TensorSpec, ...], path: Path) -> int | None:
    sizes = {spec.shape[0] for spec in inputs if spec.shape[0] > 0}
    if len(sizes) > 1:
        raise ModelLoadError(f"{path}: the inputs have fixed batch sizes that differ: {sorted(sizes)}.")
    return sizes.pop() if sizes else None


# Which fields of onnx.proto lead to a TensorProto: {message: {field number: message}}.
_PATHS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_TENSOR_DATA_LOCATION = 14
_EXTERNAL = 1


def has_external_data(model: bytes) -> bool:
    """Returns whether any tensor of a serialised ONNX ModelProto has its data in another file.

    A bundle's digest covers the bytes of the model; it would not cover weights in a second file, whose path could lead
    anywhere. ONNX Runtime cannot report them, and the `onnx` package is too large for a device.

    Raises:
        ValueError: not protobuf.
    """
    found = [("model", memoryview(model))]
    while found:
        message, data = found.pop()
        for number, value in fields(data):
            if message == "tensor":
                if number == _TENSOR_DATA_LOCATION and value == _EXTERNAL:
                    return True
            elif (inner := _PATHS[message].get(number)) is not None and isinstance(value, memoryview):
                found.append((inner, value))
    return False
