"""Converts an ONNX model to other number formats by ONNX Runtime's quantiser. The only module that imports it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from firstline_core.errors import ConfigError
from firstline_core.types import Array

QUANTISED = ("Conv", "Gemm", "MatMul")
"""Operators whose weights can be quantised."""


LEAST_OPSET = 13
"""The first that has scales by channel (DequantizeLinear's axis)."""


def prepared(source: Path, out: Path) -> list[str]:
    """Prepares a model: infers shapes, folds constants, and names every node.

    An older opset is raised to the first that can be quantised by channel. Weights that a file lists among its inputs
    too, as old exporters did, are removed from the inputs.

    Returns:
        The names of the nodes that can be quantised.

    Raises:
        ConfigError: onnx is not installed, or the quantiser cannot read the model.
    """
    if find_spec("onnx") is None:
        raise ConfigError("Models are compressed with onnx: pip install 'firstline[compress]'.")
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    try:
        onnx.save(_current(onnx.load(source)), out)
        quant_pre_process(str(out), str(out), skip_symbolic_shape=True)
        model = onnx.load(out)
    except Exception as error:
        raise ConfigError(f"{source.name} cannot be made ready for quantising: {error}") from error
    for position, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{position}"
    onnx.save(model, out)
    return [node.name for node in model.graph.node if node.op_type in QUANTISED]


def static_int8(source: Path, out: Path, rows: Array, *, exclude: Sequence[str] = (), only: Sequence[str] = ()) -> None:
    """Quantises weights to int8 by channel, and activations to uint8 by their ranges on `rows`, as QDQ nodes.

    Args:
        source: written by `prepared`.
        out: the file to write.
        rows: (n, ...) calibration rows as the model takes them.
        exclude: nodes that stay in FP32.
        only: the nodes to quantise; empty for all.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.calibrate import CalibrationDataReader

    class Rows(CalibrationDataReader):  # type: ignore[misc]  # the package has no types
        def __init__(self) -> None:
            self.left: Iterator[dict[str, Array]] = ({_input(source): rows[i : i + 1]} for i in range(len(rows)))

        def get_next(self) -> dict[str, Array] | None:
            return next(self.left, None)

    with _quietly():
        quantize_static(
            str(source),
            str(out),
            Rows(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=list(exclude),
            nodes_to_quantize=list(only),
        )


def dynamic_int8(source: Path, out: Path) -> None:
    """Quantises weights to uint8, which the convolution kernels need, with activation ranges found in every run."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quietly():
        quantize_dynamic(str(source), str(out), weight_type=QuantType.QUInt8)


def fp16(source: Path, out: Path) -> None:
    """Converts weights and activations to FP16; inputs and outputs stay FP32."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _quietly():
        onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), out)


def int8_weights(source: Path, out: Path) -> None:
    """Stores weights as int8 by channel, symmetric, and dequantises them when they are used; activations stay FP32."""
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(source)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    turned: dict[str, Any] = {}
    for node in model.graph.node:
        if node.op_type not in QUANTISED or node.input[1] not in constants or node.input[1] in turned:
            continue
        name = node.input[1]
        weights = numpy_helper.to_array(constants[name])
        by_column = node.op_type == "MatMul" or (
            node.op_type == "Gemm" and not any(a.name == "transB" and a.i for a in node.attribute)
        )
        axis = weights.ndim - 1 if by_column else 0
        others = tuple(at for at in range(weights.ndim) if at != axis)
        scales = np.maximum(np.abs(weights).max(axis=others), 1e-12) / 127
        shaped = scales.reshape([-1 if at == axis else 1 for at in range(weights.ndim)])
        stored = np.clip(np.rint(weights / shaped), -127, 127).astype(np.int8)
        constants[name].CopyFrom(numpy_helper.from_array(stored, f"{name}_int8"))
        model.graph.initializer.append(numpy_helper.from_array(scales.astype(np.float32), f"{name}_scale"))
        turned[name] = helper.make_node(
            "DequantizeLinear", [f"{name}_int8", f"{name}_scale"], [name], name=f"{name}_turned_back", axis=axis
        )
    nodes = [*turned.values(), *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    del model.graph.value_info[:]
    onnx.save(model, out)


PLAIN: dict[str, Callable[[Path, Path], None]] = {
    "dynamic-int8": dynamic_int8,
    "fp16": fp16,
    "int8-weights": int8_weights,
}
"""Techniques that need no data."""


def libraries() -> dict[str, str]:
    """Returns the versions of the libraries that make the files."""
    return {name: version(name) for name in ("onnx", "onnxruntime")}


def _current(model: Any) -> Any:
    """The model in an opset that the quantiser supports, without weights among its inputs."""
    from onnx import version_converter

    if next(opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")) < LEAST_OPSET:
        with suppress(Exception):  # an operator that it does not know: some techniques take the older opset too
            model = version_converter.convert_version(model, LEAST_OPSET)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [given for given in model.graph.input if given.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)  # before, weights had to be among the inputs
    return model


def _input(source: Path) -> str:
    import onnx

    return str(onnx.load(source, load_external_data=False).graph.input[0].name)


@contextmanager
def _quietly() -> Iterator[None]:
    """Silences the root logger, on which the quantiser recommends steps that `prepared` has made."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
