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
async def served_gateway(store_settings: Store, tmp_path: Path) -> AsyncIterator[tuple[Gateway, str]]:
    """Serves a gateway with an identity; returns it with its URL."""
    overrides = {
        "models.directory": str(DIGITS.parent),
        "store.url": store_settings.url,
        "identity.directory": str(tmp_path / "identity"),
        "execution.sessions": 1,
    }
    gateway = open_gateway(load(None, overrides=overrides))
    async with serving(gateway) as url:
        yield gateway, url


@pytest.fixture
def gateway(served_gateway: tuple[Gateway, str]) -> Gateway:
    return served_gateway[0]


@pytest.fixture
def gateway_url(served_gateway: tuple[Gateway, str]) -> str:
    return served_gateway[1]


@pytest.fixture
async def cam(gateway: Gateway, gateway_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Sends requests of a device."""
    async with fleet_client(gateway, gateway_url, "cam", "device") as client:
        yield client


@pytest.fixture
async def keeper(gateway: Gateway, gateway_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Sends requests of an operator."""
    async with fleet_client(gateway, gateway_url, "ops", "operator") as client:
        yield client
