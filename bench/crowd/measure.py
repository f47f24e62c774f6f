"""A gateway, a broker and a crowd: the devices come, say what they counted once a minute, and take a rollout."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
from fleet.population import BUNDLE, NEW
from scaling import loads, units
from support.broker import Broker
from support.keys import bearer, create_key

from crowd.devices import Crowd, crowd
from crowd.table import Run
from firstline_core.fleet.rest import DEVICES_PATH, FleetDevice, FleetDevicePage
from firstline_core.fleet.rollout import ROLLOUTS_PATH, RolloutSummary
from firstline_gateway.settings.settings import Store

_CHUNK = 250  # devices that come at once: a broker keeps no more than 1,000 words for a gateway that is slower
_PAGE = 100
_TIMEOUT_S = 60.0
_ROLLOUT_S = 150.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How long things take.

    Attributes:
        period_s: in which each device is heard once.
        beats_s: for so long that is measured, and nothing else done.
        probe_s: then for so long it is looked how soon words are seen.
        idle_s: before anybody comes.
        install_s: a device takes up to so long to install; agents wait up to 30 s before they fetch.
        soak_s: for which a stage is observed.
        queue: words that the broker keeps for a reader that is slower; 20,000 are what the broker files here say.
        share: of the devices that take the rollout first, before all others do.
    """

    period_s: float = 60.0
    beats_s: float = 60.0
    probe_s: float = 6.0
    idle_s: float = 3.0
    install_s: float = 20.0
    soak_s: float = 4.0
    share: float = 0.1
    queue: int = 20_000


class Site:
    """What is measured, and a person's way to it."""

    def __init__(self, gateway: units.Gateway, broker: Broker, rest: httpx.AsyncClient, there: Crowd) -> None:
        self.gateway, self.broker, self.there = gateway, broker, there
        self._rest = rest

    def cpu_s(self) -> tuple[float, float]:
        """Of the gateway, and of the broker, so far."""
        return loads.cpu_s([self.gateway.pid]), loads.cpu_s([self.broker.pid])

    def rss_bytes(self) -> int:
        return loads.resident_bytes(self.gateway.pid)

    async def get(self, path: str, kind: Any, **params: object) -> Any:
        """What the gateway answers; None where there is no such thing."""
        answer = await self._rest.get(path, params=params)  # type: ignore[arg-type]
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        return msgspec.json.decode(answer.raise_for_status().content, type=kind)

    async def post(self, path: str, body: object) -> RolloutSummary:
        answer = await self._rest.post(path, json=body)
        if answer.is_error:
            raise RuntimeError(answer.text)
        return msgspec.json.decode(answer.content, type=RolloutSummary)

    async def everybody(self) -> list[FleetDevice]:
        """All devices that the gateway knows."""
        found: list[FleetDevice] = []
        after: str | None = ""
        while after is not None:
            page = await self.get(DEVICES_PATH, FleetDevicePage, after=after)
            found, after = [*found, *page.devices], page.after
        return found


@asynccontextmanager
async def site(folder: Path, devices: int, effort: Effort) -> AsyncIterator[Site]:
    """A gateway with SQLite and a broker, both processes of their own.

    Args:
        folder: that does not exist yet.
        devices: that will come.
        effort: how they behave.
    """
    folder.mkdir()  # noqa: ASYNC240 (nothing else runs)
    store = Store(url=f"sqlite:///{folder / 'gateway.db'}")
    headers = bearer(create_key(store, "ops", "operator"))
    with Broker(folder / "broker", settings=("sys_interval 1", f"max_queued_messages {effort.queue}")) as broker:
        mqtt = f'[mqtt]\nenabled = true\nhost = "{broker.host}"\nport = {broker.port}\n'
        async with units.gateway(folder / "gateway", store, mqtt) as gateway:
            url = f"http://{loads.HOST}:{gateway.port}"
            async with (
                httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT_S) as rest,
                crowd(broker.host, broker.port, devices, effort.install_s) as there,
            ):
                yield Site(gateway, broker, rest, there)


