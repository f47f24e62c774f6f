"""The engine in this process: as many threads as cores, each running a one-thread session.

Several one-thread runs side by side answer more requests a second than one run on all threads, and a lone request
of a model this small loses nothing. All threads share one loaded model: a session is safe to call from several
threads, and its memory is needed once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from firstline_core.bundle.pipeline import LoadedModel
from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.types import Tensor
from firstline_gateway.executors.base import EngineReport, ModelKey, Outcome
from firstline_gateway.executors.rows import run_batch
from firstline_gateway.repository import ServedModel


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
        self._running: dict[Future[list[Outcome]], ModelKey] = {}

    @property
    def slots(self) -> int:
        return self._slots

    async def start(self) -> None:
        """Nothing to do: the models were run when they were loaded."""

    def trouble(self, key: ModelKey) -> str:
        return ""

    def report(self) -> EngineReport:
        return EngineReport()

    async def run(self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        running = self._threads.submit(
            run_batch, self._models[key], inputs, self._max_batch_rows, deadlines_s, self._clock
        )
        self._running[running] = key
        running.add_done_callback(self._running.pop)
        return await asyncio.wrap_future(running)

    def run_now(self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        return run_batch(self._models[key], inputs, self._max_batch_rows, deadlines_s, self._clock)

    def measured(self, key: ModelKey) -> Mapping[int, float]:
        return self._models[key].batch_s

    async def put(self, served: ServedModel) -> None:
        assert served.loaded is not None  # noqa: S101 (see `Executor.put`)
        before = self._models.get(served.key)
        self._models[served.key] = served.loaded
        if before is not None:
            before.close()

    async def drop(self, key: ModelKey) -> None:
        model = self._models.pop(key, None)
        running = [future for future, used in tuple(self._running.items()) if used == key]
        if running:  # of clients that have left
            await asyncio.wait([asyncio.wrap_future(future) for future in running])
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
