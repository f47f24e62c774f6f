"""A gateway whose fleet connects over a broker, with a store that survives restarts, and clients of the fleet API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from support.broker import Broker
from support.databases import sqlite_store
from support.gateway import DIGITS, wait_for_gauge
from support.keys import bearer, create_key

from firstline_gateway.app import Gateway, open_gateway
from firstline_gateway.settings.load import load


@asynccontextmanager
async def fleet_gateway(broker: Broker, folder: Path) -> AsyncIterator[Gateway]:
    """Runs it in this process, and waits until its fleet has subscribed at the broker.

    Args:
        broker: that devices speak through.
        folder: of its store and its identity.
    """
    overrides = {
        "models.directory": str(DIGITS.parent),
        "store.url": sqlite_store(folder).url,
        "identity.directory": str(folder / "identity"),
        "mqtt.enabled": True,
        "mqtt.port": broker.port,
        "auth.mode": "off",
        "execution.sessions": 1,
    }
    gateway = open_gateway(load(None, overrides=overrides))
    await gateway.start()
    try:
        await wait_for_gauge(gateway, "firstline_gateway_fleet_mqtt_connected")
        yield gateway
    finally:
        await gateway.close()


def fleet_client(gateway: Gateway, url: str, name: str, kind: str) -> httpx.AsyncClient:
    """Returns a client with a new key of the gateway that serves this URL."""
    key = create_key(gateway.settings.store, name, kind)
    return httpx.AsyncClient(base_url=url, headers=bearer(key), timeout=20)
