"""Stands for many devices at one broker: they live as `fleet.population` has it, and say it in the agent's documents.

One connection speaks and hears for all of them, which a broker allows that lets anybody in: what connections cost it is
measured by `make scale`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
from fleet.population import Device, population
from msgspec.structs import replace

from firstline_core.errors import FirstlineError
from firstline_core.fleet.twin import Desired, read_document
from firstline_core.fleet.update import UpdateState
from firstline_core.protocol.mqtt import Message, MqttClient, MqttSettings, Publication
from firstline_core.protocol.topics import DEFAULT_PREFIX, Topics

_SESSION = "session"  # as the population's documents have it
_AT_ONCE = 64
_TIMEOUT_S = 20.0
# What an agent says of a small device.
_CAPABILITIES = {"runtimes": ("onnx", "tflite"), "architecture": "aarch64", "memory_mb": 3792, "free_gib": 21}


class Crowd:
    """So many devices, connected.

    Args:
        client: to the broker, connected.
        devices: by name.
        install_s: an update is committed up to so long after it was begun.

    Attributes:
        behind_s: how much later than it was due the latest heartbeat went out.
        heartbeats: so far.
        dropped: words that the broker did not keep for whoever was too slow, as it says each second.
    """

    def __init__(self, client: MqttClient, devices: dict[str, Device], install_s: float) -> None:
        self.devices = devices
        self.names = sorted(devices)
        self.behind_s = 0.0
        self.heartbeats = 0
        self.dropped = 0
        self._client = client
        self._install_s = install_s
        self._rng = random.Random(1)
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._installing: set[asyncio.Task[None]] = set()

    async def come(self, names: Sequence[str]) -> None:
        """Devices say that they are there, and what they run."""
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(self._come(name))

    async def _come(self, name: str) -> None:
        state = {"state": "online", "session_id": _SESSION}
        await self._say(Topics(name).state, msgspec.json.encode(state), retain=True)
        await self.report(name)

    async def report(self, name: str) -> int:
        """A device says what it runs; the sequence of its word."""
        said = replace(self.devices[name].reported, agent_version="0.1.0", capabilities=_CAPABILITIES)
        await self._say(Topics(name).reported, msgspec.json.encode(said), retain=True)
        return said.sequence

    async def beat(self, period_s: float, seconds: float) -> int:
        """Each device in turn says what it counted, so that each is heard once a period; how many words that were.

        Args:
            period_s: in which each says it once.
            seconds: for so long.
        """
        began_s, beats = time.monotonic(), 0
        while (due_s := due(beats, len(self.names), period_s)) < seconds:
            late_s = time.monotonic() - began_s - due_s
            if late_s < 0:
                await asyncio.sleep(-late_s)
            self.behind_s = max(0.0, late_s)
            await self._count(self.names[beats % len(self.names)], period_s)
            beats += 1
            self.heartbeats += 1
        return beats

    async def _count(self, name: str, period_s: float) -> None:
        device = self.devices[name]
        device.live(period_s / 3600)
        device.sequence += 1
        await self._say(Topics(name).telemetry, msgspec.json.encode(device.telemetry))

    async def _say(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        async with self._room:
            await self._client.publish(Publication(topic, payload, retain=retain))

    def hear(self, message: Message) -> None:
        """A device is told what it is to run."""
        name = message.topic.split("/")[-2]
        desired = read_document(message.payload, Desired, "What the gateway desires")
        if desired.models and desired.revision > self.devices[name].known.revision:
            task = asyncio.create_task(self._install(name, desired))
            self._installing.add(task)
            task.add_done_callback(self._installing.discard)

    async def _install(self, name: str, desired: Desired) -> None:
        device = self.devices[name]
        device.hear(desired, time.time())
        await self.report(name)
        await asyncio.sleep(self._rng.uniform(0, self._install_s))
        if device.update is not None and device.update.state is UpdateState.DOWNLOADING:
            device.hear(desired, time.time())
            await self.report(name)

    def count_dropped(self, message: Message) -> None:
        """The broker says how many words it has dropped."""
        self.dropped = int(message.payload)

    async def close(self) -> None:
        """Ends what is still being installed."""
        for task in self._installing:
            task.cancel()
        await asyncio.gather(*self._installing, return_exceptions=True)


@asynccontextmanager
async def crowd(host: str, port: int, number: int, install_s: float) -> AsyncIterator[Crowd]:
    """So many devices at a broker, which have not said anything yet.

    Raises:
        FirstlineError: the broker is not there.
    """
    client = MqttClient(MqttSettings(host, port, client_id="crowd", receive_maximum=1000))
    made = Crowd(client, population(number, seed=1), install_s)
    await client.listen(f"{DEFAULT_PREFIX}/+/desired", made.hear)
    await client.listen("$SYS/broker/publish/messages/dropped", made.count_dropped)
    try:
        await client.connect(_TIMEOUT_S)
        yield made
    except FirstlineError as error:
        raise RuntimeError(error.message) from error
    finally:
        await made.close()
        await client.close()


def due(beat: int, devices: int, period_s: float) -> float:
    """After how many seconds a heartbeat is due, where they are spread evenly over the period."""
    return beat * period_s / devices