async def measure(folder: Path, devices: int, effort: Effort) -> Run:
    """All of it for one crowd."""
    async with site(folder, devices, effort) as found:
        there = found.there
        at_first_bytes = found.rss_bytes()
        before_s = found.cpu_s()
        await asyncio.sleep(effort.idle_s)
        idle_cores = (found.cpu_s()[0] - before_s[0]) / effort.idle_s
        units.tell(f"{devices:,} devices come")
        before_s, began_s = found.cpu_s(), time.monotonic()
        await come(found)
        births_s, births_cpu_s = time.monotonic() - began_s, found.cpu_s()[0] - before_s[0]
        units.tell("heartbeats")
        before_s, began_s = found.cpu_s(), time.monotonic()
        beats = await there.beat(effort.period_s, effort.beats_s)
        after_s, beats_s = found.cpu_s(), time.monotonic() - began_s
        silence_s = max(each.last_seen_age_s or 0.0 for each in await found.everybody())
        beats_bytes = found.rss_bytes()
        units.tell("how soon they are seen")
        beating = asyncio.create_task(there.beat(effort.period_s, float("inf")))
        delays_ms, pages_ms = await asyncio.gather(delays(found, effort.probe_s), pages(found, effort.probe_s))
        units.tell("a rollout")
        said, started_s, begun_s = there.heartbeats, found.cpu_s(), time.monotonic()
        reached = await roll_out(found, effort)
        rollout_s, ended_s = time.monotonic() - begun_s, found.cpu_s()
        if beating.done():
            beating.result()
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        return Run(
            devices=devices,
            idle_cores=idle_cores,
            births_s=births_s,
            births_cpu_s=births_cpu_s,
            beats=beats,
            beats_s=beats_s,
            beats_cpu_s=after_s[0] - before_s[0],
            broker_beats_cpu_s=after_s[1] - before_s[1],
            longest_silence_s=silence_s,
            delays_ms=tuple(delays_ms),
            pages_ms=tuple(pages_ms),
            reached=reached,
            rollout_s=rollout_s,
            rollout_cpu_s=ended_s[0] - started_s[0],
            broker_rollout_cpu_s=ended_s[1] - started_s[1],
            rollout_beats=there.heartbeats - said,
            rss_bytes=(at_first_bytes, beats_bytes, found.rss_bytes()),
            queue=effort.queue,
            dropped=there.dropped,
        )


async def come(found: Site) -> None:
    """All devices come, some at once and the next when those are known.

    Raises:
        RuntimeError: the gateway does not know them all.
    """
    names = found.there.names
    for first in range(0, len(names), _CHUNK):
        some = names[first : first + _CHUNK]
        await found.there.come(some)
        await seen(found, some[-1], 1, look_s=0.05)
    until_s = time.monotonic() + _TIMEOUT_S
    while (known := sum(each.reported is not None for each in await found.everybody())) < len(names):
        if time.monotonic() > until_s:
            raise RuntimeError(f"{len(names)} devices came, {known} are known")
        await asyncio.sleep(0.2)


async def seen(found: Site, name: str, sequence: int, look_s: float = 0.005) -> None:
    """Returns when the REST API tells a device's word.

    Raises:
        TimeoutError: it never does.
    """
    async with asyncio.timeout(_TIMEOUT_S):
        while True:
            device: FleetDevice | None = await found.get(f"{DEVICES_PATH}/{name}", FleetDevice)
            if device is not None and device.reported is not None and device.reported.sequence >= sequence:
                return
            await asyncio.sleep(look_s)


async def delays(found: Site, seconds: float) -> list[float]:
    """From a publication until the REST API tells it, in milliseconds; some a second, of any device."""
    rng, until_s, times_ms = random.Random(2), time.monotonic() + seconds, []
    while time.monotonic() < until_s:
        name, began_s = rng.choice(found.there.names), time.monotonic()
        await seen(found, name, await found.there.report(name))
        times_ms.append((time.monotonic() - began_s) * 1000)
        await asyncio.sleep(0.1)
    return times_ms


async def pages(found: Site, seconds: float) -> list[float]:
    """What a page of devices takes, in milliseconds; some a second, one after the other through all of them."""
    until_s, times_ms, after = time.monotonic() + seconds, [], ""
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        page: FleetDevicePage = await found.get(DEVICES_PATH, FleetDevicePage, after=after, limit=_PAGE)
        times_ms.append((time.monotonic() - began_s) * 1000)
        after = page.after or ""
        await asyncio.sleep(0.1)
    return times_ms


async def roll_out(found: Site, effort: Effort) -> int:
    """Brings a version to all devices; how many run it when the rollout has ended, or has taken far too long."""
    made = await found.post(ROLLOUTS_PATH, definition(effort.share, effort.soak_s))
    path = f"{ROLLOUTS_PATH}/{made.id}"
    now = await found.post(f"{path}/start", None)
    until_s = time.monotonic() + _ROLLOUT_S
    while now.state == "running" and time.monotonic() < until_s:
        await asyncio.sleep(0.5)
        now = await found.get(path, RolloutSummary)
    units.tell(f"{now.state}: {now.sentence} {now.devices}")
    return now.devices.get("done", 0)


def definition(share: float, soak_s: float) -> dict[str, Any]:
    """Of a rollout that is judged by the default rules, and waits for nothing that so short a time cannot show."""
    return {
        "bundle": BUNDLE,
        "version": NEW,
        "manifest_sha256": "0" * 64,
        "stages": [{"share": share, "soak_s": soak_s}],
        "rules": {"promote_unseen": True},
    }
