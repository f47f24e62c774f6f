"""Both tiers as the processes that users start, for tests of a whole module: asked from outside, over real sockets."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from support.forks import run_forked
from support.processes import Module, TierProcess

from firstline.demo.site import DEVICE, Device, LinkKind, Site, open_site
from firstline.demo.tiers import RunningTier
from firstline_core.bundle.store import open_bundle

DIGITS = Path(__file__).parents[2] / "models" / "digits" / "bundle"

__all__ = ["DEVICE", "Line", "Tier", "forked_site", "line"]


@dataclass(frozen=True)
class Tier:
    """One tier's address, what its callers send along, and where it logs."""

    name: str
    url: str
    token: str
    log: Path

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@dataclass(frozen=True)
class Line:
    """A running device and its gateway; `cut` and `restore` are for the link between them."""

    agent: Tier
    gateway: Tier
    broker_port: int | None
    _device: Device
    _loop: asyncio.AbstractEventLoop

    @property
    def tiers(self) -> dict[str, Tier]:
        return {"agent": self.agent, "gateway": self.gateway}

    def check_logs(self) -> None:
        """Expects that neither tier has logged an error, nor uvicorn that it was asked for another protocol."""
        for tier in self.tiers.values():
            logged = tier.log.read_text()
            assert not any(sign in logged for sign in ("Traceback", "[error", "Unsupported upgrade")), logged

    def cut(self) -> None:
        asyncio.run_coroutine_threadsafe(self._device.wire.cut(), self._loop).result(10)

    def restore(self) -> None:
        asyncio.run_coroutine_threadsafe(self._device.wire.restore(), self._loop).result(10)


@asynccontextmanager
async def _forked_tier(module: Module, config: Path, log: Path, port: int = 0) -> AsyncIterator[RunningTier]:
    """As `firstline.demo.tiers.tier`; the event loop carries the link meanwhile."""
    running = TierProcess(module, "--config", config, log=log, port=port)
    await asyncio.to_thread(running.start)
    try:
        yield RunningTier(running.url, running.process)
        if running.process.poll() is None:
            await asyncio.to_thread(running.stop)
    finally:
        running.kill()


async def _device_key(config: Path, device: str) -> str:
    command = ("key", "create", device, "--device", "--config", config)
    return (await asyncio.to_thread(run_forked, "firstline_gateway", *command)).stdout


@asynccontextmanager
async def forked_site(folder: Path, bundle: Path = DIGITS, *, mosquitto: bool = False) -> AsyncIterator[Site]:
    """The demo's site with forked processes; `wait` of a device's process blocks."""
    with patch.multiple("firstline.demo.tiers", tier=_forked_tier, create_device_key=_device_key):
        async with open_site(folder, open_bundle(bundle), mosquitto) as site:
            yield site


@contextmanager
def line(
    folder: Path,
    *,
    transport: LinkKind = "http",
    settings: str = "",
    environ: Mapping[str, str] | None = None,
) -> Iterator[Line]:
    """Starts both tiers with the digits, with an event loop in a separate thread, and stops them.

    Args:
        folder: empty.
        transport: of the link; "mqtt" also starts a broker.
        settings: further sections of the agent's configuration, as TOML.
        environ: set for the processes, such as FIRSTLINE_GATEWAY_API__BODY_LIMIT_BYTES.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    mqtt = transport == "mqtt"
    running = forked_site(folder, mosquitto=mqtt)
    try:
        # The survey begins after 30 s, in which a module's tests have often ended.
        with patch.dict(os.environ, {"FIRSTLINE_EDGE_HARDWARE__SURVEY": "false"} | dict(environ or {})):
            built: Site = asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result(60)
            device_running = built.device(transport, settings)
            device = asyncio.run_coroutine_threadsafe(device_running.__aenter__(), loop).result(60)
        try:
            yield Line(
                agent=Tier("agent", device.url, "", folder / f"agent-{transport}.log"),
                gateway=Tier(
                    "gateway", built.gateway_url, (folder / "device.token").read_text().strip(), folder / "gateway.log"
                ),
                broker_port=built.ports.get("mqtt"),
                _device=device,
                _loop=loop,
            )
        finally:
            asyncio.run_coroutine_threadsafe(device_running.__aexit__(None, None, None), loop).result(30)
    finally:
        asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
