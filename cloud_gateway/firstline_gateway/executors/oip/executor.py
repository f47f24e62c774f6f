"""The engine on other servers: near decisions (admission, deadlines, batches) here, the models there.

Batches are made here because only here all waiting requests are seen; the servers may put them together further.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import (
    DeadlineExceededError,
    EngineUnavailableError,
    FirstlineError,
    InferenceError,
    RequestError,
)
from firstline_core.telemetry.statistics import OverheadTimes
from firstline_core.types import ModelKey, Tensor
from firstline_gateway.executors.base import (
    ExecutionReport,
    Group,
    InFlight,
    Outcome,
    Prepared,
    Probabilities,
    joined,
    prepare_batch,
    shared_out,
)
from firstline_gateway.executors.oip.calls import Calls, Hedging, Spent, Transport, Work
from firstline_gateway.executors.oip.dialects import FarModel
from firstline_gateway.executors.oip.endpoints import Endpoint, Endpoints
from firstline_gateway.executors.oip.probing import Probing
from firstline_gateway.models.repository import ServedModel
from firstline_gateway.settings.settings import Oip

_RETRY_AFTER_S = 1.0


class OipExecutor:
    """Runs batches on the servers of `oip.endpoints`.

    Args:
        models: as the servers have them.
        transports: the way to each server, by its URL.
        found: how many batches, for how long.
        threads: that prepare inputs side by side.
        max_batch_rows: the most rows in one request to a server.
        make: a model as the servers have it, of one that is put in later.
        clock: for deadlines.
        rng: for the choice of servers.
    """

    def __init__(
        self,
        models: Mapping[ModelKey, FarModel],
        transports: Mapping[str, Transport],
        found: Oip,
        *,
        threads: int,
        max_batch_rows: int,
        make: Callable[[ServedModel], FarModel] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        self._make = make
        self._models = dict(models)
        self._max_batch_rows = max_batch_rows
        self._clock = clock
        self.endpoints = Endpoints(transports, found.in_flight, clock, rng or random.Random())  # noqa: S311
        self._transports: dict[Endpoint, Transport] = {each: transports[each.url] for each in self.endpoints.all}
        self.calls = Calls(
            self.endpoints, self._transports, Hedging(found.hedge_share), timeout_s=found.timeout_s, clock=clock
        )
        self._probing = Probing(self._transports, self._models, clock)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="prepare")
        self._under_way = InFlight()
        self._apart: defaultdict[ModelKey, OverheadTimes] = defaultdict(OverheadTimes)

    @property
    def slots(self) -> int:
        return self.endpoints.slots

    async def start(self) -> None:
        await self._probing.start()

    def trouble(self, key: ModelKey) -> str:
        return self.endpoints.trouble(key)

    def report(self) -> ExecutionReport:
        return ExecutionReport(
            up={(each.url,): float(self.endpoints.usable(each)) for each in self.endpoints.all},
            batches={
                (each.url, outcome): float(count)
                for each in self.endpoints.all
                for outcome, count in each.outcomes.items()
            },
            repeats={("hedge",): float(self.calls.hedges), ("retry",): float(self.calls.retries)},
            apart=self._apart,
        )

    async def run(self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        with self._under_way:
            return await self._run(key, self._models[key], inputs, deadlines_s)

    async def _run(
        self, key: ModelKey, model: FarModel, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]
    ) -> list[Outcome]:
        if self.endpoints.choose(key) is None:
            raise EngineUnavailableError(
                f"No server that runs model '{key.name}' answers; send the request again later. {self.trouble(key)}",
                retry_after_s=_RETRY_AFTER_S,
            )
        spent = Spent()

        def prepare() -> Prepared:
            started_s = perf_counter()
            found = prepare_batch(model.prepare, inputs, deadlines_s, self._clock)
            spent.input_s = perf_counter() - started_s
            return found

        if any(map(model.costly, inputs)):
            prepared = await asyncio.get_running_loop().run_in_executor(self._threads, prepare)
        else:
            prepared = prepare()
        outcomes = prepared.outcomes
        for found in await asyncio.gather(
            *(self._run_group(key, model, each, deadlines_s, spent) for each in prepared.groups)
        ):
            outcomes |= found
        rows = sum(len(tensor.array) for tensor in inputs)
        self._apart[key].add(len(inputs), rows, spent.input_s, spent.output_s)
        return [outcomes[position] for position in range(len(inputs))]

    async def _run_group(
        self, key: ModelKey, model: FarModel, group: Group, deadlines_s: Sequence[float | None], spent: Spent
    ) -> dict[int, Outcome]:
        """Sends a group as one request, by the deadline of its most urgent member."""
        due_s = [deadlines_s[position] for position, _ in group]
        first_s = min((each for each in due_s if each is not None), default=None)
        try:
            rows = joined(group)
            steps = [rows[at : at + self._max_batch_rows] for at in range(0, len(rows), self._max_batch_rows)]
            parts = [await self.calls.ask(Work(key, model, step, first_s, spent)) for step in steps]
            return shared_out(group, _one(parts))
        except DeadlineExceededError as error:
            late = [member for member, each in zip(group, due_s, strict=True) if each == first_s]
            others = [member for member, each in zip(group, due_s, strict=True) if each != first_s]
            outcomes: dict[int, Outcome] = {position: error for position, _ in late}
            return outcomes | (await self._run_group(key, model, others, deadlines_s, spent) if others else {})
        except (RequestError, InferenceError) as error:
            if len(group) == 1:
                return {group[0][0]: error}
            # One request's rows may be at fault: alone, the others still get their answers.
            alone = await asyncio.gather(
                *(self._run_group(key, model, [member], deadlines_s, spent) for member in group)
            )
            return {position: outcome for each in alone for position, outcome in each.items()}
        except FirstlineError as error:
            return {position: error for position, _ in group}

    async def put(self, served: ServedModel) -> None:
        assert self._make is not None  # noqa: S101 (only tests give none, and put nothing in)
        self._models[served.key] = self._make(served)
        await self._probing.look_for_models()

    async def drop(self, key: ModelKey) -> None:
        self._models.pop(key, None)

    async def close(self, timeout_s: float) -> bool:
        """See `Executor.close`; longer batches are cut off, because they run in other processes."""
        await self._probing.close()
        await self._under_way.end(timeout_s)
        await self.calls.close()
        for transport in self._transports.values():
            await transport.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        return True


def _one(parts: list[Probabilities]) -> Probabilities:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
