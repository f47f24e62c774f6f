"""What lies inside of an ONNX model: any of its tensors, for given rows."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.select import CPU
from firstline_core.types import Array


def opened(model: Any, names: Sequence[str]) -> Any:
    """The model with these tensors, in FP32, as its outputs."""
    from onnx import ModelProto, TensorProto, helper

    other = ModelProto()
    other.CopyFrom(model)
    del other.graph.output[:]
    other.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    return other


def outputs(model: Any, rows: Array, names: Sequence[str]) -> list[Array]:
    """These tensors, each of all rows."""
    from onnx import save

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "opened.onnx"
        save(opened(model, names), file)
        with closing(OnnxRuntime(file, providers=(CPU,), threads=1)) as runtime:
            found = runtime.run({runtime.inputs[0].name: rows})
    return [found[name] for name in names]
