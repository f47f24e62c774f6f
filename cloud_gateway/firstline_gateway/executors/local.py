"""The engine in this process: as many threads as cores, each running a one-thread session.

Several one-thread runs side by side answer more requests a second than one run on all threads, and a lone request
of a model this small loses nothing. All threads share one loaded model: a session is safe to call from several
threads, and its memory is needed once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from firstline_core.bundle.pipeline import LoadedModel
from firstline_core.types import Tensor
from firstline_gateway.executors.base import ModelKey, Outcome
from firstline_gateway.executors.batch import run_batch


class LocalExecutor:
    """Runs batches on threads of this process.

    Args:
        models: loaded with one thread each; closed with the executor.
        sessions: batches that run at the same moment.
        max_batch_rows: the most rows that a model sees at once.
    """

    def __init__(self, models: Mapping[ModelKey, LoadedModel], *, sessions: int, max_batch_rows: int) -> None:
        self._models = dict(models)
        self._max_batch_rows = max_batch_rows
        self._slots = sessions
        self._threads = ThreadPoolExecutor(sessions, thread_name_prefix="session")

    @property
    def slots(self) -> int:
        return self._slots

    async def run(self, key: ModelKey, inputs: Sequence[Tensor]) -> list[Outcome]:
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, run_batch, self._models[key], inputs, self._max_batch_rows
        )

    def close(self) -> None:
        self._threads.shutdown(wait=True)
        for model in self._models.values():
            model.close()
        self._models.clear()
