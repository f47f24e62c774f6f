"""An hour without a link at 20 requests a second: every promise is kept on a real disk, and every one is corrected.

Time is simulated, as in `simulation`; the outbox's file, its commits and their fsyncs are real. How fast a real agent
and a real gateway deliver a backlog is measured separately, in real time.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np

from bench.simulation.simulated_time import LoopClock, simulate
from chaos.kills import fresh_scans
from chaos.simulation.book import Book
from chaos.simulation.cloud import Cloud
from chaos.simulation.device import Device
from chaos.simulation.models import INPUT
from chaos.simulation.network import Weather
from chaos.simulation.plan import CERTIFIED, Ask, draw
from chaos.simulation.run import quiet
from chaos.victims import MODEL, victims
from firstline_core.ids import new_request_id
from firstline_core.types import InferRequest, Privacy, Route, Tensor, Wait
from firstline_edge.outbox.database import Receiver

RATE = 20.0
_LIMIT_ITEMS = 100_000  # outbox.limit_items, which is 10,000 unless it is set
_PATIENCE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Hour:
    """What came of it.

    Args:
        asked, promised, corrected: requests, acknowledged promises, final corrections announced.
        waited_bytes: of the outbox's file, before the link came back.
        offline_s, drain_s: simulated.
        spent_s: real, of one core.
    """

    asked: int
    promised: int
    corrected: int
    waited_bytes: int
    offline_s: float
    drain_s: float
    spent_s: float


class _LongBook(Book):
    """Counts what the file holds at the end, and not after each commit."""

    def committed(self, connection: object) -> None:
        pass


def hour_offline(requests: int, seed: int, tell: Callable[[float], None] = lambda share: None) -> Hour:
    """Sends `requests` requests without a link, then has one that works. Raises `Violation` if anything is lost."""
    with tempfile.TemporaryDirectory(prefix="firstline-offline-") as folder, quiet():
        return simulate(_hour(requests, seed, Path(folder), tell))


async def _hour(requests: int, seed: int, folder: Path, tell: Callable[[float], None]) -> Hour:
    began_s, rng, clock = time.process_time(), random.Random(seed), LoopClock()
    length_s = requests / RATE
    plan = replace(
        draw(seed),
        weather=Weather("an hour offline", rtt_ms=20, mbit_s=10, off=[(0.0, length_s)]),
        mutes=(),
        fsync_s=0.005,
        row_ms=0.1,
        service_s=0.005,
        failing=0.0,
        outbox_items=_LIMIT_ITEMS,
        max_age_s=86_400.0,
        quiet_from_s=length_s,
    )
    book = _LongBook(plan, clock)
    cloud = Cloud(plan, folder, clock, random.Random(seed), book)
    device = Device(plan, folder / "state", clock, random.Random(seed), cloud=cloud, book=book)
    cloud.start()
    await device.start()
    for number in range(requests):
        await clock.sleep(max(0.0, number / RATE - clock.monotonic_s()))
        value = rng.randint(500_001, 799_999) / 1e6  # the edge model is never sure
        ask = Ask(clock.monotonic_s(), CERTIFIED, (value,), Wait.FINAL, Privacy.ANY, Route.AUTO, None)
        request_id = new_request_id()
        book.asked(request_id, ask)
        tensor = Tensor(INPUT, np.array([[value]], np.float32))
        device.ask(InferRequest(CERTIFIED, (tensor,), request_id, principal="local"))
        if number % 1000 == 0:
            tell(number / requests / 2)
    await clock.sleep(max(0.0, length_s - clock.monotonic_s()))
    waited_bytes = sum(file.stat().st_size for file in device.state.parent.iterdir())
    while device.outbox.depth or await device.outbox.unannounced(Receiver.APPLICATIONS, 1):
        tell(1 - device.outbox.depth / requests / 2)
        book.holds(clock.monotonic_s() < length_s + _PATIENCE_S, "{} promises still wait", device.outbox.depth)
        await clock.sleep(1.0)
    drain_s = clock.monotonic_s() - length_s
    await book.close(device.outbox, cloud.recorded())
    await device.kill()
    await cloud.kill()
    found = book.counts
    spent_s = time.process_time() - began_s
    return Hour(requests, found["promised"], found["corrected"], waited_bytes, length_s, drain_s, spent_s)


async def drain_rate(promises: int, seed: int) -> float:
    """Corrections a second, by a real agent over HTTP once its gateway is there, all processes on this machine."""
    with tempfile.TemporaryDirectory(prefix="firstline-drain-", ignore_cleanup_errors=True) as folder:
        async with victims(Path(folder), seed, mqtt=False) as house:
            house.agent.start()
            url = await house.agent.ready()
            contents = fresh_scans(seed)
            async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:

                async def ask(count: int) -> None:
                    for _ in range(count):
                        path = f"/firstline/v1/models/{MODEL}/infer?route=cloud&wait=first"
                        reply = await client.post(path, content=next(contents))
                        assert reply.json()["durable"], reply.text

                async def waiting() -> int:
                    return (await client.get("/firstline/v1/status")).json()["outbox"]["items"]

                await asyncio.gather(*(ask(promises // 8) for _ in range(8)))
                house.gateway.start()
                await house.gateway.ready()
                while (before := await waiting()) == promises // 8 * 8:  # noqa: ASYNC110 (of another process)
                    await asyncio.sleep(0.01)
                began_s = time.monotonic()
                while await waiting():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                return before / (time.monotonic() - began_s)
