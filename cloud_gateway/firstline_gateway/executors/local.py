"""The executor of this process, which runs batches in threads, and the functions that prepare, run and split a batch.

The executor has one thread for each core, each running a one-thread session. Several one-thread runs side by side
answer more requests a second than one run on all threads. All threads share one loaded model, whose session is safe to
call from several threads and takes its memory once.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import accumulate, zip_longest
from threading import Lock
from time import perf_counter
from typing import NamedTuple

from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import CapacityError, DeadlineExceededError, FirstlineError, InferenceError
from firstline_core.processing.cost import PreparedRows
from firstline_core.runtime.batch_times import LoopTimes
from firstline_core.telemetry.statistics import OverheadTimes
from firstline_core.telemetry.wording import counted
from firstline_core.types import Arrays, ModelKey, join_rows, row_count, slice_rows
from firstline_gateway.executors.base import Deadlines, ExecutionReport, Inputs, Outcome
from firstline_gateway.models.repository import ServedModel


class LocalExecutor:
    """Runs batches on threads of this process.

    Args:
        models: loaded with one thread each; closed with the executor.
        sessions: batches that run at the same moment.
        max_batch_rows: the most rows that a model sees at once.
        clock: for deadlines.
    """

    def __init__(
        self, models: Mapping[ModelKey, LoadedModel], *, sessions: int, max_batch_rows: int, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._models = dict(models)
        self._max_batch_rows = max_batch_rows
        self._slots = sessions
        self._clock = clock
        self._threads = ThreadPoolExecutor(sessions, thread_name_prefix="session")
        self._overhead: defaultdict[ModelKey, OverheadTimes] = defaultdict(OverheadTimes)
        self._learning = Lock()
        now_s = clock.monotonic_s()
        self._loop_times = {key: LoopTimes(model.batch_s, now_s, model.batch) for key, model in models.items()}
        self._running: dict[Future[list[Outcome]], ModelKey] = {}

    @property
    def slots(self) -> int:
        return self._slots

    async def start(self) -> None:
        """Nothing to do: the models were run when they were loaded."""

    def problem_with(self, key: ModelKey) -> str:
        return ""

    def report(self) -> ExecutionReport:
        return ExecutionReport(overhead=dict(self._overhead))  # threads add models to it

    def run(self, key: ModelKey, inputs: Inputs, deadlines_s: Deadlines) -> Future[list[Outcome]]:
        running = self._threads.submit(self._run_in_thread, key, inputs, deadlines_s)
        self._running[running] = key
        running.add_done_callback(self._running.pop)
        return running

    def _run_in_thread(self, key: ModelKey, inputs: Inputs, deadlines_s: Deadlines) -> list[Outcome]:
        times, started_s = self._loop_times[key], self._clock.monotonic_s()
        rows = sum([row_count(each) for each in inputs])
        outcomes = self._run(key, inputs, deadlines_s, rows)
        ended_s = self._clock.monotonic_s()
        if not any(isinstance(outcome, FirstlineError) for outcome in outcomes):  # a failure does not measure the work
            with self._learning:
                times.observe_in_thread(rows, ended_s - started_s, ended_s)
        return outcomes

    def run_on_loop(self, key: ModelKey, inputs: Inputs, deadlines_s: Deadlines) -> list[Outcome]:
        started_s = self._clock.monotonic_s()
        rows = sum([row_count(each) for each in inputs])
        outcomes = self._run(key, inputs, deadlines_s, rows)
        ended_s = self._clock.monotonic_s()
        self._loop_times[key].observe(rows, ended_s - started_s, ended_s)
        return outcomes

    def loaded_model(self, key: ModelKey) -> LoadedModel | None:
        return self._models.get(key)

    def loop_times(self, key: ModelKey) -> LoopTimes:
        return self._loop_times[key]

    def _run(self, key: ModelKey, inputs: Inputs, deadlines_s: Deadlines, rows: int) -> list[Outcome]:
        model = _Timed(self._models[key])
        started_s = perf_counter()
        outcomes = run_batch(model, inputs, self._max_batch_rows, deadlines_s, self._clock)
        output_s = perf_counter() - started_s - model.input_s - model.infer_s
        # Two threads may lose one's part at this line: these are statistics, which are not worth a lock.
        self._overhead[key].add(len(inputs), rows, model.input_s, output_s)
        return outcomes

    async def put(self, served: ServedModel) -> None:
        assert served.loaded is not None  # noqa: S101 (see `Executor.put`)
        before = self._models.get(served.key)
        self._models[served.key] = served.loaded
        self._loop_times[served.key] = LoopTimes(served.loaded.batch_s, self._clock.monotonic_s(), served.full.batch)
        if before is not None:
            before.close()

    async def drop(self, key: ModelKey) -> None:
        running = [future for future, used in tuple(self._running.items()) if used == key]
        if running:  # of clients that have left
            await asyncio.wait([asyncio.wrap_future(future) for future in running])
        self._loop_times.pop(key, None)
        model = self._models.pop(key, None)
        if model is not None:
            model.close()

    async def close(self, timeout_s: float) -> bool:
        return await asyncio.to_thread(self._close, timeout_s)

    def _close(self, timeout_s: float) -> bool:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if wait(tuple(self._running), timeout_s).not_done:
            return False
        for model in self._models.values():
            model.close()
        self._models.clear()
        return True


class _Timed:
    """A model for one batch, which measures the times of preparing and of inference."""

    __slots__ = ("_model", "by_row", "infer_s", "input_s")

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self.by_row = model.by_row
        self.input_s = self.infer_s = 0.0

    def prepare(self, inputs: Arrays) -> Arrays:
        started_s = perf_counter()
        try:
            return self._model.prepare(inputs)
        finally:
            self.input_s += perf_counter() - started_s

    def run(self, rows: Arrays) -> Arrays:
        started_s = perf_counter()
        try:
            return self._model.run(rows)
        finally:
            self.infer_s += perf_counter() - started_s


Predictor = LoadedModel | _Timed
"""A model that prepares and runs batches."""


def run_batch(
    model: Predictor,
    inputs: Inputs,
    max_rows: int,
    deadlines_s: Deadlines = (),
    clock: Clock = SYSTEM_CLOCK,
) -> list[Outcome]:
    """Runs the inputs of several requests.

    Requests whose prepared rows differ in shape or dtype run in groups of their own. Encoded inputs of a model that
    runs row by row are prepared and run one request after the other, while the pixels are in the processor's cache.

    Args:
        model: prepares and runs.
        inputs: of each request, by name.
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
    if model.by_row and len(inputs) > 1:
        pairs = zip_longest(inputs, deadlines_s)
        return [run_batch(model, [each], max_rows, [deadline_s], clock)[0] for each, deadline_s in pairs]
    prepared = prepare_batch(model.prepare, inputs, deadlines_s, clock)
    outcomes = prepared.outcomes
    for group in prepared.groups:
        outcomes |= _run_group(model, group, max_rows)
    return [outcomes[position] for position in range(len(inputs))]


