"""The engine on other servers: admission, deadlines and batches here, the models there.

Each server is an executor of a dispatcher of its own, which retries a failed batch on another server, sends a late one
to a second server, and ejects servers that fail. Batches are made here because only here all waiting requests are seen;
the servers may put them together further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from firstline_core.bundle.loading import LoadedModel
from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import EngineUnavailableError
from firstline_core.types import Arrays, ModelKey
from firstline_gateway.executors.base import ExecutionReport, Outcome
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.executors.dispatch.forecast import Costs, Energy, Memory
from firstline_gateway.executors.dispatch.member import Member
from firstline_gateway.executors.oip.dialects import RemoteModel
from firstline_gateway.executors.oip.readiness import ReadinessChecks
from firstline_gateway.executors.oip.server import OipServer, Transport
from firstline_gateway.models.repository import ServedModel
from firstline_gateway.settings.settings import Oip

_RETRY_AFTER_S = 1.0
_REPEATS = {"executor_late": "hedge", "executor_retry": "retry", "executor_probe": "probe"}


class OipExecutor:
    """Runs batches on the servers of `oip.endpoints`.

    Args:
        models: that the servers should have.
        transports: sends requests to each server, by its URL.
        settings: how many batches, for how long.
        threads: that prepare inputs side by side.
        max_batch_rows: the most rows in one request to a server.
        make: returns a model as the servers have it.
        clock: for deadlines.
    """

    def __init__(
        self,
        models: Iterable[ServedModel],
        transports: Mapping[str, Transport],
        settings: Oip,
        *,
        threads: int,
        max_batch_rows: int,
        make: Callable[[ServedModel], RemoteModel],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        models = tuple(models)
        self._make = make
        self._in_flight = settings.in_flight
        self._models = {served.key: make(served) for served in models}
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="prepare")
        self._servers: list[OipServer] = []
        for url, transport in transports.items():
            server = OipServer(
                url,
                transport,
                self._models,
                self._has_peer,
                in_flight=settings.in_flight,
                timeout_s=settings.timeout_s,
                max_batch_rows=max_batch_rows,
                threads=self._threads,
                clock=clock,
            )
            self._servers.append(server)
        self._members = [
            Member(
                server.url,
                server,
                costs=lambda served: Costs(),
                sessions=settings.in_flight,
                memory=Memory(0),
                energy=Energy(0.0),
                is_shared=True,
            )
            for server in self._servers
        ]
        for member in self._members:
            for served in models:
                member.place(served, Costs())
        self._pool = Dispatcher(self._members, clock=clock, hedge_share=settings.hedge_share)
        self._readiness = ReadinessChecks(self._servers, clock)

    @property
    def slots(self) -> int:
        return max(self._in_flight, self._pool.slots)

    async def start(self) -> None:
        await self._readiness.start()

    def problem_with(self, key: ModelKey) -> str:
        problems = [server.problem_with(key) for server in self._servers]
        return " ".join(problems) if all(problems) else ""

    def report(self) -> ExecutionReport:
        report = self._pool.report()
        repeats: dict[tuple[str, ...], float] = {("hedge",): 0.0, ("retry",): 0.0}
        repeats |= {(_REPEATS[why],): count for (why,), count in report.repeats.items()}
        return ExecutionReport(
            up={(each.name,): float(not each.problem) for each in report.executors},
            batches={
                (each.name, outcome): float(count)
                for each in report.executors
                for outcome, count in each.batches.items()
            },
            repeats=repeats,
            overhead=report.overhead,
        )

    def _has_peer(self, server: OipServer, key: ModelKey) -> bool:
        """Returns whether another server can take a model's batches and is not ejected for it."""
        return any(member.takes_now(key) for member in self._members if member.executor is not server)

    async def run(self, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        if problem := self.problem_with(key):
            raise EngineUnavailableError(
                f"No server that runs model '{key.name}' answers; send the request again later. {problem}",
                retry_after_s=_RETRY_AFTER_S,
            )
        return await self._pool.run(key, inputs, deadlines_s)

    def loaded_model(self, key: ModelKey) -> LoadedModel | None:
        return model.loaded if (model := self._models.get(key)) is not None else None

    async def put(self, served: ServedModel) -> None:
        self._models[served.key] = self._make(served)
        await self._pool.put(replace(served, loaded=None))
        await self._readiness.look_for_models()

    async def drop(self, key: ModelKey) -> None:
        await self._pool.drop(key)
        self._models.pop(key, None)

    async def close(self, timeout_s: float) -> bool:
        await self._readiness.close()
        ended = await self._pool.close(timeout_s)
        self._threads.shutdown(wait=False, cancel_futures=True)
        return ended
