"""The interface of executors, their reports, and the run of one batch through one model, which all of them use."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import CapacityError, DeadlineExceededError, FirstlineError, InferenceError
from firstline_core.runtime.batch_times import LoopTimes
from firstline_core.telemetry.statistics import OverheadTimes
from firstline_core.types import Array, ModelKey, Tensor
from firstline_gateway.models.repository import ServedModel

Probabilities = NDArray[np.float32]
Outcome = Probabilities | FirstlineError
"""The outcome of one request of a batch: (rows, classes) in the order of its rows, or its own error."""


@dataclass(frozen=True, slots=True)
class ModelOnExecutor:
    """The state of one model on one of several executors.

    Args:
        pace: present batch times as a multiple of the usual ones there.
        problem: why it gets none of its batches, as a sentence, or "".
        energy_source: of the energy of its batches: "measured", "modelled" or "absent".
        oldest_s: how long its oldest batch has been under way; 0 if there is none.
        mind: a warning for the operator, as a sentence, or "".
    """

    pace: float
    problem: str
    energy_source: str
    oldest_s: float
    mind: str


@dataclass(frozen=True, slots=True)
class ExecutorReport:
    """The state of one of several executors.

    Args:
        name: in the settings.
        problem: why it gets no batches at all, as a sentence, or "".
        slots: batches that it is worth giving at the same moment.
        under_way: batches that it has.
        batches: by outcome; see `ExecutionReport.batches`.
        models: that it runs.
        energy_j: of its batches, as far as it is known.
    """

    name: str
    problem: str
    slots: int
    under_way: int
    batches: Mapping[str, int]
    models: Mapping[ModelKey, ModelOnExecutor]
    energy_j: float

    @property
    def energy_sources(self) -> frozenset[str]:
        """The sources of its energy."""
        return frozenset(each.energy_source for each in self.models.values())


@dataclass(frozen=True, slots=True)
class ExecutionReport:
    """The counts of executors and their servers, for the metrics.

    Args:
        up: by server: 1 while it gets batches, else 0; by deployment of a cluster: its replicas.
        batches: by server and outcome: "answered", "refused" (the request was at fault, or there was no room),
            "failed", or "cut_off" because another server was faster.
        repeats: batches that were sent once more, by reason: "hedge" or "retry"; among executors "executor_retry",
            "executor_late" or "executor_probe".
        apart: by model: the times of preparing and of handing out results.
        executors: each, if there are several.
    """

    up: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    batches: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    repeats: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    apart: Mapping[ModelKey, OverheadTimes] = field(default_factory=dict)
    executors: tuple[ExecutorReport, ...] = ()


class Executor(Protocol):
    """Runs batches of requests.

    Attributes:
        slots: batches that may run at the same moment, at least 1; callers never exceed it. It may change.
    """

    @property
    def slots(self) -> int: ...

    async def start(self) -> None:
        """Starts to observe remote servers. A server that is away does not prevent the start."""
        ...

    def trouble(self, key: ModelKey) -> str:
        """Returns why a model cannot run at the moment, as a sentence, or "" if it can."""
        ...

    def report(self) -> ExecutionReport:
        """Returns the state of its servers; empty if it has none."""
        ...

    def run(
        self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]
    ) -> Awaitable[list[Outcome]] | Future[list[Outcome]]:
        """Runs the inputs of several requests as one batch, processing included.

        Args:
            key: the model; the executor was given it before.
            inputs: one tensor for each request, as the client sent it.
            deadlines_s: of each request, on the monotonic clock of this process, or None.

        Returns:
            One outcome for each request, in the order of `inputs`. An error of one request is its own outcome and does
            not affect the others. A `concurrent.futures.Future` is a batch in a thread: once begun it cannot be
            stopped.

        Raises:
            EngineUnavailableError: the server of the model is away; no request of the batch has an answer.
        """
        ...

    async def put(self, served: ServedModel) -> None:
        """Runs a model from now on, in place of an earlier one with the same key, which has no running batch.

        Where models run in this process, `served.loaded` is set.
        """
        ...

    async def drop(self, key: ModelKey) -> None:
        """Removes a model and returns once its memory is free; its running batches end first."""
        ...

    async def close(self, timeout_s: float) -> bool:
        """Stops the executor and frees the models. Running batches have `timeout_s` to finish.

        Returns:
            False if a batch still runs; its model then stays in memory.
        """
        ...


@runtime_checkable
class InProcess(Protocol):
    """An executor whose models are in this process, so that a batch of a quick one can run on the event loop."""

    def run_on_loop(
        self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]
    ) -> list[Outcome]:
        """Runs a batch in the calling thread; see `Executor.run`."""
        ...

    def loop_times(self, key: ModelKey) -> LoopTimes:
        """Returns what batches of a model take on the event loop."""
        ...


class InFlight:
    """Counts the work within its `with`, and waits for its end when the gateway closes. Belongs to one event loop.

    Attributes:
        count: of the work in flight.
    """

    def __init__(self) -> None:
        self.count = 0
        self._none: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self.count += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if not self.count and self._none is not None:
            self._none.set()

    async def end(self, timeout_s: float | None = None) -> None:
        """Returns when there is none, or after the timeout."""
        self._none = self._none or asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                while self.count:
                    self._none.clear()
                    await self._none.wait()
        except TimeoutError:
            pass


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
