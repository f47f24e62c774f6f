"""Fixtures of the integration tests: a working folder for each test, and a gateway with clients of its fleet API."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from support.broker import Broker
from support.gateway import client_of, serving_gateway
from support.line import Line, Tier, line
from support.registry_site import RegistrySite, registry_site

from firstline_gateway.app import Gateway


@pytest.fixture(autouse=True)
def _own_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the relative paths of a gateway's settings apart from those of other tests."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def brief_row_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real models take longer for the check of rows, which has tests of its own, than for all else in a test."""
    monkeypatch.setattr("firstline.workbench.row_checks.LIMIT_S", 0.1)


@pytest.fixture
def few_checked_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick models are checked on the fewest rows; their number, which reports contain, is the same in each run."""
    monkeypatch.setattr("firstline.workbench.row_checks._ROWS", 8)


@pytest.fixture(params=["http", pytest.param("mqtt", marks=pytest.mark.mosquitto)])
def broker(request: pytest.FixtureRequest) -> Broker | None:
    """None for HTTP: the test runs once over each transport."""
    return request.getfixturevalue("mosquitto") if request.param == "mqtt" else None


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """Both tiers as processes with the digits; no request of a file's tests may cause an error of theirs."""
    with line(tmp_path_factory.mktemp("line")) as found:
        yield found
        found.check_logs()


@pytest.fixture(scope="module", params=["agent", "gateway"])
def tier(running: Line, request: pytest.FixtureRequest) -> Tier:
    """Each of both tiers in turn."""
    return running.tiers[request.param]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[RegistrySite]:
    """Serves a gateway with a registry, to which nothing was published yet."""
    async with registry_site(tmp_path / "site") as found:
        yield found


@pytest.fixture
async def served_gateway(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Gateway, str]]:
    """Serves a gateway with an identity; returns it with its URL.

    Its store is SQLite, except in a test that uses `store_settings`, which runs once on each database. All other
    statements of the routes run on both databases in unit tests.
    """
    chosen = {}
    if "store_settings" in request.fixturenames:
        chosen["store__url"] = request.getfixturevalue("store_settings").url
    async with serving_gateway(tmp_path, **chosen) as found:
        yield found


@pytest.fixture
def gateway(served_gateway: tuple[Gateway, str]) -> Gateway:
    return served_gateway[0]


@pytest.fixture
def gateway_url(served_gateway: tuple[Gateway, str]) -> str:
    return served_gateway[1]


@pytest.fixture
async def cam(gateway: Gateway, gateway_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Sends requests of a device."""
    async with client_of(gateway, gateway_url, "cam", "device") as client:
        yield client


@pytest.fixture
async def operator(gateway: Gateway, gateway_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Sends requests of an operator."""
    async with client_of(gateway, gateway_url, "ops", "operator") as client:
        yield client
