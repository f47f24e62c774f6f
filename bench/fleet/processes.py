"""The gateway and the agents of `real`, each a process of its own: set up, asked, killed and started anew."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from bench.fleet.bundles import sample
from firstline.client.async_client import AsyncClient
from firstline.demo.processes import tier
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import FirstlineError
from firstline_edge.fleet.updates.history import History
from firstline_edge.fleet.updates.slots import manifest_sha256

_TIMEOUT_S = 120.0
_DOWN_S = 0.2

_GATEWAY = """\
[models]
directory = "bundles"
[store]
url = "sqlite:///{folder}/gateway.db"
[registry]
blobs = "blobs"
[mqtt]
enabled = true
host = "127.0.0.1"
port = {port}
[log]
level = "warning"
"""
_AGENT = """\
[agent]
device_id = "{name}"
state_dir = "state"
[models]
directories = ["models"]
[[links]]
kind = "mqtt"
host = "127.0.0.1"
port = {port}
[[links]]
kind = "http"
url = "{url}"
token_file = "token"
[audit]
per_hour = 100000
[fleet]
enabled = true
root_file = "root.json"
telemetry_s = 2.0
download_jitter_s = 1.0
trial_s = 2.0
[log]
level = "warning"
requests = false
"""


@asynccontextmanager
async def gateway(folder: Path, broker_port: int) -> AsyncIterator[str]:
    """With a registry, and all full models; its address."""
    config = folder / "gateway.toml"
    config.write_text(_GATEWAY.format(folder=folder, port=broker_port))
    async with tier("firstline_gateway", config, folder / "gateway.log") as running:
        yield running.url


class Agent:
    """One agent, and what looks after its process.

    Attributes:
        answered: requests so far.
        kills: so far.
    """

    def __init__(self, folder: Path, name: str, url: str, token: str, broker_port: int) -> None:
        self.name = name
        self.answered = self.kills = 0
        self._folder = folder
        self._config = _AGENT.format(name=name, port=broker_port, url=url)
        self._token = token
        self._ready = asyncio.Event()
        self._url = ""
        self._process: asyncio.subprocess.Process | None = None

    def set_up(self, bundle: Path, root: Path, name: str) -> None:
        """Its files: what it is set up with, without the full model."""
        self._folder.mkdir()
        self._setup = self._folder / "models" / name
        shutil.copytree(bundle, self._setup, ignore=shutil.ignore_patterns("full.onnx"))
        shutil.copy(root, self._folder / "root.json")
        token = self._folder / "token"
        token.touch(mode=0o600)
        token.write_text(self._token)
        (self._folder / "agent.toml").write_text(self._config)

    async def supervise(self, turn: asyncio.Semaphore) -> None:
        """Runs it, and again whenever it ends, until this is cancelled.

        Args:
            turn: so many start at once: they need the processor for seconds.
        """
        for number in itertools.count(1):
            async with turn:
                starting = tier("firstline_edge", self._folder / "agent.toml", self._folder / f"log-{number}")
                running = await starting.__aenter__()
            try:
                self._url, self._process = running.url, running.process
                self._ready.set()
                await running.process.wait()
            finally:
                self._ready.clear()
                self._process = None
                await starting.__aexit__(None, None, None)

    async def ready(self) -> None:
        """Returns when it answers requests."""
        async with asyncio.timeout(_TIMEOUT_S):
            await self._ready.wait()

    def kill(self) -> bool:
        """Ends its process without a word; False where none runs."""
        if self._process is None or self._process.returncode is not None:
            return False
        self._process.kill()
        self.kills += 1
        return True

    async def ask(self, rows: int, period_s: float) -> None:
        """Asks it for as many rows every period, one request after the other, until this is cancelled."""
        name, seeds = self._setup.name, itertools.count(zlib.crc32(self.name.encode()))
        while True:
            await self._ready.wait()
            async with AsyncClient(self._url) as client:
                while self._ready.is_set():
                    try:
                        await client.infer(name, {"x": sample(next(seeds), rows)})
                        self.answered += 1
                    except (FirstlineError, httpx.HTTPError):
                        await asyncio.sleep(_DOWN_S)
                    await asyncio.sleep(period_s)

    def on_disk(self) -> tuple[str, int] | None:
        """Manifest's sha256 and version of the bundle that its disk says runs; None where that does not verify."""
        history = History(self._folder / "state" / "models", repair=False)
        name = self._setup.name
        path = history.path(name, history.pointer(name).slot) or self._setup
        try:
            return manifest_sha256(path), open_bundle(path).manifest.version
        except FirstlineError:
            return None
