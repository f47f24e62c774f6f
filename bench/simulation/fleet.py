"""A fleet and its gateway: each device's own link chain, breaker, retry budget and delivery, in simulated time.

The gateway is a queue with one server. While it is away, connections are refused at once, as a machine does that is
up and runs no gateway: devices then fail as fast as they can, which is the worst case for the returning gateway.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from bench.simulation.memory_outbox import MemoryOutbox
from firstline_core.clock import Clock
from firstline_core.errors import CapacityError, DeadlineExceededError, LinkDownError, LinkError, QueueFullError
from firstline_core.tasks.base import Task
from firstline_core.types import (
    Answer,
    Attempt,
    ContractNotice,
    InferRequest,
    InferResponse,
    Reason,
    Status,
    Tensor,
    Tier,
)
from firstline_edge.cloud.breaker import CircuitBreaker
from firstline_edge.cloud.chain import LinkChain
from firstline_edge.cloud.client import ModelRefusals
from firstline_edge.models.models import DeviceModel, Models
from firstline_edge.outbox.delivery import CorrectionClient, Delivery
from firstline_edge.outbox.item import OutboxItem

_ROUND_TRIP_S = 0.05
_DEADLINE_S = 2.0
_MAX_AGE_S = 86_400.0
_IMAGE = Tensor("image", np.zeros((1, 1), np.uint8))
_PROBABILITIES = Tensor("probabilities", np.array([[0.75, 0.25]], np.float32))


class NoContracts:
    """Contracts that never alarm."""

    def alarm_of(self, model: DeviceModel) -> None:
        return None

    def apply_notice(self, model: DeviceModel, notice: ContractNotice | None) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is simulated.

    Args:
        devices: how many.
        per_device_s: escalations of each in a second.
        capacity_s: requests that the gateway answers in a second.
        steady_s: before it goes away.
        away_s: for how long it does.
        longest_queue_s: what would wait longer than so for its turn is refused.
    """

    devices: int = 1000
    per_device_s: float = 0.2
    capacity_s: float = 400.0
    steady_s: float = 60.0
    away_s: float = 120.0
    longest_queue_s: float = 1.0


@dataclass(slots=True)
class Seen:
    """What the gateway saw.

    Attributes:
        requests: when each came, refused or not; those of a gateway that is away are not among them.
        probes: the same of probes.
        refused: of the requests.
        back_s: when the gateway came back.
        drained_s: when the last promise that was made while it was away had been kept.
        unkept: promises that were still open when the simulation ended.
    """

    requests: list[float] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)
    refused: int = 0
    back_s: float = 0.0
    drained_s: float = 0.0
    unkept: int = 0


class _Gateway:
    def __init__(self, fleet: Fleet, clock: Clock, seen: Seen) -> None:
        self.fleet, self._clock, self._seen = fleet, clock, seen
        self._free_at_s = 0.0
        self.up = True

    async def answer(self, request: InferRequest, timeout_s: float) -> InferResponse:
        now_s = self._clock.monotonic_s()
        self._seen.requests.append(now_s)
        wait_s = max(0.0, self._free_at_s - now_s)
        if wait_s > min(self.fleet.longest_queue_s, timeout_s):
            self._seen.refused += 1
            raise QueueFullError("Too many requests wait.", retry_after_s=max(1.0, wait_s))
        self._free_at_s = now_s + wait_s + 1 / self.fleet.capacity_s
        await self._clock.sleep(wait_s + 1 / self.fleet.capacity_s)
        return _response(request, Status.FINAL, Tier.CLOUD)

    def probed(self) -> None:
        self._seen.probes.append(self._clock.monotonic_s())


class _Link:
    """One device's way to it."""

    name = "simulated"
    in_turn = True
    address = "simulated://gateway"

    def __init__(self, gateway: _Gateway, clock: Clock) -> None:
        self._gateway, self._clock = gateway, clock
        self.probe_wanted = asyncio.Event()

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def reconnect(self) -> None:
        pass

    async def discard_connections(self) -> None:
        pass

    async def infer(self, request: InferRequest, timeout_s: float) -> InferResponse:
        await self._cross()
        response = await self._gateway.answer(request, timeout_s)
        await self._cross()
        return response

    async def probe(self, timeout_s: float) -> None:
        await self._cross()
        self._gateway.probed()
        await self._cross()

    async def _cross(self) -> None:
        await self._clock.sleep(_ROUND_TRIP_S / 2)
        if not self._gateway.up:
            raise LinkDownError("The gateway refuses connections.")


