"""A gateway with TLS and its Mosquitto, as an operator sets them up, for devices that join them."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from support.broker import HOST, Broker, free_port
from support.databases import sqlite_store
from support.gateway import DIGITS, serving, wait_for_gauge
from support.identities import invite
from support.keys import bearer, create_key

from firstline_gateway.app import Gateway, open_gateway
from firstline_gateway.broker.config import CONFIGURATION
from firstline_gateway.settings.load import load

REFRESH_S = 0.2


@dataclass
class Site:
    """What runs, and who keeps the fleet."""

    folder: Path
    gateway: Gateway
    url: str
    keeper: httpx.AsyncClient
    broker: Broker | None
    device_port: int
    gateway_port: int

    async def token_file(self, device: str) -> Path:
        """A join token as the operator hands it over."""
        (token,) = await invite(self.keeper, device)
        file = self.folder / f"{device}.token"
        file.write_text(token + "\n")
        return file

    async def revoke(self, device: str) -> None:
        reply = await self.keeper.post(f"/firstline/v1/devices/{device}/revoke")
        assert reply.status_code == 200, reply.text


@asynccontextmanager
async def site(folder: Path, *, mosquitto: bool = False, **overrides: object) -> AsyncIterator[Site]:
    """A gateway with the digits on a free port; with `mosquitto` also a broker on the files that it writes."""
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240 (a test's own)
    store = sqlite_store(folder)
    key = create_key(store, "ops", "operator")
    device_port, gateway_port = free_port(), free_port()
    settings: dict[str, object] = {
        "tls.enabled": True,
        "tls.hosts": (HOST,),
        "auth.refresh_s": REFRESH_S,
        "identity.directory": str(folder / "identity"),
        "models.directory": str(DIGITS.parent),
        "store.url": store.url,
    }
    if mosquitto:
        settings |= {
            "identity.broker_host": HOST,
            "identity.broker_port": device_port,
            "mqtt.enabled": True,
            "mqtt.port": gateway_port,
            "broker.directory": str(folder / "broker"),
            "broker.port": device_port,
            "broker.gateway_port": gateway_port,
            "broker.pid_file": str(folder / "mosquitto.pid"),
        }
    gateway = open_gateway(load(None, overrides=settings | overrides))
    async with AsyncExitStack() as stack:
        broker = None
        if mosquitto:
            config = folder / "mosquitto.conf"
            text = (folder / "broker" / CONFIGURATION).read_text()
            config.write_text(text + ("user root\n" if os.geteuid() == 0 else ""))
            broker = stack.enter_context(Broker(folder, config=config, port=gateway_port))
        url = await stack.enter_async_context(serving(gateway))
        if mosquitto:
            await wait_for_gauge(gateway, "firstline_gateway_mqtt_connected")
        verify = ssl.create_default_context(cafile=folder / "identity" / "authorities.pem")
        keeper = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, verify=verify, headers=bearer(key), timeout=10)
        )
        yield Site(folder, gateway, url, keeper, broker, device_port, gateway_port)
