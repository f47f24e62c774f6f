"""`kill -9` of agent and gateway, at random and under load, on a bad network: what became of what was acknowledged.

Acknowledged is one thing: an answer that says `durable: true`. Each must end, once; its correction must be there under
its id, and reach the applications near the device.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path

import httpx
from support.digits import scans
from support.proxy import FINE, drawn
from support.waiting import until

from chaos.victims import DEVICE, MODEL, Tier, Victims, victims
from firstline_core.protocol import mqtt_messages
from firstline_core.protocol.mqtt import MqttClient
from firstline_core.protocol.mqtt_messages import Message, MqttSettings, Topics
from firstline_core.types import Status

_CLIENTS = 4
_LIFE_S = 0.3  # mean of a victim's life, once it answers
_IN_ITS_START = 0.15  # share of the kills that do not wait for that
_LEAST_ACKNOWLEDGED = 21  # before the last kill of a victim, however slow the machine is
_PAUSE_S = 0.05
_PATIENCE_S = 120.0  # without any progress
_TRANSITORY = (httpx.HTTPError, OSError)


@dataclass(slots=True)
class Campaign:
    """What was seen.

    Attributes:
        kills: by tier.
        asked: requests sent.
        acknowledged: ids of which an answer said `durable: true`.
        ends: how each of these ended: final, expired, or lost.
        repeated: corrections that were given effect more than once.
        announced: how often each id was heard of; more than once is said by a restart between the broker's
            acknowledgement and the note of it, and must be the same answer.
        unlike: announcements of one id that were not the same.
        unheard: acknowledged, and never announced.
        recorded: deliveries on the gateway's record, each of which took effect once there.
        unrecorded: corrected, and the gateway has no record of it.
        alarms: tracebacks and errors in the logs of all their lives: a kill must not count as damage.
    """

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    asked: int = 0
    acknowledged: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    announced: Counter[str] = field(default_factory=Counter)
    unlike: int = 0
    unheard: int = 0
    recorded: int = 0
    unrecorded: int = 0
    alarms: int = 0
    seconds: float = 0.0

    @property
    def lost(self) -> int:
        """Acknowledged, and without an end or unheard."""
        return self.ends["lost"] + self.unheard

    def add(self, other: Campaign) -> None:
        for counted in fields(self):
            if counted.name not in ("seed", "seconds"):
                setattr(self, counted.name, getattr(self, counted.name) + getattr(other, counted.name))
        self.seconds = max(self.seconds, other.seconds)


async def campaign(
    kills: int, seed: int, *, mqtt: bool = True, tell: Callable[[Campaign], None] = lambda seen: None
) -> Campaign:
    """Kills `kills` processes, half of them agents, one house after the other."""
    seen = Campaign(seed)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="firstline-kills-", ignore_cleanup_errors=True) as folder:
        async with victims(Path(folder), seed, mqtt=mqtt) as house, _heard(house, seen):
            # Both once in peace: what is made at the first start is not what is looked at.
            for tier in (house.gateway, house.agent):
                tier.start()
                await tier.ready()
            networks = [
                asyncio.create_task(proxy.follow(drawn(seed + at, 3600))) for at, proxy in enumerate(house.proxies)
            ]
            stopping = asyncio.Event()
            contents = fresh_scans(seed)
            asking = [asyncio.create_task(_ask(house, contents, seen, stopping)) for _ in range(_CLIENTS)]
            rng = random.Random(seed)
            await asyncio.gather(
                _reap(house.agent, kills - kills // 2, "agent", random.Random(rng.random()), seen, tell),
                _reap(house.gateway, kills // 2, "gateway", random.Random(rng.random()), seen, tell),
            )
            stopping.set()
            await asyncio.gather(*asking)
            for network in networks:
                network.cancel()
            await asyncio.gather(*networks, return_exceptions=True)
            for proxy in house.proxies:
                await proxy.become(FINE)
                proxy.reset()  # what a black hole swallowed on a connection stays lost
            await _count(house, seen)
    seen.seconds = time.monotonic() - began_s
    return seen


async def _reap(  # noqa: PLR0917
    tier: Tier, kills: int, name: str, rng: random.Random, seen: Campaign, tell: Callable[[Campaign], None]
) -> None:
    for left in range(kills, 0, -1):
        if rng.random() < _IN_ITS_START:
            await asyncio.sleep(rng.uniform(0.0, 0.3))
        else:
            await tier.ready()
            if left == 1:
                await until(lambda: len(seen.acknowledged) >= _LEAST_ACKNOWLEDGED, _PATIENCE_S)
            await asyncio.sleep(rng.expovariate(1 / _LIFE_S))
        await tier.kill()
        seen.kills[name] += 1
        tell(seen)
        tier.start()
    await tier.ready()


async def _ask(house: Victims, contents: Iterator[bytes], seen: Campaign, stopping: asyncio.Event) -> None:
    """One application, which is answered at once and wants the full model's answer later."""
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
        while not stopping.is_set():
            await asyncio.sleep(_PAUSE_S)
            url = f"{house.agent.url}/firstline/v1/models/{MODEL}/infer?route=cloud&wait=first"
            seen.asked += 1
            try:
                answer = (await client.post(url, content=next(contents))).json()
            except (*_TRANSITORY, ValueError):  # the process died over it: nothing was acknowledged
                continue
            if answer.get("durable"):
                seen.acknowledged.append(answer["request_id"])


