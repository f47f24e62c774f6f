"""A gateway whose fleet comes over a broker, with its store in a folder: started again, it knows what it knew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.broker import Broker
from support.databases import sqlite_store
from support.gateway import DIGITS

from firstline_gateway.app import Gateway, open_gateway
from firstline_gateway.settings.load import load


@asynccontextmanager
async def fleet_gateway(broker: Broker, folder: Path) -> AsyncIterator[Gateway]:
    """Runs it in this process.

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
        yield gateway
    finally:
        await gateway.close()
