"""A device on simulated time: the agent's own cascade, router, cache, link chain, breakers and delivery.

Put in are replay models, an outbox in memory and a link that is not there; see `replay.py`, `promises.py` and
`network.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

from bench.pools import Pool
from bench.routing.arrivals import Floats
from bench.routing.promises import MemoryOutbox
from bench.routing.replay import NAME, tensor_of
from bench.simulation.network import SimulatedLink
from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.types import PROBABILITIES, ContractNotice, InferRequest, InferResponse, Tier
from firstline_edge.adaptation.variants import Chooser
from firstline_edge.budgets.spending import Spending
from firstline_edge.cache.results import ResultCache
from firstline_edge.cascade.cascade import Cascade, EdgeRuns, RowDecisions, TierRouter
from firstline_edge.cascade.escalation import Escalation
from firstline_edge.cascade.hedging import HedgeOptions, Hedging
from firstline_edge.cloud.breaker import CircuitBreaker
from firstline_edge.cloud.chain import LinkChain, no_budget
from firstline_edge.cloud.client import CloudClient, LiveTraffic, ModelRefusals
from firstline_edge.models.models import DeviceModel, Models
from firstline_edge.outbox.correction_client import CorrectionClient
from firstline_edge.outbox.delivery import Delivery, DeliverySettings
from firstline_edge.requests.context import RequestContext, Row

_LIMIT_BYTES, _RESERVE_S = 8 << 20, 0.02  # the agent's defaults
_MAX_AGE_S = 86_400.0
_PATIENCE_S = 600.0  # for promises, after the last request


@dataclass(slots=True)
class Device:
    """What is asked, and what can be looked at."""

    cascade: Cascade
    link: SimulatedLink
    outbox: MemoryOutbox
    chain: LinkChain


@dataclass(frozen=True, slots=True)
class Given:
    """The answer to one request.

    Args:
        seconds: until it was given; infinite where it was refused.
        predicted: its class; -1 where there is none.
        later: the class of the correction that came for a provisional answer; `predicted` where none did.
    """

    row: int
    seconds: float
    predicted: int
    later: int
    tier: Tier | None


class NoContracts:
    """Contracts that never alarm."""

    def alarm_of(self, model: DeviceModel) -> str:
        return ""

    def apply_notice(self, model: DeviceModel, notice: ContractNotice | None) -> None:
        pass


class NoAudits:
    """Audits that never sample; `alarm.py` measures them."""

    def observe_decisions(self, request: InferRequest, model: DeviceModel, rows: Sequence[Row]) -> None:
        pass

    def observe_escalations(self, model: DeviceModel, rows: Sequence[Row]) -> None:
        pass


@asynccontextmanager
async def device(
    model: DeviceModel,
    router: TierRouter,
    link: SimulatedLink,
    clock: Clock,
    seed: int,
    *,
    spending: Spending | None = None,
) -> AsyncIterator[Device]:
    """A device that runs, until it is left."""
    rng = random.Random(seed)
    budget_gate = no_budget if spending is None else spending.paid
    chain = LinkChain([link], [CircuitBreaker(clock, rng)], clock, budget_gate=budget_gate)
    outbox = MemoryOutbox(clock)
    # No two frames of a camera are the same: the cache would only say that the pool is small.
    cache = ResultCache(limit_bytes=0, ttl_s=60, disk=None, clock=clock)
    gateway = CloudClient(chain, cache, clock, ModelRefusals(), contracts=NoContracts(), traffic=LiveTraffic())
    hedging = Hedging(gateway, clock, HedgeOptions(), spending)
    models, edge_runs = Models([model]), EdgeRuns(cache, spending, clock)
    cascade = Cascade(
        models=models,
        chooser=Chooser(gateway, clock, _RESERVE_S, lambda _: 0.0),
        edge_runs=edge_runs,
        decisions=RowDecisions(router, cache, spending, clock),
        hedging=hedging,
        escalation=Escalation(gateway, outbox, NoAudits(), edge_runs.compute, clock, reserve_s=_RESERVE_S),
        audits=NoAudits(),
        limit_bytes=_LIMIT_BYTES,
    )
    client = CorrectionClient(chain, models, NoContracts(), ModelRefusals(), clock)
    settings = DeliverySettings(max_age_s=_MAX_AGE_S)
    delivery = Delivery(outbox, asyncio.Queue(), client, chain, clock=clock, rng=rng, settings=settings)  # type: ignore[arg-type]
    await chain.start()
    delivering = asyncio.create_task(delivery.run())
    try:
        yield Device(cascade, link, outbox, chain)
    finally:
        delivering.cancel()
        await asyncio.gather(delivering, return_exceptions=True)
        await hedging.close()
        await edge_runs.close()
        await gateway.close()
        await chain.close()


async def serve(
    on: Device,
    pool: Pool,
    rows: Sequence[int],
    arrivals: Floats,
    *,
    deadline_s: float,
    clock: Clock,
    wait_for_promises: bool = True,
) -> list[Given]:
    """Asks for each row when its time has come, and waits for what was promised."""
    began_s = clock.monotonic_s()
    answered: dict[int, tuple[float, InferResponse]] = {}

    async def ask(number: int, row: int) -> None:
        asked_s = clock.monotonic_s()
        request = InferRequest(NAME, (tensor_of(pool, row),), str(number))
        with contextlib.suppress(FirstlineError):  # it was not answered in time
            response = await on.cascade.infer(RequestContext(request, asked_s + deadline_s))
            answered[number] = clock.monotonic_s() - asked_s, response

    async with asyncio.TaskGroup() as asking:
        for number, (row, at_s) in enumerate(zip(rows, arrivals, strict=True)):
            await clock.sleep(max(0.0, began_s + at_s - clock.monotonic_s()))
            asking.create_task(ask(number, row))
    ends_s = clock.monotonic_s() + _PATIENCE_S
    while wait_for_promises and on.outbox.depth and clock.monotonic_s() < ends_s:
        await clock.sleep(1.0)
    return [_look(row, answered.get(number), on.outbox.finished.get(str(number))) for number, row in enumerate(rows)]


def _look(row: int, answered: tuple[float, InferResponse] | None, correction: InferResponse | None) -> Given:
    if answered is None:
        return Given(row, math.inf, -1, -1, None)
    seconds, response = answered
    predicted = _class(response)
    tier = response.answer.tier if response.answer is not None else None
    return Given(row, seconds, predicted, predicted if correction is None else _class(correction), tier)


def _class(response: InferResponse) -> int:
    return int(np.argmax(response.output(PROBABILITIES)[0]))
