"""A gateway whose store was lost or has forgotten revocations: it refuses to start, and no revoked device gets in."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from support.tls_site import TlsSite, refusal, tls_site
from support.waiting import until

from firstline_core.errors import ConfigError, UnauthorizedError
from firstline_gateway.__main__ import main
from firstline_gateway.app import open_gateway
from firstline_gateway.identity.authorities import parse_lists

RESTORE = r"is damaged: it was cut off at 0 bytes.* `firstline-gateway restore FILE --store-only --config CONFIG`"
LOST = r"missing or empty, but the authority .* `firstline-gateway restore FILE --store-only --config CONFIG`"


def truncate(store: Path) -> None:
    store.write_bytes(b"")


def remove(store: Path) -> None:
    for file in store.parent.glob("gateway.db*"):
        file.unlink()


def empty(store: Path) -> None:
    remove(store)
    with sqlite3.connect(store) as connection:
        connection.execute("PRAGMA user_version = 1")


def serials(at: TlsSite, folder: str) -> set[str]:
    lists = (at.folder / folder / "crl.pem").read_text()
    return set(parse_lists(lists, at.gateway.identity.folder.open()).revoked)


async def revoked_device(at: TlsSite) -> str:
    """Enrols a device and revokes it; returns the serial number of its certificate."""
    await at.enrolled()
    await at.revoke("press-7")
    (revoked,) = at.gateway.identity.gatekeeper.credentials.revoked_certificates()
    await until(lambda: revoked.serial in serials(at, "broker") & serials(at, "identity"))
    return revoked.serial


@pytest.mark.parametrize(("lose", "sentence"), [(truncate, RESTORE), (remove, LOST), (empty, LOST)])
async def test_a_gateway_does_not_start_without_the_store_of_its_authority(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lose: Callable[[Path], None], sentence: str
) -> None:
    broker = {"broker__directory": str(tmp_path / "broker"), "broker__hosts": ("127.0.0.1",)}
    async with tls_site(tmp_path, **broker) as at:
        await revoked_device(at)
        settings = at.gateway.settings
    lists = [tmp_path / folder / "crl.pem" for folder in ("broker", "identity")]
    before = [file.read_bytes() for file in lists]
    lose(tmp_path / "gateway.db")
    with pytest.raises(ConfigError, match=sentence):
        open_gateway(settings)
    config = tmp_path / "gateway.toml"
    config.write_text(
        f'[store]\nurl = "{settings.store.url}"\n[identity]\ndirectory = "{settings.identity.directory}"\n'
        f'[models]\ndirectory = "{settings.models.directory}"\n'
    )
    capsys.readouterr()
    for command in (["key", "create", "anna"], ["check"]):
        assert main([*command, "--config", str(config)]) == 2
        assert "`firstline-gateway restore FILE --store-only --config CONFIG`" in capsys.readouterr().err
    assert [file.read_bytes() for file in lists] == before


async def test_a_revocation_that_the_store_forgot_holds(tmp_path: Path) -> None:
    broker = {"broker__directory": str(tmp_path / "broker"), "broker__hosts": ("127.0.0.1",)}
    async with tls_site(tmp_path, **broker) as at:
        serial = await revoked_device(at)
        device = at.device()
        with at.gateway.store.database.begin() as connection:
            connection.execute(text("UPDATE devices SET revoked_s = NULL"))
            connection.execute(text("UPDATE certificates SET revoked_s = NULL"))
    async with tls_site(tmp_path, **broker) as at:
        assert serial in serials(at, "broker") & serials(at, "identity")
        device.url = at.url
        async with device.client() as client:
            assert "was revoked on" in await refusal(client)
        with pytest.raises(UnauthorizedError, match="no certificate or key that is valid here"):
            await at.gateway.identity.admit_device("press-7")


async def test_only_known_devices_are_admitted_over_mqtt(tmp_path: Path) -> None:
    async with tls_site(tmp_path) as at:
        admit = at.gateway.identity.admit_device
        for name in ("press-7", "anybody"):
            with pytest.raises(UnauthorizedError, match=f"The device '{name}' has no certificate or key"):
                await admit(name)
        await at.enrolled()
        await admit("press-7")
        await at.revoke("press-7")
        with pytest.raises(UnauthorizedError):
            await admit("press-7")
