"""One batch through one model: prepare each request, run all rows together, hand each request its own.

A pure function of model and inputs, so that every engine, near or far, runs the same code.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate, zip_longest
from typing import NamedTuple, Protocol

import numpy as np

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import CapacityError, DeadlineExceededError, FirstlineError, InferenceError
from firstline_core.types import Array, Tensor
from firstline_gateway.executors.base import Outcome, Probabilities


class Predictor(Protocol):
    """The part of `firstline_core.bundle.loading.LoadedModel` that a batch needs."""

    def prepare(self, tensor: Tensor) -> Array: ...

    def run(self, rows: Array) -> Probabilities: ...


def run_batch(
    model: Predictor,
    inputs: Sequence[Tensor],
    max_rows: int,
    deadlines_s: Sequence[float | None] = (),
    clock: Clock = SYSTEM_CLOCK,
) -> list[Outcome]:
    """Runs the inputs of several requests.

    Requests whose prepared rows differ in shape or dtype run in groups of their own.

    Args:
        model: prepares and runs.
        inputs: one tensor for each request.
        max_rows: the most rows that the model sees at once; more run in several steps.
        deadlines_s: of each request, on `clock`. One that passes while the requests before it are prepared is
            not worth preparing any more.
        clock: see `deadlines_s`.

    Returns:
        One outcome for each request, in the order of `inputs`.
    """
    until_s = min([each for each in deadlines_s if each is not None], default=math.inf)
    if inputs and _are_alike(inputs) and (until_s == math.inf or clock.monotonic_s() < until_s):
        alike = _run_alike(model, inputs, max_rows, until_s, clock)
        if alike is not None:
            return alike
    prepared = prepare_batch(model.prepare, inputs, deadlines_s, clock)
    outcomes = prepared.outcomes
    for group in prepared.groups:
        outcomes |= _run_group(model, group, max_rows)
    return [outcomes[position] for position in range(len(inputs))]


def _are_alike(inputs: Sequence[Tensor]) -> bool:
    """Whether they are numbers of one shape, so that what is done to each row can be done to all at once."""
    name, array = inputs[0].name, inputs[0].array
    shape, dtype = array.shape[1:], array.dtype
    if dtype.hasobject or not array.ndim:
        return False
    for each in inputs[1:]:
        if each.array.shape[1:] != shape or each.array.dtype != dtype or each.name != name:
            return False
    return True


def _run_alike(
    model: Predictor, inputs: Sequence[Tensor], max_rows: int, until_s: float, clock: Clock
) -> list[Outcome] | None:
    """Prepares and runs all rows together; None where a request may be at fault, or late, so that each is looked at."""
    sizes = [len(tensor.array) for tensor in inputs]
    try:
        together = np.concatenate([tensor.array for tensor in inputs]) if len(inputs) > 1 else inputs[0].array
        rows = model.prepare(Tensor(inputs[0].name, together))
        late = until_s < math.inf and until_s <= clock.monotonic_s()
        if not all(sizes) or len(rows) != sum(sizes) or late:
            return None
        results = _run_rows(model, rows, max_rows)
    except (FirstlineError, MemoryError):
        return None
    if len(sizes) == 1:
        return [results]
    ends = accumulate(sizes)
    return [results[end - size : end] for size, end in zip(sizes, ends, strict=True)]


Group = list[tuple[int, Array]]
"""Requests that can run together: the place of each in its batch, and its rows."""


class Prepared(NamedTuple):
    """A batch whose requests are prepared: groups that can run, and the errors of the others."""

    groups: list[Group]
    outcomes: dict[int, Outcome]  # by the place in the batch


def prepare_batch(
    prepare: Callable[[Tensor], Array],
    inputs: Sequence[Tensor],
    deadlines_s: Sequence[float | None],
    clock: Clock,
) -> Prepared:
    """Prepares the inputs of several requests; see `run_batch`."""
    outcomes: dict[int, Outcome] = {}
    groups: dict[tuple[object, ...], Group] = defaultdict(list)
    for position, (tensor, deadline_s) in enumerate(zip_longest(inputs, deadlines_s)):
        if deadline_s is not None and deadline_s <= clock.monotonic_s():
            outcomes[position] = DeadlineExceededError(
                "The request's deadline passed while others of its batch were prepared; allow more time."
            )
            continue
        try:
            rows = prepare(tensor)
        except FirstlineError as error:
            outcomes[position] = error
        except MemoryError as error:
            outcomes[position] = _no_memory(error)
        else:
            groups[rows.shape[1:], rows.dtype].append((position, rows))
    return Prepared(list(groups.values()), outcomes)


def joined(group: Group) -> Array:
    """The rows of a group, one request after the other."""
    return group[0][1] if len(group) == 1 else np.concatenate([part for _, part in group])


def shared_out(group: Group, results: Probabilities) -> dict[int, Outcome]:
    """Each request's own rows of what came of `joined`."""
    outcomes: dict[int, Outcome] = {}
    start = 0
    for position, part in group:
        outcomes[position] = results[start : start + len(part)]
        start += len(part)
    return outcomes


def _run_group(model: Predictor, group: Group, max_rows: int) -> dict[int, Outcome]:
    try:
        return shared_out(group, _run_rows(model, joined(group), max_rows))
    except (FirstlineError, MemoryError) as error:
        if len(group) == 1:
            return {group[0][0]: _no_memory(error) if isinstance(error, MemoryError) else error}
        # One request's rows may be at fault: alone, the others still get their answers.
        outcomes: dict[int, Outcome] = {}
        for member in group:
            outcomes |= _run_group(model, [member], max_rows)
        return outcomes


def _no_memory(cause: MemoryError) -> FirstlineError:
    error = CapacityError("There is not enough memory for this request now; come back later, or send fewer rows.")
    error.__cause__ = cause
    return error


def _run_rows(model: Predictor, rows: Array, max_rows: int) -> Probabilities:
    if len(rows) <= max_rows:
        results = model.run(rows)
    else:
        results = np.concatenate([model.run(rows[start : start + max_rows]) for start in range(0, len(rows), max_rows)])
    if len(results) != len(rows):
        raise InferenceError(
            f"The model returned {len(results)} rows for {len(rows)}; its batch axis is not the first."
        )
    return results
