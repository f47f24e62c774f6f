"""The executor in this process: one thread for each core, each running a one-thread session.

Several one-thread runs side by side answer more requests a second than one run on all threads. All threads share one
loaded model, whose session is safe to call from several threads and takes its memory once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock
from time import perf_counter

from firstline_core.bundle.loading import LoadedModel
from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import FirstlineError
from firstline_core.runtime.batch_times import LoopTimes
from firstline_core.telemetry.statistics import OverheadTimes
from firstline_core.types import Array, ModelKey, Tensor
from firstline_gateway.executors.base import ExecutionReport, Outcome, Probabilities, run_batch
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
        self,
        models: Mapping[ModelKey, LoadedModel],
        *,
        sessions: int,
        max_batch_rows: int,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._models = dict(models)
        self._max_batch_rows = max_batch_rows
        self._slots = sessions
        self._clock = clock
        self._threads = ThreadPoolExecutor(sessions, thread_name_prefix="session")
        self._apart: defaultdict[ModelKey, OverheadTimes] = defaultdict(OverheadTimes)
        self._learning = Lock()
        self._loop_times = {key: LoopTimes(model.batch_s, clock.monotonic_s()) for key, model in models.items()}
        self._running: dict[Future[list[Outcome]], ModelKey] = {}

    @property
    def slots(self) -> int:
        return self._slots

    async def start(self) -> None:
        """Nothing to do: the models were run when they were loaded."""

    def trouble(self, key: ModelKey) -> str:
        return ""

    def report(self) -> ExecutionReport:
        return ExecutionReport(apart=self._apart)

    def run(
        self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]
    ) -> Future[list[Outcome]]:
        running = self._threads.submit(self._run_in_thread, key, inputs, deadlines_s)
        self._running[running] = key
        running.add_done_callback(self._running.pop)
        return running

    def _run_in_thread(
        self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]
    ) -> list[Outcome]:
        times, started_s = self._loop_times[key], self._clock.monotonic_s()
        rows = sum([len(tensor.array) for tensor in inputs])
        outcomes = self._run(key, inputs, deadlines_s, rows)
        ended_s = self._clock.monotonic_s()
        if not any(isinstance(outcome, FirstlineError) for outcome in outcomes):  # a failure does not measure the work
            with self._learning:
                times.observe_in_thread(rows, ended_s - started_s, ended_s)
        return outcomes

    def run_on_loop(
        self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]
    ) -> list[Outcome]:
        started_s = self._clock.monotonic_s()
        rows = sum([len(tensor.array) for tensor in inputs])
        outcomes = self._run(key, inputs, deadlines_s, rows)
        ended_s = self._clock.monotonic_s()
        self._loop_times[key].observe(rows, ended_s - started_s, ended_s)
        return outcomes

    def loop_times(self, key: ModelKey) -> LoopTimes:
        return self._loop_times[key]

    def _run(
        self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None], rows: int
    ) -> list[Outcome]:
        model = _Timed(self._models[key])
        started_s = perf_counter()
        outcomes = run_batch(model, inputs, self._max_batch_rows, deadlines_s, self._clock)
        output_s = perf_counter() - started_s - model.input_s - model.infer_s
        # Two threads may lose one's part at this line: these are statistics, which are not worth a lock.
        self._apart[key].add(len(inputs), rows, model.input_s, output_s)
        return outcomes

    async def put(self, served: ServedModel) -> None:
        assert served.loaded is not None  # noqa: S101 (see `Executor.put`)
        before = self._models.get(served.key)
        self._models[served.key] = served.loaded
        self._loop_times[served.key] = LoopTimes(served.loaded.batch_s, self._clock.monotonic_s())
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

    __slots__ = ("_model", "infer_s", "input_s")

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self.input_s = self.infer_s = 0.0

    def prepare(self, tensor: Tensor) -> Array:
        started_s = perf_counter()
        try:
            return self._model.prepare(tensor)
        finally:
            self.input_s += perf_counter() - started_s

    def run(self, rows: Array) -> Probabilities:
        started_s = perf_counter()
        try:
            return self._model.run(rows)
        finally:
            self.infer_s += perf_counter() - started_s
