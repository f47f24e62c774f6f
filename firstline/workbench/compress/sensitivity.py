"""Which operators suffer from being quantised, found by quantising each alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from firstline.workbench.compress.inside import answered
from firstline.workbench.compress.techniques import static_int8
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.ports import pick_port
from firstline_core.runtime.select import CPU
from firstline_core.types import Array

DISAGREES = 0.01
"""Share of the rows for which the quantised model may name another class before operators are left out."""
MOST_EXCLUDED = 0.25
_CALIBRATES_EACH = 16


def excluded(
    source: Path,
    nodes: Sequence[str],
    calibration: Array,
    rows: Array,
    folder: Path,
    *,
    output: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[str, ...]:
    """The fewest operators to leave in FP32, the most sensitive first: none, one, two, four, ... to a quarter.

    Nothing is tried where the model quantised whole says the same class on all but a hundredth of the rows.

    Args:
        source: of `techniques.prepared`.
        nodes: that may be left out.
        calibration: (n, ...) rows that calibrate.
        rows: (m, ...) others, on which the models' answers are compared.
        folder: for files on the way.
        output: of the model that says the class; "" where it has one.
        progress: told how many operators were tried, of how many.

    Returns:
        Names of nodes; where even a quarter does not do, the number that disagrees least.
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
    """(n, classes) as the model's output has them."""
    with closing(OnnxRuntime(file, providers=(CPU,), threads=1)) as runtime:
        name = pick_port(runtime.outputs, output, f"Model {file.name}", "output").name
        return answered(runtime, rows)[name].reshape(len(rows), -1)
