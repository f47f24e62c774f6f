"""A device and its gateway as processes that may be killed, behind proxies that make a bad network."""

import asyncio
import contextlib
import json
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from support.broker import Broker, find_mosquitto
from support.databases import sqlite_store
from support.keys import create_key
from support.proxy import ChaosProxy

from chaos.nursery import Nursery, Process, nursery

DEVICE = "device-1"
MODEL = "digits"
_BUNDLE = Path(__file__).parents[2] / "models" / "digits" / "bundle"

_GATEWAY = """\
[api]
port = 0
[models]
directory = "models"
[store]
deliveries_limit = 1000000
[log]
level = "warning"
"""
_AGENT = """\
[agent]
device_id = "{device}"
state_dir = "state"
[api]
port = 0
[models]
directories = ["device"]
# A campaign is short: the link is probed at least twice a second, and what waits is sent as soon as it may be.
[breaker]
open_ms = 50
open_max_ms = 500
[retries]
per_second = 1000
burst = 1000
[outbox]
limit_items = 1000000
answers_limit_bytes = 4000000000
[log]
level = "warning"
decisions_limit_bytes = 1000000000
[[links]]
kind = "http"
url = "http://127.0.0.1:{port}"
token_file = "device.token"
"""


class Tier:
    """One of the two, which lives again and again with the same state.

    Attributes:
        url: of its present or latest life; "" before the first.
    """

    def __init__(self, home: Nursery, config: Path, proxy: ChaosProxy | None = None) -> None:
        self._home = home
        self._config = config
        self._proxy = proxy
        self.process: Process | None = None
        self.url = ""

    async def start(self) -> None:
        """Begins a life; `ready` waits for its first answer."""
        self.process = await self._home.start(self._config)

    async def ready(self) -> str:
        self.url = await self.process.ready()
        if self._proxy is not None:
            self._proxy.server_port = urlsplit(self.url).port or 0
        return self.url

    async def kill(self) -> None:
        if self.process is not None:
            await self.process.end()


class Victims:
    """Both tiers, and what lies between them.

    Attributes:
        proxies: those that the device's links lead through.
        broker: None where the device has no MQTT link.
    """

    def __init__(
        self, folder: Path, agent: Tier, gateway: Tier, proxies: list[ChaosProxy], broker: Broker | None
    ) -> None:
        self.folder = folder
        self.agent = agent
        self.gateway = gateway
        self.proxies = proxies
        self.broker = broker

    @property
    def logs(self) -> list[str]:
        """What both tiers wrote to standard error, life by life."""
        return [log.read_text(errors="replace") for log in sorted(self.folder.glob("*.log"))]

    @property
    def recorded(self) -> list[str]:
        """The ids of the deliveries on the gateway's record."""
        with contextlib.closing(sqlite3.connect(self.folder / "gateway.db")) as store:
            return [request_id for (request_id,) in store.execute("SELECT request_id FROM deliveries")]

    @property
    def decisions(self) -> list[dict[str, object]]:
        """What the agent's decision log says, all lives of it; a line that a kill cut short is left out."""
        found = []
        for path in sorted((self.folder / "state").glob("decisions*.jsonl*")):
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    found.append(json.loads(line))
        return found


@asynccontextmanager
async def victims(
    folder: Path, seed: int, *, mqtt: bool, cache: str = "[cache]\ndisk_limit_bytes = 0\n"
) -> AsyncIterator[Victims]:
    """A device and its gateway, not started yet; whatever runs at the end is killed.

    Args:
        folder: empty.
        seed: of the network's jitter.
        mqtt: whether the device has a link over a real Mosquitto too, and announces its corrections there.
        cache: the agent's section of that name, as TOML; without a file by default, for starts are many.
    """
    shutil.copytree(_BUNDLE, folder / "models" / MODEL)
    shutil.copytree(_BUNDLE, folder / "device" / MODEL, ignore=shutil.ignore_patterns("full.onnx"))
    _keep_one_variant(folder / "device" / MODEL / "manifest.json")
    gateway_config, agent_config = folder / "gateway.toml", folder / "agent.toml"
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(ChaosProxy(0, seed))]
        agent, gateway = _AGENT.format(device=DEVICE, port=proxies[0].port), _GATEWAY
        broker = None
        if mqtt and find_mosquitto() is not None:
            broker = stack.enter_context(Broker(folder / "broker"))
            proxies.append(await stack.enter_async_context(ChaosProxy(broker.port, seed + 1)))
            agent += f'[[links]]\nkind = "mqtt"\nhost = "127.0.0.1"\nport = {proxies[1].port}\n'
            gateway += f'[mqtt]\nenabled = true\nhost = "127.0.0.1"\nport = {broker.port}\n'
        gateway_config.write_text(gateway)
        agent_config.write_text(agent + cache)
        await asyncio.to_thread(_make_key, folder)
        homes = [
            await stack.enter_async_context(nursery(module, folder))
            for module in ("firstline_edge", "firstline_gateway")
        ]
        tiers = Tier(homes[0], agent_config), Tier(homes[1], gateway_config, proxies[0])
        try:
            yield Victims(folder, *tiers, proxies, broker)
        finally:
            for tier in tiers:
                await tier.kill()


def _keep_one_variant(manifest: Path) -> None:
    """A device that loads one runtime starts sooner."""
    document = json.loads(manifest.read_bytes())
    document["edge"] = [variant for variant in document["edge"] if variant["runtime"] == "onnx"]
    manifest.write_text(json.dumps(document))


def _make_key(folder: Path) -> None:
    """Makes the store of the gateway with a key of the device, which has it in a file."""
    file = folder / "device.token"
    file.touch(mode=0o600)
    file.write_text(create_key(sqlite_store(folder), DEVICE, "device"))
