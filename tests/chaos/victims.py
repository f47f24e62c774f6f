"""A device and its gateway as processes that may be killed, behind proxies that make a bad network."""

import asyncio
import contextlib
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from support.broker import Broker, find_mosquitto
from support.databases import sqlite_store
from support.forks import ForkedProcess
from support.keys import create_key
from support.proxy import ChaosProxy
from support.waiting import until

_START_TIMEOUT_S = 60.0
_LOOK_S = 0.005

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

    Args:
        module: "firstline_edge" or "firstline_gateway".
        config: its configuration; it writes what it says next to it.
        proxy: leads to it.
        forked: see `support/forks.py`; a forked process has more in memory than users' has.

    Attributes:
        process: of its present or latest life; None before the first.
        url: of its present or latest life; "" before the first.
    """

    def __init__(self, module: str, config: Path, proxy: ChaosProxy | None = None, *, forked: bool = True) -> None:
        self._command = (module, "run", "--config", str(config), "--port", "0", "-o", "json")
        self._forked = forked
        self._config = config
        self._proxy = proxy
        self._lives = 0
        self._output = self._log = config
        self.process: ForkedProcess | subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> None:
        """Begins a life, on a port that the system chooses; `ready` waits for its first answer."""
        self._lives += 1
        self._output, self._log = (
            self._config.with_name(f"{self._config.stem}-{self._lives}.{kind}") for kind in ("out", "log")
        )
        with self._output.open("wb") as output, self._log.open("wb") as log:
            if self._forked:
                self.process = ForkedProcess(*self._command, stdout=output, stderr=log)
            else:
                self.process = subprocess.Popen([sys.executable, "-m", *self._command], stdout=output, stderr=log)

    async def ready(self) -> str:
        """Its URL, once it answers.

        Raises:
            RuntimeError: it ended before; its last words are quoted.
        """
        async with asyncio.timeout(_START_TIMEOUT_S):
            while not (output := self._output.read_text()).endswith("\n"):
                if self.process.poll() is not None:
                    raise RuntimeError(f"It did not start. It said: {self._log.read_text()[-2000:]}")
                await asyncio.sleep(_LOOK_S)
        self.url = json.loads(output)["url"]
        if self._proxy is not None:
            self._proxy.server_port = urlsplit(self.url).port or 0
        return self.url

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal, and returns once it has ended."""
        if (process := self.process) is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                process.send_signal(number)
            await until(lambda: process.poll() is not None)


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
    folder: Path, seed: int, *, mqtt: bool, cache: str = "[cache]\ndisk_limit_bytes = 0\n", forked: bool = True
) -> AsyncIterator[Victims]:
    """A device and its gateway, not started yet; whatever runs at the end is killed.

    Args:
        folder: empty.
        seed: of the network's jitter.
        mqtt: whether the device has a link over a real Mosquitto too, and announces its corrections there.
        cache: the agent's section of that name, as TOML; without a file by default, for starts are many.
        forked: see `Tier`.
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
        tiers = (
            Tier("firstline_edge", agent_config, forked=forked),
            Tier("firstline_gateway", gateway_config, proxies[0], forked=forked),
        )
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
