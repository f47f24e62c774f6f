"""Fixtures of the integration tests: a working folder for each test, and a gateway with clients of its fleet API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from support.fleet_gateway import fleet_client
from support.gateway import DIGITS, serving

from firstline_gateway.app import Gateway, open_gateway
from firstline_gateway.settings.load import load
from firstline_gateway.settings.settings import Store


@pytest.fixture(autouse=True)
def _own_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the relative paths of a gateway's settings apart from those of other tests."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
async def gateway(store_settings: Store, tmp_path: Path) -> AsyncIterator[Gateway]:
    """Serves a gateway with an identity; its attribute `url` is its address."""
    overrides = {
        "models.directory": str(DIGITS.parent),
        "store.url": store_settings.url,
        "identity.directory": str(tmp_path / "identity"),
        "execution.sessions": 1,
    }
    gateway = open_gateway(load(None, overrides=overrides))
    async with serving(gateway) as url:
        gateway.url = url  # type: ignore[attr-defined]
        yield gateway


@pytest.fixture
async def cam(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """Sends requests of a device."""
    async with fleet_client(gateway, "cam", "device") as client:
        yield client


@pytest.fixture
async def keeper(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """Sends requests of an operator."""
    async with fleet_client(gateway, "ops", "operator") as client:
        yield client
