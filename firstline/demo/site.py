"""The demo's site: a gateway, a device, optionally a broker, and a link between them that can be cut."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from firstline.client.async_client import AsyncClient
from firstline.demo.cuttable_link import CuttableLink
from firstline.demo.processes import broker, tier
from firstline_core.errors import ConfigError

Transport = Literal["http", "mqtt"]

DEVICE = "demo-device"

_GATEWAY = """\
[api]
port = 0
[models]
directory = "models"
"""
_GATEWAY_MQTT = """\
[mqtt]
enabled = true
host = "127.0.0.1"
port = {port}
"""
_AGENT = """\
[agent]
device_id = "{device}"
state_dir = "state-{transport}"
[api]
port = 0
[models]
directories = ["device"]
# A demo is short: the link is probed at least once a second.
[breaker]
open_ms = 200
open_max_ms = 1000
[[links]]
kind = "{transport}"
"""


@dataclass(frozen=True, slots=True)
class Device:
    """A running agent, asked at `url` or through `client`; `wire` is its only way to the gateway."""

    transport: Transport
    url: str
    client: AsyncClient
    wire: CuttableLink
    process: asyncio.subprocess.Process


class Site:
    """A running gateway, and devices that are started one at a time."""

    def __init__(self, folder: Path, gateway_url: str, broker_port: int | None) -> None:
        self.gateway_url = gateway_url
        self._folder = folder
        self._gateway_port = urlsplit(gateway_url).port
        self._broker_port = broker_port

    @property
    def transports(self) -> tuple[Transport, ...]:
        return ("http",) if self._broker_port is None else ("http", "mqtt")

    def far_port(self, transport: Transport) -> int:
        """Where the gateway or the broker listens on this machine."""
        port = self._gateway_port if transport == "http" else self._broker_port
        assert port is not None  # noqa: S101 (`transports` offers mqtt only with a broker)
        return port

    @asynccontextmanager
    async def device(self, transport: Transport, settings: str = "") -> AsyncIterator[Device]:
        """Starts an agent whose link uses `transport`; its state outlives it, for the next one of that transport.

        Args:
            transport: one of `transports`.
            settings: further sections of its configuration, as TOML.
        """
        async with AsyncExitStack() as stack:
            wire = await stack.enter_async_context(CuttableLink(self.far_port(transport)))
            config = self._folder / f"agent-{transport}.toml"
            link = (
                f'url = "http://127.0.0.1:{wire.port}"\ntoken_file = "device.token"\n'
                if transport == "http"
                else f'host = "127.0.0.1"\nport = {wire.port}\n'
            )
            config.write_text(_AGENT.format(device=DEVICE, transport=transport) + link + settings)
            log = self._folder / f"agent-{transport}.log"
            agent = await stack.enter_async_context(tier("firstline_edge", config, log))
            client = await stack.enter_async_context(AsyncClient(agent.url))
            yield Device(transport, agent.url, client, wire, agent.process)


@asynccontextmanager
async def open_site(folder: Path, bundle: Path, mosquitto: bool) -> AsyncIterator[Site]:
    """Starts what the devices need, in processes of its own, and stops it again.

    Args:
        folder: empty; configurations, logs and state go here.
        bundle: folder of the bundle; the device gets it without the full model.
        mosquitto: also start a broker.

    Raises:
        ConfigError: a process did not start.
    """
    shutil.copytree(bundle, folder / "models" / bundle.name)
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    full_file = Path(manifest["full"]["artefact"]["file"]).name
    shutil.copytree(bundle, folder / "device" / bundle.name, ignore=shutil.ignore_patterns(full_file))
    async with AsyncExitStack() as stack:
        broker_port = await stack.enter_async_context(broker(folder)) if mosquitto else None
        config = folder / "gateway.toml"
        config.write_text(_GATEWAY + (_GATEWAY_MQTT.format(port=broker_port) if broker_port else ""))
        token_file = folder / "device.token"
        token_file.touch(mode=0o600)
        token_file.write_text(await _create_key(config))
        gateway = await stack.enter_async_context(tier("firstline_gateway", config, folder / "gateway.log"))
        yield Site(folder, gateway.url, broker_port)


async def _create_key(config: Path) -> str:
    """The device's key, made by the command that an operator would use."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "firstline_gateway", "key", "create", DEVICE, "--device"),
        *("--config", str(config)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        key, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise ConfigError(f"The device's key could not be made: {said.decode(errors='replace').strip()}")
    return key.decode()
