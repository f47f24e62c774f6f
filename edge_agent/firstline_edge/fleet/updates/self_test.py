"""Whether a bundle answers on this device as it did where it was made, and not much more slowly than what runs."""

from __future__ import annotations

import math

import numpy as np

from firstline_core.bundle.golden import deviation, read_golden, tensor_of
from firstline_core.errors import FirstlineError, IntegrityError, SelfTestError
from firstline_core.processing.steps import InputSpec
from firstline_edge.models.held import HeldModel

SLOWDOWN_LIMIT = 10.0
"""So many times as long as what runs may a row take, once it takes more than `QUICK_MS`."""
QUICK_MS = 20.0


def self_test(held: HeldModel, running: HeldModel | None) -> None:
    """Returns where it passes; blocks for as long as some rows take.

    Args:
        held: loaded, and not yet before requests.
        running: the model that answers now; None if there is none.

    Raises:
        SelfTestError: it does not.
    """
    name = f"{held.manifest.name} version {held.version}"
    edge = held.edge
    if edge is None:
        if held.manifest.edge:
            raise SelfTestError(f"{name} does not run here: {held.problem}")
        return
    if running is not None and not _takes(held.manifest.input, running.manifest.input):
        raise SelfTestError(
            f"{name} takes {_said(held.manifest.input)}, and what runs takes {_said(running.manifest.input)}: all that "
            "applications send would be refused. Give a bundle that takes something else another name."
        )
    golden = held.manifest.golden
    if golden is not None:
        try:
            answers = read_golden(held.bundle, golden.artefact)
            rows = edge.run(tensor_of(answers, held.manifest.input))
        except IntegrityError:
            raise
        except FirstlineError as error:
            raise SelfTestError(f"{name} fails on its golden inputs: {error.message}") from error
        variant = edge.loaded.model.id
        found = deviation(answers, variant, np.stack([row.probabilities for row in rows]))
        if found is not None and found > golden.tolerance:
            raise SelfTestError(
                f"{name} ({variant}) answers its golden inputs otherwise than where it was made: a probability differs "
                f"by {found:.3g}, and {golden.tolerance:g} is allowed."
            )
    before_ms = running.edge.row_ms if running is not None and running.edge is not None else math.inf
    if edge.row_ms > QUICK_MS and edge.row_ms > SLOWDOWN_LIMIT * before_ms:
        raise SelfTestError(
            f"{name} takes {edge.row_ms:.0f} ms a row on this device, and what runs takes {before_ms:.1f} ms; at most "
            f"{SLOWDOWN_LIMIT:g} times as long is allowed."
        )


def _takes(now: InputSpec, before: InputSpec) -> bool:
    """Returns whether callers of the running bundle can call this one unchanged."""
    sizes = len(now.shape) == len(before.shape) and all(
        size in (-1, had) for size, had in zip(now.shape, before.shape, strict=True)
    )
    return (now.name, now.datatype) == (before.name, before.datatype) and sizes


def _said(spec: InputSpec) -> str:
    return f"'{spec.name}' {spec.datatype} {list(spec.shape)}"
