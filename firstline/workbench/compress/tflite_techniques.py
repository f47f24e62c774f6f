"""Converts a TFLite model to other number formats by `ai-edge-quantizer`. The only module that imports it.

This module quantises all operators of a kind together. `onnx_techniques.py` can leave out single sensitive operators.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from firstline_core.errors import ConfigError
from firstline_core.types import Array

LIBRARIES = ("ai-edge-quantizer", "ai-edge-litert")
"""Packages that make the files."""
_SIGNATURE = "serving_default"
_BUFFER_ALIGNMENT_BYTES = 16
"""Required by the schema (`force_align: 16` on Buffer.data), but missing in the generated writer."""


def prepared(source: Path, out: Path) -> None:
    """Prepares a model: adds the signature that the quantiser calibrates by if an older converter wrote none.

    Raises:
        ConfigError: the quantiser is not installed, or cannot read the model.
    """
    if find_spec("ai_edge_quantizer") is None:
        raise ConfigError("TFLite models are compressed with ai-edge-quantizer: pip install 'firstline[compress]'.")
    from ai_edge_quantizer.utils.tfl_flatbuffer_utils import read_model

    try:
        model = read_model(source)
        if not model.signatureDefs:
            model.signatureDefs = [_signature(model)]
            out.write_bytes(_written(model))
        else:
            out.write_bytes(source.read_bytes())
    except Exception as error:
        raise ConfigError(f"{source.name} cannot be made ready for quantising: {error}") from error


def static_int8(source: Path, rows: Array, out: Path) -> None:
    """Quantises weights to int8 by channel, and activations to int8 by their smallest and largest values.

    The quantiser's default, a moving average of ranges, clips the most confident answers, on which routing depends.

    Args:
        source: written by `prepared`.
        rows: (n, ...) calibration rows as the model takes them.
        out: the file to write.
    """
    from ai_edge_quantizer import recipe
    from ai_edge_quantizer.calibrator import Calibrator
    from ai_edge_quantizer.recipe_manager import RecipeManager
    from ai_edge_quantizer.utils.qsv_utils import min_max_update

    quantization, manager, content = recipe.static_wi8_ai8(), RecipeManager(), source.read_bytes()
    manager.load_quantization_recipe(quantization)
    with _quietly():
        calibrator = Calibrator(content, num_threads=1, qsv_update_func=min_max_update)
        signature, ports = next(iter(calibrator.get_signature_list().items()))
        calibrator.calibrate({signature: [{ports["inputs"][0]: row} for row in rows[:, np.newaxis]]}, manager)
        _quantised(content, quantization, out, calibrator.get_model_qsvs())


def dynamic_int8(source: Path, _rows: Array, out: Path) -> None:
    """Quantises weights to int8 by channel, with activation ranges found in every run."""
    from ai_edge_quantizer import recipe

    _quantised(source.read_bytes(), recipe.dynamic_wi8_afp32(), out)


def int8_weights(source: Path, _rows: Array, out: Path) -> None:
    """Stores weights as int8 by channel and dequantises them when they are used; activations stay FP32."""
    from ai_edge_quantizer import recipe

    _quantised(source.read_bytes(), recipe.weight_only_wi8_afp32(), out)


TECHNIQUES: dict[str, Callable[[Path, Array, Path], None]] = {
    "static-int8": static_int8,
    "dynamic-int8": dynamic_int8,
    "int8-weights": int8_weights,
}


def _quantised(content: bytes, quantization: Any, out: Path, seen: Any = None) -> None:
    from ai_edge_quantizer.quantizer import Quantizer

    with _quietly():
        found = Quantizer(content, quantization).quantize(seen, enable_progress_bar=False, enable_progress_report=False)
    out.write_bytes(bytes(found.quantized_model))


def _signature(model: Any) -> Any:
    """All inputs and outputs of the first graph, by the names of their tensors."""
    from ai_edge_litert.schema_py_generated import SignatureDefT, TensorMapT

    graph = model.subgraphs[0]
    inputs, outputs = (
        [TensorMapT(graph.tensors[index].name, int(index)) for index in indices]
        for indices in (graph.inputs, graph.outputs)
    )
    return SignatureDefT(inputs, outputs, _SIGNATURE)


def _written(model: Any) -> bytes:
    import flatbuffers

    class Aligned(flatbuffers.Builder):  # type: ignore[misc]  # the package has no types
        def StartVector(self, elemSize: int, numElems: int, alignment: int) -> int:  # noqa: N802, N803
            return int(super().StartVector(elemSize, numElems, max(alignment, _BUFFER_ALIGNMENT_BYTES)))

    builder = Aligned()
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


@contextmanager
def _quietly() -> Iterator[None]:
    """Silences its progress bar, and its warning that keeping all tensors is for debugging; calibration needs it."""
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
