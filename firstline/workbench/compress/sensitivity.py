"""Finds the operators that lose most by quantisation, by quantising each alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from firstline.workbench.compress.intermediate import run_rows
from firstline.workbench.compress.onnx_techniques import static_int8
from firstline_core.runtime.base import pick_port
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.select import CPU
from firstline_core.types import Array

DISAGREES = 0.01
"""Share of rows with another class up to which no operator is excluded."""
MOST_EXCLUDED = 0.25
_CALIBRATES_EACH = 16


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

    Nothing is tried if the fully quantised model gives the same class on all but a hundredth of the rows.

    Args:
        source: written by `onnx_techniques.prepared`.
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
        static_int8(source, tried, calibration, exclude=left_out)
        return float((_answers(tried, rows, output).argmax(axis=1) != wanted.argmax(axis=1)).mean())

    found: dict[int, float] = {0: disagreement(())}
    if found[0] <= DISAGREES or len(nodes) < 2:
        return ()
    harm = {}
    for done, node in enumerate(nodes, start=1):
        static_int8(source, tried, calibration[:_CALIBRATES_EACH], only=[node])
        harm[node] = float(np.square(_answers(tried, rows, output) - wanted).mean())
        progress(done, len(nodes))
    worst = sorted(nodes, key=lambda node: -harm[node])
    count = 1
    while count <= max(1, int(MOST_EXCLUDED * len(nodes))):
        found[count] = disagreement(worst[:count])
        if found[count] <= DISAGREES:
            return tuple(worst[:count])
        count *= 2
    return tuple(worst[: min(found, key=lambda count: (found[count], count))])


def _answers(file: Path, rows: Array, output: str) -> Array:
    """Returns (n, classes) as the model's output."""
    with closing(OnnxRuntime(file, providers=(CPU,), threads=1)) as runtime:
        name = pick_port(runtime.outputs, output, f"Model {file.name}", "output").name
        return run_rows(runtime, rows)[name].reshape(len(rows), -1)
