"""Converts an ONNX model to other number formats by ONNX Runtime's quantiser. The only module that imports it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from firstline_core.errors import ConfigError
from firstline_core.runtime.base import pick_port, run_in_batches
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.select import CPU
from firstline_core.types import Array

LIBRARIES = ("onnx", "onnxruntime")
"""Packages that make the files."""
QUANTISED = ("Conv", "Gemm", "MatMul")
"""Operators whose weights can be quantised."""
DISAGREES = 0.01
"""Share of rows with another class up to which no operator is excluded."""
MOST_EXCLUDED = 0.25
_CALIBRATES_EACH = 16
_BATCH_ROWS = 32


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


def static_int8(source: Path, rows: Array, out: Path, *, exclude: Sequence[str] = (), only: Sequence[str] = ()) -> None:
    """Quantises weights to int8 by channel, and activations to uint8 by their ranges on `rows`, as QDQ nodes.

    Args:
        source: written by `prepared`.
        rows: (n, ...) calibration rows as the model takes them.
        out: the file to write.
        exclude: nodes that stay in FP32.
        only: the nodes to quantise; empty for all.
    """
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.calibrate import CalibrationDataReader

    name = onnx.load(source, load_external_data=False).graph.input[0].name
    left = ({name: row} for row in rows[:, np.newaxis])

    class Rows(CalibrationDataReader):  # type: ignore[misc]  # the package has no types
        def get_next(self) -> dict[str, Array] | None:
            return next(left, None)

    with _quietly():
        quantize_static(
            str(source),
            str(out),
            Rows(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            reduce_range=True,  # the sums of 8 bits overflow on x86 without VNNI, so answers depended on the processor
            nodes_to_exclude=list(exclude),
            nodes_to_quantize=list(only),
        )


def dynamic_int8(source: Path, _rows: Array, out: Path) -> None:
    """Quantises weights to uint8, which the convolution kernels need, with activation ranges found in every run."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quietly():
        quantize_dynamic(str(source), str(out), weight_type=QuantType.QUInt8)


def fp16(source: Path, _rows: Array, out: Path) -> None:
    """Converts weights and activations to FP16; inputs and outputs stay FP32."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _quietly():
        onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), out)


def int8_weights(source: Path, _rows: Array, out: Path) -> None:
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


PLAIN: dict[str, Callable[[Path, Array, Path], None]] = {
    "dynamic-int8": dynamic_int8,
    "fp16": fp16,
    "int8-weights": int8_weights,
}
"""Techniques that need no data."""


def sensitive_nodes(
    source: Path,
    nodes: Sequence[str],
    calibration: Array,
    rows: Array,
    folder: Path,
    *,
    output: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[str, ...]:
    """Returns the fewest operators to keep in FP32, most sensitive first: none, one, two, four, ... up to a quarter.

    Nothing is tried if the fully quantised model gives the same class on all but a hundredth of the rows. Otherwise
    each operator is quantised alone.

    Args:
        source: written by `prepared`.
        nodes: that may be excluded.
        calibration: (n, ...) calibration rows.
        rows: (m, ...) other rows, on which answers are compared.
        folder: for temporary files.
        output: output with the class; "" if the model has one output.
        progress: receives the number of tried operators and their total.

    Returns:
        Names of nodes; if a quarter is not enough, the number with the smallest disagreement.
    """
    wanted, tried = _answers(source, rows, output), folder / "tried.onnx"

    def disagreement(left_out: Sequence[str]) -> float:
        static_int8(source, calibration, tried, exclude=left_out)
        return float((_answers(tried, rows, output).argmax(axis=1) != wanted.argmax(axis=1)).mean())

    found: dict[int, float] = {0: disagreement(())}
    if found[0] <= DISAGREES or len(nodes) < 2:
        return ()
    harm = {}
    for done, node in enumerate(nodes, start=1):
        static_int8(source, calibration[:_CALIBRATES_EACH], tried, only=[node])
        harm[node] = float(np.square(_answers(tried, rows, output) - wanted).mean())
        progress(done, len(nodes))
    worst, count = sorted(nodes, key=lambda node: -harm[node]), 1
    while count <= max(1, int(MOST_EXCLUDED * len(nodes))):
        found[count] = disagreement(worst[:count])
        if found[count] <= DISAGREES:
            return tuple(worst[:count])
        count *= 2
    return tuple(worst[: min(found, key=lambda count: (found[count], count))])


def _answers(file: Path, rows: Array, output: str) -> Array:
    """Returns (n, classes) as the model's output; in small batches, because intermediate tensors take gigabytes."""
    with closing(OnnxRuntime(file, providers=(CPU,), threads=1)) as runtime:
        name = pick_port(runtime.outputs, output, f"Model {file.name}", "output").name
        found = run_in_batches({runtime.inputs[0].name: rows}, min(_BATCH_ROWS, len(rows)), runtime.run)
    return found[name].reshape(len(rows), -1)


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


@contextmanager
def _quietly() -> Iterator[None]:
    """Silences the root logger, on which the quantiser recommends steps that `prepared` has made."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
