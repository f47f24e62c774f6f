"""Intermediate tensors of an ONNX model, for given rows."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from firstline_core.runtime.base import Runtime, run_in_batches
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.select import CPU
from firstline_core.types import Array

BATCH_ROWS = 32


def with_outputs(model: Any, names: Sequence[str]) -> Any:
    """Returns the model with these FP32 tensors as its outputs."""
    from onnx import ModelProto, TensorProto, helper

    other = ModelProto()
    other.CopyFrom(model)
    del other.graph.output[:]
    other.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    return other


def run_rows(runtime: Runtime, rows: Array) -> dict[str, Array]:
    """Runs all rows in small batches: for hundreds of rows the intermediate tensors take gigabytes."""
    return run_in_batches({runtime.inputs[0].name: rows}, min(BATCH_ROWS, len(rows)), runtime.run)


def outputs(model: Any, rows: Array, names: Sequence[str]) -> list[Array]:
    """Returns these tensors, each of all rows."""
    from onnx import save

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "opened.onnx"
        save(with_outputs(model, names), file)
        with closing(OnnxRuntime(file, providers=(CPU,), threads=1)) as runtime:
            found = run_rows(runtime, rows)
    return [found[name] for name in names]