def _are_alike(inputs: Inputs) -> bool:
    """Whether they are numbers of one kind and shape, so that what is done to each row can be done to all at once."""
    first, *others = inputs
    kind = type(first)  # rows that were prepared for models with other names of inputs have other names
    for each in others:
        if type(each) is not kind or each.keys() != first.keys():
            return False
    for name, array in first.items():
        shape, dtype = array.shape[1:], array.dtype
        if dtype.hasobject or not array.ndim:
            return False
        for each in others:
            if each[name].shape[1:] != shape or each[name].dtype != dtype:
                return False
    return True


def _run_alike(model: Predictor, inputs: Inputs, max_rows: int, until_s: float, clock: Clock) -> list[Outcome] | None:
    """Prepares and runs all rows together; None where one of several may be at fault, or is late."""
    sizes = [row_count(each) for each in inputs]
    try:
        rows = model.prepare(_joined(inputs))
        late = until_s < math.inf and until_s <= clock.monotonic_s()
        if not all(sizes) or row_count(rows) != sum(sizes) or late:
            return None
        results = _run_rows(model, rows, max_rows)
    except (FirstlineError, MemoryError) as error:
        return [_outcome_of(error)] if len(inputs) == 1 else None
    if len(sizes) == 1:
        return [results]
    ends = accumulate(sizes)
    return [slice_rows(results, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _joined(inputs: Inputs) -> Arrays:
    """Returns the rows of inputs that are alike as those of one request."""
    if len(inputs) == 1:
        return inputs[0]
    joined = join_rows(inputs)
    return PreparedRows(joined) if isinstance(inputs[0], PreparedRows) else joined


Group = list[tuple[int, Arrays]]
"""Requests that can run together: the place of each in its batch, and its rows."""


class Prepared(NamedTuple):
    """A batch whose requests are prepared: groups that can run, and the errors of the others."""

    groups: list[Group]
    outcomes: dict[int, Outcome]  # by the place in the batch


def prepare_batch(
    prepare: Callable[[Arrays], Arrays], inputs: Inputs, deadlines_s: Deadlines, clock: Clock
) -> Prepared:
    """Prepares the inputs of several requests; see `run_batch`."""
    outcomes: dict[int, Outcome] = {}
    groups: dict[tuple[object, ...], Group] = defaultdict(list)
    for position, (each, deadline_s) in enumerate(zip_longest(inputs, deadlines_s)):
        if deadline_s is not None and deadline_s <= clock.monotonic_s():
            outcomes[position] = DeadlineExceededError(
                "The request's deadline passed while others of its batch were prepared; allow more time."
            )
            continue
        try:
            rows = prepare(each)
        except (FirstlineError, MemoryError) as error:
            outcomes[position] = _outcome_of(error)
        else:
            kind = tuple([(name, array.shape[1:], array.dtype) for name, array in rows.items()])
            groups[kind].append((position, rows))
    return Prepared(list(groups.values()), outcomes)


def joined_rows(group: Group) -> Arrays:
    """Returns the rows of all requests of a group, in their order."""
    return join_rows([part for _, part in group])


def split_results(group: Group, results: Arrays) -> dict[int, Outcome]:
    """Returns the results of each request of a group, from the results of `joined_rows`."""
    outcomes: dict[int, Outcome] = {}
    start = 0
    for position, part in group:
        end = start + row_count(part)
        outcomes[position] = slice_rows(results, start, end)
        start = end
    return outcomes


def _run_group(model: Predictor, group: Group, max_rows: int) -> dict[int, Outcome]:
    try:
        return split_results(group, _run_rows(model, joined_rows(group), max_rows))
    except (FirstlineError, MemoryError) as error:
        if len(group) == 1:
            return {group[0][0]: _outcome_of(error)}
        # One request's rows may be at fault: alone, the others still get their answers.
        outcomes: dict[int, Outcome] = {}
        for member in group:
            outcomes |= _run_group(model, [member], max_rows)
        return outcomes


def _outcome_of(failure: FirstlineError | MemoryError) -> FirstlineError:
    if isinstance(failure, FirstlineError):
        return failure
    error = CapacityError("There is not enough memory for this request; send fewer rows, or retry when fewer run.")
    error.__cause__ = failure
    return error


def _run_rows(model: Predictor, rows: Arrays, max_rows: int) -> Arrays:
    count = row_count(rows)
    if count <= max_rows:
        results = model.run(rows)
    else:
        starts = range(0, count, max_rows)
        results = join_rows([model.run(slice_rows(rows, start, start + max_rows)) for start in starts])
    if row_count(results) != count:
        raise InferenceError(
            f"The model returned {counted(row_count(results), 'row')} for {count}; its batch axis is not the first."
        )
    return results