async def come_back(fleet: Fleet, clock: Clock, seed: int = 0) -> Seen:
    """Runs the fleet until every promise of the outage is kept, or for an hour at most."""
    seen, random_of_all = Seen(), random.Random(seed)
    gateway = _Gateway(fleet, clock, seen)
    outboxes = [MemoryOutbox(clock) for _ in range(fleet.devices)]
    began_s = clock.monotonic_s()
    devices = [
        asyncio.create_task(_device(f"{number}", outbox, gateway, clock, random.Random(random_of_all.getrandbits(64))))
        for number, outbox in enumerate(outboxes)
    ]
    try:
        await clock.sleep(fleet.steady_s)
        gateway.up = False
        await clock.sleep(fleet.away_s)
        gateway.up = True
        seen.back_s = clock.monotonic_s()
        promised = [set(outbox.open) for outbox in outboxes]
        while any(promised) and clock.monotonic_s() < seen.back_s + 3600:
            await clock.sleep(0.25)
            promised = [ids & outbox.open for ids, outbox in zip(promised, outboxes, strict=True)]
        seen.drained_s = clock.monotonic_s()
        seen.unkept = sum(map(len, promised))
        await clock.sleep(10.0)
    finally:
        for device in devices:
            device.cancel()
        await asyncio.gather(*devices, return_exceptions=True)
    seen.requests = [when_s - began_s for when_s in seen.requests]
    seen.probes = [when_s - began_s for when_s in seen.probes]
    seen.back_s, seen.drained_s = seen.back_s - began_s, seen.drained_s - began_s
    return seen


async def _device(name: str, outbox: MemoryOutbox, gateway: _Gateway, clock: Clock, rng: random.Random) -> None:
    """One that escalates now and then, and promises what fails; what is left of the agent is its delivery."""
    chain = LinkChain([_Link(gateway, clock)], [CircuitBreaker(clock, rng)], clock)
    client = CorrectionClient(chain, Models([]), NoContracts(), ModelRefusals(clock), clock, merge=_merge)
    delivery = Delivery(outbox, client, chain, clock=clock, rng=rng, max_age_s=_MAX_AGE_S)  # type: ignore[arg-type]
    await chain.start()
    delivering = asyncio.create_task(delivery.run())
    asking: set[asyncio.Task[None]] = set()
    number = 0
    try:
        while True:
            await clock.sleep(rng.expovariate(gateway.fleet.per_device_s))
            number += 1
            task = asyncio.create_task(_ask(InferRequest("m", (_IMAGE,), f"{name}-{number}"), chain, outbox, clock))
            asking.add(task)
            task.add_done_callback(asking.discard)
    finally:
        for task in (delivering, *asking):
            task.cancel()
        await asyncio.gather(delivering, *asking, return_exceptions=True)
        await chain.close()


async def _ask(request: InferRequest, chain: LinkChain, outbox: MemoryOutbox, clock: Clock) -> None:
    attempts: list[Attempt] = []
    try:
        await chain.infer(request, clock.monotonic_s() + _DEADLINE_S, attempts)
    except (LinkError, CapacityError) as error:
        reason = Reason.DEADLINE if isinstance(error, DeadlineExceededError) else Reason.LINK_DOWN
        provisional = _response(request, Status.PROVISIONAL, Tier.EDGE, reason, tuple(attempts))
        await outbox.put(OutboxItem(request, (0,), provisional, clock.wall_s()))


def _merge(
    provisional: InferResponse, _rows: tuple[int, ...], correction: InferResponse, _task: Task | None
) -> InferResponse:
    answer = provisional.answer
    return replace(correction, answer=replace(answer, status=Status.FINAL)) if answer is not None else correction


def _response(
    request: InferRequest,
    status: Status,
    tier: Tier,
    reason: Reason = Reason.UNCERTAIN,
    attempts: tuple[Attempt, ...] = (),
) -> InferResponse:
    answer = Answer(request.request_id, status, False, False, tier, reason, 0.5, "", attempts)
    return InferResponse(request.model, "1", (_PROBABILITIES,), id=request.id, answer=answer)
