"""The demo's site: a gateway, a device and optionally a broker, each in its own process, and a link that can be cut."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from firstline.client.async_client import AsyncClient
from firstline.demo.cuttable_link import CuttableLink
from firstline.demo.tiers import START_TIMEOUT_S, create_device_key, last_words, process, tier
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


@asynccontextmanager
async def broker(folder: Path) -> AsyncIterator[int]:
    """Runs Mosquitto on a free loopback port and yields the port.

    Raises:
        ConfigError: it did not start.
    """
    port = _free_port()
    config = folder / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n")
    log = folder / "mosquitto.log"
    async with process([str(mosquitto()), "-c", str(config)], log) as running:
        for _ in range(int(START_TIMEOUT_S / 0.05)):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                if running.returncode is not None:
                    raise ConfigError(f"mosquitto did not start. It said: {last_words(log)}") from None
                await asyncio.sleep(0.05)
            else:
                writer.close()
                break
        yield port


def mosquitto() -> Path | None:
    """Returns the path of the broker's binary; None without one. Debian installs it outside of users' PATH."""
    binary = shutil.which("mosquitto", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
    return Path(binary) if binary else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
        """Returns the local port of the gateway or the broker."""
        port = self._gateway_port if transport == "http" else self._broker_port
        assert port is not None  # noqa: S101 (`transports` offers mqtt only with a broker)
        return port

    @asynccontextmanager
    async def device(self, transport: Transport, settings: str = "") -> AsyncIterator[Device]:
        """Starts an agent whose link uses `transport`; the next agent with that transport finds its state.

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
    """Starts the gateway and its broker in processes of their own, and stops them at the end of the block.

    Args:
        folder: an empty folder for configurations, logs and state.
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
        token_file.write_text(await create_device_key(config, DEVICE))
        gateway = await stack.enter_async_context(tier("firstline_gateway", config, folder / "gateway.log"))
        yield Site(folder, gateway.url, broker_port)


def digits_folder() -> Path:
    """Returns the folder that holds `bundle/` and `heldout/`.

    Raises:
        ConfigError: neither the wheel nor the checkout has it.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "digits", here.parents[1] / "models" / "digits"):
        if (folder / "bundle" / "manifest.json").is_file():
            return folder
    raise ConfigError("The demo's digits bundle is missing from this installation; reinstall firstline[workbench].")


def next_commands() -> tuple[str, str, str]:
    """Returns what to type after the demo: serve these models, certify one's own, configure a device."""
    return (
        f"firstline run {shlex.quote(str(digits_folder() / 'bundle'))}",
        "firstline pair --edge small.onnx --full large.onnx --data images --out pair",
        "edge-agent init",
    )
