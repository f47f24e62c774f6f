"""The engine in this process: as many threads as cores, each running a one-thread session.

Several one-thread runs side by side answer more requests a second than one run on all threads, and a lone request
of a model this small loses nothing. All threads share one loaded model: a session is safe to call from several
threads, and its memory is needed once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from threading import Lock
from time import perf_counter

from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import FirstlineError
from firstline_core.telemetry.statistics import Apart
from firstline_core.types import Array, ModelKey, Tensor
from firstline_gateway.executors.base import EngineReport, Offer, Outcome, Probabilities
from firstline_gateway.executors.live_times import LiveTimes
from firstline_gateway.executors.rows import run_batch
from firstline_gateway.models.repository import ServedModel


class LocalExecutor:
    """Runs batches on threads of this process.

    Args:
        models: loaded with one thread each; closed with the executor.
        sessions: batches that run at the same moment.
        max_batch_rows: the most rows that a model sees at once.
        clock: what deadlines are on.
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
        self._apart: defaultdict[ModelKey, Apart] = defaultdict(Apart)
        self._learning = Lock()
        self._live = {key: LiveTimes(model.batch_s) for key, model in models.items()}
        self._running: dict[Future[list[Outcome]], ModelKey] = {}

    @property
    def slots(self) -> int:
        return self._slots

    async def start(self) -> None:
        """Nothing to do: the models were run when they were loaded."""

    def trouble(self, key: ModelKey) -> str:
        return ""

    def report(self) -> EngineReport:
        return EngineReport(apart=self._apart)

    def run(
        self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]
    ) -> asyncio.Future[list[Outcome]]:
        # No coroutine: a task begins and ends on turns of the loop of its own, for which a thread would idle.
        return asyncio.wrap_future(self._submit(key, partial(self._run_timed, key, inputs, deadlines_s)))

    def offer(self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]) -> Offer:
        offer = Offer()

        def begin() -> list[Outcome]:
            offer.begun_s = self._clock.monotonic_s()
            return self._run_timed(key, inputs, deadlines_s)

        offer.ran = self._submit(key, begin)
        return offer

    def _submit(self, key: ModelKey, work: Callable[[], list[Outcome]]) -> Future[list[Outcome]]:
        running = self._threads.submit(work)
        self._running[running] = key
        running.add_done_callback(self._running.pop)
        return running

    def _run_timed(self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        live, started_s = self._live[key], self._clock.monotonic_s()
        outcomes = self.run_now(key, inputs, deadlines_s)
        seconds = self._clock.monotonic_s() - started_s
        if not any(isinstance(outcome, FirstlineError) for outcome in outcomes):  # to fail is no measure of the work
            with self._learning:
                live.observe(sum(len(tensor.array) for tensor in inputs), seconds)
        return outcomes

    def run_now(self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        model = _Timed(self._models[key])
        started_s = perf_counter()
        outcomes = run_batch(model, inputs, self._max_batch_rows, deadlines_s, self._clock)
        output_s = perf_counter() - started_s - model.input_s - model.infer_s
        # Of two threads at this line one's part may be lost: statistics, for which nobody waits for a lock.
        self._apart[key].add(len(inputs), sum([len(tensor.array) for tensor in inputs]), model.input_s, output_s)
        return outcomes

    def measured(self, key: ModelKey) -> Mapping[int, float]:
        return self._live[key].measured

    async def put(self, served: ServedModel) -> None:
        assert served.loaded is not None  # noqa: S101 (see `Executor.put`)
        before = self._models.get(served.key)
        self._models[served.key] = served.loaded
        self._live[served.key] = LiveTimes(served.loaded.batch_s)
        if before is not None:
            before.close()

    async def drop(self, key: ModelKey) -> None:
        running = [future for future, used in tuple(self._running.items()) if used == key]
        if running:  # of clients that have left
            await asyncio.wait([asyncio.wrap_future(future) for future in running])
        self._live.pop(key, None)
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
    """A model for one batch, which notes what of the time is spent where."""

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
