"""TFLite models, through ai-edge-litert or tflite-runtime: the first that builds an interpreter.

The only file that imports either. A successful import is not enough: tflite-runtime with numpy 2 imports well and fails
to build an interpreter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from ctypes import CDLL
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from firstline_core.errors import InferenceError, InvalidTensorError, ModelLoadError
from firstline_core.runtime.base import Feeds, cast_feed, check_feeds, fixed_batch, run_in_batches
from firstline_core.storage.files import naming
from firstline_core.types import DATATYPES, Array, TensorSpec

_MODULES = {"litert": "ai_edge_litert.interpreter", "tflite-runtime": "tflite_runtime.interpreter"}
# tflite-runtime reads past the end of a file that is not a FlatBuffer, so the file's head is checked first: the offset
# of the root table (4 bytes) and the identifier (https://flatbuffers.dev/internals/).
_FILE_IDENTIFIER = b"TFL3"
_CPU = "cpu"
# Delegates that are shared libraries, with their vendors' file names.
_DELEGATES = {
    "edgetpu": "libedgetpu.so.1",
    "vx": "libvx_delegate.so",
    "ethosu": "libethosu_delegate.so",
    "armnn": "libarmnnDelegate.so",
    "gpu": "libtensorflowlite_gpu_delegate.so",
    "qnn": "libQnnTFLiteDelegate.so",
}
_DATATYPE_OF = {dtype: name for name, dtype in DATATYPES.items() if name != "BYTES"}


@dataclass(frozen=True, slots=True)
class _Port:
    """One input or output: its index in the interpreter, and the scaling of its integers.

    real = (stored - zero_point) * scale
    (https://ai.google.dev/edge/litert/conversion/tensorflow/quantization/quantization_spec); without a `scale`, the
    stored values are the real ones.
    """

    spec: TensorSpec
    index: int
    dtype: np.dtype[Any]
    scale: np.float32 | None
    zero_point: np.float32

    @property
    def range(self) -> tuple[float, float] | None:
        """Returns the smallest and the largest real value that can be stored."""
        if self.scale is None:
            return None
        limits = np.iinfo(self.dtype)
        low, high = ((limit - float(self.zero_point)) * float(self.scale) for limit in (limits.min, limits.max))
        return low, high

    def store(self, array: Array) -> Array:
        if self.scale is None:
            return cast_feed(self.spec.name, array, self.dtype)
        if array.dtype.kind not in "fiub":
            raise InvalidTensorError(f"Model input '{self.spec.name}' takes FP32, but was fed {array.dtype}.")
        with np.errstate(over="ignore"):  # reported below
            stored = np.divide(array, self.scale, dtype=np.float32)
            stored += self.zero_point
        if not np.isfinite(stored).all():
            raise InvalidTensorError(
                f"Model input '{self.spec.name}' was fed NaN, infinity or more than FP32 can hold; send finite numbers."
            )
        limits = np.iinfo(self.dtype)
        np.rint(stored, out=stored)
        np.clip(stored, limits.min, limits.max, out=stored)
        return stored.astype(self.dtype)

    def real(self, stored: Array) -> Array:
        if self.scale is None:
            return stored
        values: Array = (stored.astype(np.float32) - self.zero_point) * self.scale
        return values


def delegates() -> tuple[str, ...]:
    """Returns "cpu" and the delegates whose libraries are installed; none without an interpreter."""
    if not any(_module(module) for module in _MODULES.values()):
        return ()
    return (_CPU, *(name for name, library in _DELEGATES.items() if _is_there(library)))


def run_alone(path: Path, delegate: str, feed: Array) -> Array:
    """Runs a model with one input through one delegate.

    Args:
        path: of the model.
        delegate: of `delegates`.
        feed: the input.

    Returns:
        The first output.

    Raises:
        ModelLoadError: no interpreter, no such delegate, or it supports no operator of the model.
        InferenceError: the run failed.
    """
    module = next(filter(None, map(_module, _MODULES.values())), None)
    if module is None:
        raise ModelLoadError("No TFLite interpreter can be imported.")
    try:
        loaded = [] if delegate == _CPU else [module.load_delegate(_DELEGATES[delegate])]
        interpreter = module.Interpreter(model_path=str(path), num_threads=1, experimental_delegates=loaded)
        interpreter.allocate_tensors()
    except (KeyError, OSError, RuntimeError, ValueError) as error:
        raise ModelLoadError(f"It does not take the trial model: {error}") from error
    # Delegated operators become one operator of this name; the interpreter reports nothing if there are none.
    if loaded and not any(operator["op_name"] == "DELEGATE" for operator in interpreter._get_ops_details()):
        raise ModelLoadError("It takes no operator of the trial model, which the processor would run instead.")
    try:
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], feed)
        interpreter.invoke()
        found: Array = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    except (RuntimeError, ValueError) as error:
        raise InferenceError(f"It took the trial model, and failed to run it: {error}") from error
    return found


def operator_names(path: Path) -> tuple[str, ...]:
    """Returns the kinds of a model's operators, in order; none if no interpreter loads it.

    The method is private to the interpreter, and the only one that lists them.
    """
    try:
        interpreter, _ = _build(path.read_bytes(), path, 1)
        return tuple(str(operator["op_name"]) for operator in interpreter._get_ops_details())
    except (OSError, ModelLoadError):
        return ()


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


def _is_there(library: str) -> bool:
    try:
        CDLL(library)
    except OSError as error:
        return "cannot open shared object file" not in str(error)  # other errors appear when it is used
    return True


class LiteRtRuntime:
    """A `Runtime` over a TFLite interpreter, one run at a time: interpreters are not thread-safe.

    Variables are reset before each invocation. Batches run row by row: measurements showed no gain from resizing the
    input to the batch on convolutional models, and models with a fixed batch refuse it.
    """

    def __init__(self, path: Path, *, threads: int) -> None:
        """Loads the model.

        Args:
            path: a .tflite file.
            threads: that one run may use; 0 for the interpreter's default.

        Raises:
            ModelLoadError: no installed interpreter loads the file.
        """
        with naming(path, refusal=ModelLoadError):
            model = path.read_bytes()
        if model[4:8] != _FILE_IDENTIFIER or int.from_bytes(model[:4], "little") >= len(model):
            raise ModelLoadError(f"{path} is not a TFLite model, or it is damaged.")
        self._lock = threading.Lock()
        self._interpreter, self.provider = _build(model, path, threads)
        if len(signatures := self._interpreter.get_signature_list()) > 1:  # the interpreter would run the first graph
            raise ModelLoadError(
                f"{path}: the model has the signatures {', '.join(map(repr, signatures))}; export it with one of them."
            )
        self._inputs = [_port(detail, path) for detail in self._interpreter.get_input_details()]
        self._outputs = [_port(detail, path) for detail in self._interpreter.get_output_details()]
        self.inputs = tuple(port.spec for port in self._inputs)
        self.outputs = tuple(port.spec for port in self._outputs)
        self.ranges: Mapping[str, tuple[float, float]] = {
            port.spec.name: port.range for port in self._inputs if port.range is not None
        }
        self._batch = fixed_batch(self.inputs, self.outputs, path) or 1

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        check_feeds(feeds, self.inputs)
        stored = {port.spec.name: port.store(feeds[port.spec.name]) for port in self._inputs}
        with self._lock:
            found = run_in_batches(stored, self._batch, self._invoke)
        return {port.spec.name: port.real(found[port.spec.name]) for port in self._outputs}

    def _invoke(self, feeds: Feeds) -> dict[str, Array]:
        interpreter = self._interpreter
        if interpreter is None:
            raise InferenceError("The model was closed; load it again.")
        try:
            # Otherwise variables, such as the state of an LSTM, carry one request's data into the answer to the next.
            interpreter.reset_all_variables()
            for port in self._inputs:
                interpreter.set_tensor(port.index, feeds[port.spec.name])
            interpreter.invoke()
            # get_tensor copies, so nothing refers to memory that the next run overwrites.
            return {port.spec.name: interpreter.get_tensor(port.index) for port in self._outputs}
        except (RuntimeError, ValueError) as error:
            raise InferenceError(f"The TFLite interpreter failed: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._interpreter = None


def _build(model: bytes, path: Path, threads: int) -> tuple[Any, str]:
    """Returns an interpreter with allocated tensors, and the name of its package.

    The interpreter's own log ("INFO: Created TensorFlow Lite XNNPACK delegate") goes to file descriptor 2. It cannot be
    switched off, and redirecting the descriptor would lose the message of an interpreter that aborts.
    """
    causes = []
    for name, module in _MODULES.items():
        try:
            create: Callable[..., Any] = import_module(module).Interpreter
            interpreter = create(model_content=model, num_threads=threads or None)
            interpreter.allocate_tensors()
        except (ImportError, AttributeError, RuntimeError, ValueError) as error:
            causes.append(f"{name}: {error}")
        else:
            return interpreter, f"tflite/{name}"
    raise ModelLoadError(
        f"{path}: no TFLite interpreter loads this model ({'; '.join(causes)}); "
        "where one is missing: pip install 'firstline[litert]'."
    )


def _port(detail: Mapping[str, Any], path: Path) -> _Port:
    dtype = np.dtype(detail["dtype"])
    name, quantization = str(detail["name"]), detail["quantization_parameters"]
    if dtype not in _DATATYPE_OF:
        raise ModelLoadError(f"{path}: '{name}' has dtype {dtype}; inputs and outputs must be numbers.")
    scales = quantization["scales"]
    if len(scales) > 1:
        raise ModelLoadError(f"{path}: '{name}' is quantised by channel; inputs and outputs need one scale.")
    scaled = len(scales) == 1 and dtype.kind in "iu" and scales[0] > 0
    shape = tuple(int(size) for size in detail["shape"])
    # Free sizes are 1 in `shape`; the batch size stays as allocated.
    signature = detail.get("shape_signature", shape)
    free = tuple(int(size) for size in signature) if len(signature) == len(shape) else shape
    if any(size < 1 for size in (*shape, *map(abs, free))) or any(size < 0 for size in free[1:]):
        raise ModelLoadError(f"{path}: '{name}' has free sizes {list(free)}; only the first may be free.")
    return _Port(
        spec=TensorSpec(name, "FP32" if scaled else _DATATYPE_OF[dtype], shape),
        index=int(detail["index"]),
        dtype=dtype,
        scale=np.float32(scales[0]) if scaled else None,
        zero_point=np.float32(quantization["zero_points"][0]) if scaled else np.float32(0),
    )
