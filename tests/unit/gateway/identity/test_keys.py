"""API keys in the store, on both databases."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import insert, literal_column, select, update
from support.databases import sqlite_store

from firstline_core.clock import SimulatedClock
from firstline_core.errors import ConfigError, RateLimitedError, UnauthorizedError
from firstline_gateway.identity import keys
from firstline_gateway.identity.authorities import AuthorityFolder
from firstline_gateway.identity.gatekeeper import Gatekeeper
from firstline_gateway.identity.tables import API_KEYS, CERTIFICATES, DEVICES, VERSION
from firstline_gateway.store.database import Database
from firstline_gateway.store.store import Readers
from firstline_gateway.tables import open_database

NOW_S = 1_800_000_000.0

_readers: list[Readers] = []


@pytest.fixture(autouse=True)
def _readers_end() -> Iterator[None]:
    yield
    while _readers:
        _readers.pop().close()


def open_gatekeeper(database: Database, clock: SimulatedClock | None = None) -> Gatekeeper:
    clock = clock or SimulatedClock(wall_start_s=NOW_S)
    _readers.append(Readers(database))
    return Gatekeeper(_readers[-1], AuthorityFolder(Path("absent"), clock), refresh_s=1, grace_s=0, clock=clock)


async def test_a_key_is_found_by_its_text_which_is_never_stored(database: Database) -> None:
    with database.begin() as on:
        text = keys.create_key(on, "shop", ("fleet", "infer"), now_s=NOW_S)
    assert len(text) == len("flk_") + 43
    key = await open_gatekeeper(database).authenticate_key(text)
    assert (key.name, key.kind, set(key.scopes.split())) == ("shop", "application", {"infer", "fleet"})
    with database.reading() as on:
        (row,) = on.execute(select(API_KEYS))
    assert text not in map(str, row)
    assert row.scopes == "infer fleet"


async def test_any_other_text_finds_no_key(database: Database) -> None:
    with database.begin() as on:
        text = keys.create_key(on, "shop", ("infer",), now_s=NOW_S)
    gatekeeper = open_gatekeeper(database)
    for wrong in ("", "flk_", text[:-1], text + "x", "é"):
        with pytest.raises(UnauthorizedError, match="not valid here"):
            await gatekeeper.authenticate_key(wrong)


async def test_a_running_gateway_sees_new_keys_at_once_and_revoked_ones_soon(database: Database) -> None:
    gatekeeper = open_gatekeeper(database)
    with database.begin() as on:
        text = keys.create_key(on, "shop", ("infer",), now_s=NOW_S)
    assert (await gatekeeper.authenticate_key(text)).name == "shop"
    with database.begin() as on:
        keys.revoke_key(on, "shop", NOW_S)
    await gatekeeper.refreshed()
    with pytest.raises(UnauthorizedError):
        await gatekeeper.authenticate_key(text)
    with database.begin() as on:
        assert keys.create_key(on, "shop", ("infer",), now_s=NOW_S) != text, "the name is free again"


async def test_a_key_expires(database: Database) -> None:
    clock = SimulatedClock(wall_start_s=NOW_S)
    with database.begin() as on:
        text = keys.create_key(on, "shop", ("infer",), now_s=NOW_S, expires_s=NOW_S + 10)
    gatekeeper = open_gatekeeper(database, clock)
    await gatekeeper.authenticate_key(text)
    assert gatekeeper.holds(text)
    await clock.advance(10)
    assert not gatekeeper.holds(text)
    with pytest.raises(UnauthorizedError, match="'shop' expired on 2027-01-15T08:00:10"):
        await gatekeeper.authenticate_key(text)


@pytest.mark.parametrize("column", ["expires_s", "requests_per_s", "revoked_s"])
async def test_a_damaged_key_refuses_no_others(tmp_path: Path, column: str, caplog: pytest.LogCaptureFixture) -> None:
    with closing(open_database(sqlite_store(tmp_path))) as database:
        with database.begin() as on:
            damaged, whole = (keys.create_key(on, name, ("infer",), now_s=NOW_S) for name in ("shop", "kiosk"))
            on.execute(update(API_KEYS).where(API_KEYS.c.name == "shop").values({column: literal_column("'x'")}))
        gatekeeper = open_gatekeeper(database)
        assert not gatekeeper.holds(damaged) and gatekeeper.holds(whole)
        with pytest.raises(UnauthorizedError, match="not valid here"):
            await gatekeeper.authenticate_key(damaged)
        assert (await gatekeeper.authenticate_key(whole)).name == "kiosk"
    assert "credential damaged" in caplog.text and "shop" in caplog.text


async def test_a_damaged_key_can_be_revoked_while_gateways_run(tmp_path: Path) -> None:
    with closing(open_database(sqlite_store(tmp_path))) as database:
        with database.begin() as on:
            text = keys.create_key(on, "shop", ("infer",), now_s=NOW_S)
        gatekeeper = open_gatekeeper(database)
        with database.begin() as on:
            on.execute(update(API_KEYS).values(expires_s=literal_column("'x'")))
            keys.revoke_key(on, "shop", NOW_S)
        await gatekeeper.refreshed()
        assert not gatekeeper.holds(text)


def test_a_damaged_certificate_stays_on_the_list_of_revoked_ones(tmp_path: Path) -> None:
    with closing(open_database(sqlite_store(tmp_path))) as database:
        with database.begin() as on:
            row = {"serial": "0a", "device": "cam", "issued_s": NOW_S, "revoked_s": NOW_S, "changed": 1}
            damaged = {"not_after_s": literal_column("'x'"), "retained_until_service_s": NOW_S}
            on.execute(insert(CERTIFICATES).values(row | damaged))
            on.execute(update(VERSION).values(version=1))
        credentials = open_gatekeeper(database).credentials
        credentials.remove_expired(NOW_S, 0.0)
        assert [one.serial for one in credentials.revoked_certificates()] == ["0a"]
        assert not credentials.admits("cam", NOW_S)


def test_a_device_with_a_damaged_time_of_revocation_stays_revoked(tmp_path: Path) -> None:
    with closing(open_database(sqlite_store(tmp_path))) as database:
        with database.begin() as on:
            on.execute(insert(DEVICES).values(name="cam", enrolled_s=NOW_S, revoked_s=literal_column("'x'"), changed=1))
            on.execute(update(VERSION).values(version=1))
        assert open_gatekeeper(database).credentials.is_revoked("cam")


async def test_a_key_may_be_used_so_often(database: Database) -> None:
    clock = SimulatedClock(wall_start_s=NOW_S)
    with database.begin() as on:
        text = keys.create_key(on, "shop", ("infer",), now_s=NOW_S, requests_per_s=2)
    gatekeeper = open_gatekeeper(database, clock)
    for _ in range(2):
        await gatekeeper.authenticate_key(text)
    with pytest.raises(RateLimitedError, match="'shop' may be used 2 times a second") as refused:
        await gatekeeper.authenticate_key(text)
    assert refused.value.retry_after_s == pytest.approx(0.5)
    await clock.advance(0.5)
    assert (await gatekeeper.authenticate_key(text)).name == "shop"
    with pytest.raises(RateLimitedError):
        await gatekeeper.authenticate_key(text)


def test_names_are_unique_and_sensible(database: Database) -> None:
    with database.begin() as on:
        keys.create_key(on, "a", ("infer",), now_s=NOW_S)
    with pytest.raises(ConfigError, match="'a' exists"), database.begin() as on:
        keys.create_key(on, "a", ("infer",), now_s=NOW_S)
    for wrong in ("a/b", "b\n", ""):
        with pytest.raises(ConfigError, match="cannot name a key") as caught, database.begin() as on:
            keys.create_key(on, wrong, ("infer",), now_s=NOW_S)
        assert caught.value.message.isprintable()
    with pytest.raises(ConfigError, match="no key named 'b'"), database.begin() as on:
        keys.revoke_key(on, "b", NOW_S)
    with database.reading() as on:
        assert [row.name for row in keys.list_keys(on)] == ["a"]


def test_of_two_that_create_one_name_at_the_same_moment_one_does(database: Database) -> None:
    def create(_: int) -> bool:
        try:
            with database.begin() as on:
                keys.create_key(on, "a", ("infer",), now_s=NOW_S)
        except ConfigError:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(create, range(4))) == [False, False, False, True]
