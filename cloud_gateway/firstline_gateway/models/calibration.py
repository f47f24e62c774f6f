"""How long batches of a model take, measured when it is loaded: before the first request there is nothing to guess."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from firstline_core.bundle.loading import LoadedModel
from firstline_core.bundle.manifest import Model
from firstline_core.errors import FirstlineError
from firstline_core.processing.steps import InputSpec
from firstline_core.processing.trial import trial_input
from firstline_core.runtime.batch_times import GAIN
from firstline_core.types import Tensor

LARGEST_ROWS = 64
BUDGET_S = 0.1
"""At the end of it the size that is measured is the last: a slow model shows soon that it gains nothing."""
_RUNS = 5


def measure(model: LoadedModel, spec: InputSpec, full: Model) -> dict[int, float]:
    """Seconds that batches take, by their rows: 1, 2, 4, ... up to the size from which on a row gets no cheaper.

    Args:
        model: loaded.
        spec: the bundle's input.
        full: the model's declaration, for its preprocessing.

    Returns:
        Nothing where what a row takes depends on the row (free sizes; encoded images, which are decoded first), or
        where the model does not take several rows at once.
    """
    tensor = trial_input(spec, full.preprocess, model.input.shape)
    if tensor is None or spec.datatype == "BYTES":
        return {}

    def run(rows: int) -> None:
        model.compute(model.prepare(Tensor(tensor.name, np.repeat(tensor.array, rows, axis=0))))

    try:
        return calibrate(run)
    except FirstlineError:  # an input of zeros may be none of its own; the first requests tell
        return {}


def calibrate(run: Callable[[int], object], now_s: Callable[[], float] = time.perf_counter) -> dict[int, float]:
    """The least that a batch takes of a few runs, by its rows; see `measure`.

    Args:
        run: runs a batch of so many rows.
        now_s: a monotonic clock.
    """
    found: dict[int, float] = {}
    end_s, rows = now_s() + BUDGET_S, 1
    run(rows)  # the first run of all takes what is taken once
    while rows <= LARGEST_ROWS:
        found[rows] = _least_s(run, rows, now_s, end_s)
        gains = rows == 1 or found[rows // 2] / (rows // 2) >= GAIN * found[rows] / rows
        if not gains or now_s() >= end_s:
            break
        rows *= 2
    return found


def _least_s(run: Callable[[int], object], rows: int, now_s: Callable[[], float], end_s: float) -> float:
    least_s = float("inf")
    for _ in range(_RUNS):
        began_s = now_s()
        run(rows)
        ended_s = now_s()
        least_s = min(least_s, ended_s - began_s)
        if ended_s >= end_s:
            break
    return least_s
