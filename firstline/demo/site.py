"""The demo's site: a gateway, a device and optionally a broker, each in its own process, and a link that can be cut."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from firstline.client.async_client import AsyncClient
from firstline.demo.cuttable_link import CuttableLink
from firstline.demo.tiers import HTTP_LINK, START_TIMEOUT_S, last_words, process, run_agent, run_gateway
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError

LinkKind = Literal["http", "mqtt"]

DEVICE = "demo-device"

_GATEWAY_MQTT = """\
[mqtt]
enabled = true
host = "127.0.0.1"
port = {port}
"""
_BREAKER = """\
# A demo is short: the link is probed at least once a second.
[breaker]
open_ms = 200
open_max_ms = 1000
"""
_MQTT_LINK = """\
[[links]]
kind = "mqtt"
host = "127.0.0.1"
port = {port}
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

    transport: LinkKind
    url: str
    client: AsyncClient
    wire: CuttableLink
    process: asyncio.subprocess.Process


@dataclass(frozen=True, slots=True)
class Site:
    """A running gateway, and devices that are started one at a time.

    Attributes:
        folder: of configurations, logs and state.
        bundle: of both tiers.
        gateway_url: address of the gateway.
        ports: local port at the far end of a link, by its transport; MQTT only with a broker.
    """

    folder: Path
    bundle: Bundle
    gateway_url: str
    ports: Mapping[LinkKind, int]

    @asynccontextmanager
    async def device(self, transport: LinkKind, settings: str = "") -> AsyncIterator[Device]:
        """Starts an agent whose link uses `transport`; the next agent with that transport finds its state.

        Args:
            transport: one of `ports`.
            settings: further sections of its configuration, as TOML.
        """
        async with CuttableLink(self.ports[transport]) as wire:
            http = HTTP_LINK.format(url=f"http://127.0.0.1:{wire.port}")
            settings = _BREAKER + (http if transport == "http" else _MQTT_LINK.format(port=wire.port)) + settings
            name = f"agent-{transport}"
            async with (
                run_agent(self.bundle, self.folder, settings, device=DEVICE, name=name) as agent,
                AsyncClient(agent.url) as client,
            ):
                yield Device(transport, agent.url, client, wire, agent.process)


@asynccontextmanager
async def open_site(folder: Path, bundle: Bundle, mosquitto: bool) -> AsyncIterator[Site]:
    """Starts the gateway and its broker in processes of their own, and stops them at the end of the block.

    Args:
        folder: an empty folder for configurations, logs and state.
        bundle: of both tiers.
        mosquitto: also start a broker.

    Raises:
        ConfigError: a process did not start.
    """
    ports: dict[LinkKind, int] = {}
    async with AsyncExitStack() as stack:
        settings = ""
        if mosquitto:
            ports["mqtt"] = await stack.enter_async_context(broker(folder))
            settings = _GATEWAY_MQTT.format(port=ports["mqtt"])
        gateway = await stack.enter_async_context(run_gateway(bundle, folder, settings, device=DEVICE))
        yield Site(folder, bundle, gateway.url, {"http": gateway.port, **ports})


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
