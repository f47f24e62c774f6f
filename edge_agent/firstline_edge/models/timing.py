"""Measuring a model: an input of the right form, with no meaning, and the time that a row of it takes."""

from __future__ import annotations

import time
from collections.abc import Callable

from firstline_core.bundle.loading import LoadedModel
from firstline_core.bundle.manifest import Manifest
from firstline_core.processing.trial import typical_row
from firstline_core.types import InferRequest, Tensor

_WARM_UP_RUNS = 2  # the first runs allocate and compile


def quickest_ms(
    manifest: Manifest, loaded: LoadedModel, run: Callable[[Tensor], object], runs: int
) -> tuple[float, int] | None:
    """Milliseconds of one row, and that row's bytes; None where no row is typical.

    The shortest run counts, as with `timeit`: longer runs were delayed by other work of the machine.

    Args:
        manifest: of the bundle.
        loaded: its model, whose input is taken.
        run: the call to measure.
        runs: of which the quickest counts.
    """
    tensor = sample_input(manifest, loaded)
    if tensor is None:
        return None
    spent_ms: list[float] = []
    for _ in range(_WARM_UP_RUNS + runs):
        started_s = time.perf_counter()
        run(tensor)
        spent_ms.append((time.perf_counter() - started_s) * 1000)
    return min(spent_ms[_WARM_UP_RUNS:]), InferRequest(manifest.name, (tensor,), "").size_bytes


def sample_input(manifest: Manifest, loaded: LoadedModel) -> Tensor | None:
    """One row as clients send it; None where the sizes are free, so that no size is typical."""
    return typical_row(manifest.input, loaded.model.preprocess, loaded.input.shape)