async def _count(house: Victims, seen: Campaign) -> None:
    """What became of each, as long as any still moves."""
    corrected: set[str] = set()
    async with httpx.AsyncClient(timeout=30, trust_env=False, base_url=house.agent.url) as client:

        async def left() -> int:
            """Promises that are not kept, and corrections of unknown requests."""
            depth: int = (await client.get("/firstline/v1/status")).json()["outbox"]["items"]
            unheard = sum(request_id not in seen.announced for request_id in seen.acknowledged)
            return depth + (unheard if house.broker is not None else 0)

        before, moved_s = await left(), time.monotonic()
        while before and time.monotonic() - moved_s < _PATIENCE_S:
            await asyncio.sleep(0.2)
            now = await left()
            if now < before:
                before, moved_s = now, time.monotonic()
        for request_id in seen.acknowledged:
            reply = await client.get(f"/firstline/v1/answers/{request_id}")
            status = reply.json()["status"] if reply.status_code == 200 else "lost"
            seen.ends[status if status in (Status.FINAL, Status.EXPIRED) else "lost"] += 1
            if status == Status.FINAL:
                corrected.add(request_id)
        if house.broker is not None:
            seen.unheard = sum(request_id not in seen.announced for request_id in seen.acknowledged)
    corrections = Counter(str(line["request_id"]) for line in house.decisions if line.get("event") == "corrected")
    seen.alarms = sum(log.count("Traceback") + log.count("[error ") for log in house.logs)
    recorded = house.recorded
    seen.recorded, seen.unrecorded = len(recorded), len(corrected.difference(recorded))
    seen.repeated = sum(corrections.values()) - len(corrections) + len(recorded) - len(set(recorded))


@asynccontextmanager
async def _heard(house: Victims, seen: Campaign) -> AsyncIterator[None]:
    """An application near the device, which hears the corrections."""
    if house.broker is None:
        yield
        return
    first: dict[str, bytes] = {}

    async def note(message: Message) -> None:
        answer = mqtt_messages.read_response(message).answer
        seen.announced[answer.request_id] += 1
        seen.unlike += first.setdefault(answer.request_id, message.payload) != message.payload

    async with AsyncExitStack() as stack:
        application = MqttClient(MqttSettings(house.broker.host, house.broker.port, client_id="application"))
        stack.push_async_callback(application.close)
        await application.subscribe(Topics(DEVICE).results, note)
        await application.connect(10)
        yield


def fresh_scans(seed: int) -> Iterator[bytes]:
    """Pictures that no cache has seen: a PNG's readers stop at its end, a digest does not."""
    for number, content in enumerate(itertools.cycle(scans(50))):
        yield content + b"%d %d" % (seed, number)


def run_campaign(kills: int, seed: int) -> Campaign:
    """As `campaign`, for a process of its own, which tells on stderr how far it is."""

    def tell(seen: Campaign) -> None:
        done = sum(seen.kills.values())
        if done % 25 == 0:
            print(f"house {seed}: {done}/{kills} kills, {len(seen.acknowledged)} acknowledged", file=sys.stderr)

    return asyncio.run(campaign(kills, seed, tell=tell))
