"""Invited, enrolled, renewed, revoked: the same on both databases, several at a time included."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from secrets import token_hex

import pytest
from sqlalchemy import event, func, insert, select
from support.databases import OpenStore, sqlite_store

from firstline_core.clock import SimulatedClock
from firstline_core.units import DAY_S
from firstline_gateway.audit_log import ENTRIES
from firstline_gateway.identity import enrolment, keys
from firstline_gateway.identity.authorities import open_authorities
from firstline_gateway.identity.credentials import KnownCredentials, read_changes
from firstline_gateway.identity.enrolment import EnrolledDevice, Issued
from firstline_gateway.identity.identity import IdentityService
from firstline_gateway.identity.tables import CERTIFICATES, JOIN_TOKENS
from firstline_gateway.settings.settings import IdentitySection, Settings, StoreSection
from firstline_gateway.store import database as module
from firstline_gateway.store import service_clock
from firstline_gateway.store.database import Database
from firstline_gateway.tables import open_database

NOW_S = 1_800_000_000.0


@pytest.fixture
def issue() -> Callable[[str], Issued]:
    """Makes certificates with serial numbers from 1 on."""
    serials = count(1)

    def certificate_for(device: str) -> Issued:
        serial = format(next(serials), "x")
        return Issued(serial, f"pem {device} {serial}", NOW_S + 90 * DAY_S)

    return certificate_for


def invited(database: Database, device: str, secret: str, *, until_s: float = NOW_S + DAY_S) -> str:
    sha256 = enrolment.secret_hash(secret)
    with database.begin() as on:
        enrolment.invite(on, [(device, sha256)], by="application:anna", now_s=NOW_S, expires_s=until_s)
    return sha256


def redeemed(
    database: Database, sha256: str, issue: Callable[[str], Issued], key: str = "key", now_s: float = NOW_S
) -> EnrolledDevice | None:
    with database.begin() as on:
        return enrolment.redeem(on, sha256, key, issue, now_s, address="")


def known(database: Database, found: KnownCredentials | None = None) -> KnownCredentials:
    found = found or KnownCredentials()
    with database.reading() as on:
        found.apply(read_changes(on, found.version))
    return found


@pytest.mark.parametrize(("serial", "revoked_s"), [("1g", NOW_S), ("1f", 1e300), ("1f", -1e12)])
def test_a_damaged_revocation_does_not_prevent_a_start(tmp_path: Path, serial: str, revoked_s: float) -> None:
    settings = Settings(identity=IdentitySection(directory=str(tmp_path / "identity")))
    open_authorities(tmp_path / "identity", NOW_S)
    with OpenStore(sqlite_store(tmp_path)) as opened:
        row = {"device": "a", "issued_s": NOW_S, "not_after_s": NOW_S, "retained_until_service_s": 0.0, "changed": 1}
        with opened.database.begin() as on:
            enrolment.next_version(on)
            on.execute(insert(CERTIFICATES).values(serial=serial, revoked_s=revoked_s, **row))
        found = IdentityService(settings, opened.store, clock=SimulatedClock(wall_start_s=NOW_S))
        assert list(found.folder.listed()) == (["1f"] if serial == "1f" else [])
        found.readers.close()


def test_a_token_enrols_once(database: Database, issue: Callable[[str], Issued]) -> None:
    sha256 = invited(database, "a", "secret")
    assert redeemed(database, sha256, issue) == EnrolledDevice("a", "pem a 1", again=False)
    assert redeemed(database, sha256, issue) == EnrolledDevice("a", "pem a 1", again=True)
    assert redeemed(database, sha256, issue, key="another") is None
    assert redeemed(database, enrolment.secret_hash("guess"), issue) is None
    assert redeemed(database, sha256, issue, now_s=NOW_S + DAY_S) is None, "neither does the device after its time"


def test_a_token_ends(database: Database, issue: Callable[[str], Issued]) -> None:
    sha256 = invited(database, "a", "secret", until_s=NOW_S + 1)
    assert redeemed(database, sha256, issue, now_s=NOW_S + 1) is None


def test_of_many_with_one_token_one_enrols(database: Database, issue: Callable[[str], Issued]) -> None:
    sha256 = invited(database, "a", "secret")
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda key: redeemed(database, sha256, issue, key=f"key {key}"), range(12)))
    assert [one.device for one in found if one is not None] == ["a"]
    with database.reading() as on:
        assert on.scalar(select(func.count()).select_from(CERTIFICATES)) == 1


def test_a_replaced_or_revoked_invitation_admits_no_device(database: Database, issue: Callable[[str], Issued]) -> None:
    first, second = invited(database, "a", "first"), invited(database, "a", "second")
    assert redeemed(database, first, issue) is None
    with database.begin() as on:
        assert enrolment.revoke(on, "a", "ops", NOW_S)
        assert not enrolment.revoke(on, "a", "ops", NOW_S)
    assert redeemed(database, second, issue) is None
    assert redeemed(database, invited(database, "a", "third"), issue) is not None


def test_each_change_of_a_device_is_in_the_audit_log(database: Database, issue: Callable[[str], Issued]) -> None:
    redeemed(database, invited(database, "a", "secret"), issue)
    with database.begin() as on:
        assert enrolment.revoke(on, "a", "application:ben", NOW_S)
        assert not enrolment.revoke(on, "b", "application:ben", NOW_S)
    columns = (ENTRIES.c.actor, ENTRIES.c.action, ENTRIES.c.subject)
    with database.reading() as on:
        assert [tuple(row) for row in on.execute(select(*columns).order_by(ENTRIES.c.number))] == [
            ("application:anna", "device.invite", "device:a"),
            ("device:a", "device.enrol", "device:a"),
            ("application:ben", "device.revoke", "device:a"),
        ]


def test_secrets_are_not_stored(database: Database) -> None:
    invited(database, "a", "secret")
    with database.reading() as on:
        (row,) = on.execute(select(JOIN_TOKENS))
    assert "secret" not in map(str, row)


def test_enrolling_again_revokes_earlier_certificates(database: Database, issue: Callable[[str], Issued]) -> None:
    redeemed(database, invited(database, "a", "first"), issue)
    redeemed(database, invited(database, "b", "other"), issue)
    memory = known(database)
    redeemed(database, invited(database, "a", "second"), issue, now_s=NOW_S + 5)
    with database.reading() as on:
        assert memory.apply(read_changes(on, memory.version)) == ["1"]
    assert memory.revoked_certificates() == [("1", NOW_S + 5, "a")]
    assert not memory.is_revoked("a")


def test_a_device_is_admitted_while_a_certificate_is_valid(database: Database, issue: Callable[[str], Issued]) -> None:
    memory = known(database)
    assert not memory.admits("a", NOW_S), "the store does not know it"
    redeemed(database, invited(database, "a", "first"), issue)
    memory = known(database, memory)
    assert memory.admits("a", NOW_S)
    assert not memory.admits("b", NOW_S)
    assert not memory.admits("a", NOW_S + 1e9), "its certificate has expired"
    with database.begin() as on:
        enrolment.revoke_listed(on, {"1": NOW_S + 1, "2": NOW_S + 1})
    memory = known(database, memory)
    assert memory.revoked_certificates() == [("1", NOW_S + 1, "a")]
    assert not memory.is_revoked("a")
    assert not memory.admits("a", NOW_S), "its only certificate was revoked"
    redeemed(database, invited(database, "a", "second"), issue)
    memory = known(database, memory)
    assert memory.admits("a", NOW_S)
    with database.begin() as on:
        enrolment.revoke(on, "a", "ops", NOW_S)
    assert not known(database, memory).admits("a", NOW_S)


def test_a_device_with_a_key_is_admitted_while_the_key_is_valid(database: Database) -> None:
    with database.begin() as on:
        keys.create_key(on, "a", ["infer"], now_s=NOW_S, kind="device", expires_s=NOW_S + 5)
        keys.create_key(on, "b", ["infer"], now_s=NOW_S)
    memory = known(database)
    assert memory.admits("a", NOW_S)
    assert not memory.admits("a", NOW_S + 6)
    assert not memory.admits("b", NOW_S), "an application"
    with database.begin() as on:
        keys.revoke_key(on, "a", NOW_S)
    assert not known(database, memory).admits("a", NOW_S)


def test_a_revoked_device_needs_a_new_token(database: Database, issue: Callable[[str], Issued]) -> None:
    first = invited(database, "a", "first")
    redeemed(database, first, issue)
    with database.begin() as on:
        assert enrolment.revoke(on, "a", "ops", NOW_S)
    memory = known(database)
    assert memory.is_revoked("a")
    assert redeemed(database, first, issue) is None, "the token that it used is gone with it"
    with database.begin() as on:
        assert enrolment.renew(on, "a", "1", issue, NOW_S) is None
    redeemed(database, invited(database, "a", "second"), issue)
    assert not known(database, memory).is_revoked("a")


def test_renewal_leaves_the_present_certificate(database: Database, issue: Callable[[str], Issued]) -> None:
    redeemed(database, invited(database, "a", "first"), issue)
    memory = known(database)
    with database.begin() as on:
        assert enrolment.renew(on, "a", "1", issue, NOW_S + 7) == "pem a 2"
        assert enrolment.renew(on, "b", "1", issue, NOW_S) is None, "not its own"
        assert enrolment.renew(on, "a", "99", issue, NOW_S) is None
        assert enrolment.not_renewed_since(on, NOW_S + 7, NOW_S) == []
        assert enrolment.not_renewed_since(on, NOW_S + 8, NOW_S) == ["a"]
    memory = known(database, memory)
    assert memory.certificate("2") is not None and memory.revoked_certificates() == []
    with database.begin() as on:
        enrolment.revoke_listed(on, {"2": NOW_S + 9})
    assert known(database, memory).revoked_certificates() == [("2", NOW_S + 9, "a")]


def test_revoking_a_device_revokes_its_key(database: Database) -> None:
    with database.begin() as on:
        keys.create_key(on, "a", ("infer",), now_s=NOW_S, kind="device")
        keys.create_key(on, "b", ("infer",), now_s=NOW_S)
        assert enrolment.revoke(on, "a", "ops", NOW_S)
        assert not enrolment.revoke(on, "b", "ops", NOW_S), "an application of that name is no device"
    with database.reading() as on:
        assert [row.name for row in keys.list_keys(on)] == ["b"]


def test_devices_are_listed_by_name_in_pages(database: Database, issue: Callable[[str], Issued]) -> None:
    for name in "cba":
        invited(database, name, name)
    redeemed(database, enrolment.secret_hash("b"), issue)
    with database.reading() as on:
        first = enrolment.list_devices(on, "", 2, NOW_S)
        rest = enrolment.list_devices(on, first[-1].device, 2, NOW_S)
        assert enrolment.list_devices(on, rest[-1].device, 2, NOW_S) == []
        later = enrolment.list_devices(on, "", 5, NOW_S + DAY_S)
    assert [one.device for one in (*first, *rest)] == ["a", "b", "c"]
    assert (first[0].enrolled_s, first[0].invited_until_s) == (None, NOW_S + DAY_S)
    assert (first[1].enrolled_s, first[1].invited_until_s) == (NOW_S, None)
    assert first[1].certificate_expires_s == NOW_S + 90 * DAY_S
    assert [one.device for one in later] == ["b"], "an invitation that has ended is none"


def test_long_expired_certificates_and_tokens_are_deleted(database: Database, issue: Callable[[str], Issued]) -> None:
    redeemed(database, invited(database, "a", "first"), issue)
    with database.begin() as on:
        service_clock.advance(on, 91 * DAY_S)
        enrolment.delete_expired(on, NOW_S + 91 * DAY_S, DAY_S / 2)
    with database.reading() as on:
        assert on.execute(select(CERTIFICATES)).all() == on.execute(select(JOIN_TOKENS)).all() == []


@pytest.mark.parametrize(("wall_s", "service_s"), [(NOW_S + 1e9, 90 * DAY_S), (0.0, 1e9), (NOW_S + 90 * DAY_S, 1e9)])
def test_a_certificate_is_forgotten_by_no_wall_clock_alone(
    database: Database, issue: Callable[[str], Issued], wall_s: float, service_s: float
) -> None:
    redeemed(database, invited(database, "a", "first"), issue)
    with database.begin() as on:
        assert enrolment.revoke(on, "a", "ops", NOW_S)
    memory = known(database)
    with database.begin() as on:
        service_clock.advance(on, service_s)
        enrolment.delete_expired(on, wall_s, DAY_S)
    for one in (known(database, memory), known(database)):
        one.remove_expired(wall_s, DAY_S)
        assert one.certificate("1") is not None
        assert [revoked.serial for revoked in one.revoked_certificates()] == ["1"], "the broker refuses it as before"
    with database.begin() as on:
        service_clock.advance(on, 1e9)
        enrolment.delete_expired(on, NOW_S + 92 * DAY_S, DAY_S)
    known(database, memory).remove_expired(NOW_S + 92 * DAY_S, DAY_S)
    assert memory.certificate("1") is known(database).certificate("1") is None


def test_changes_that_meet_wait_their_turn(store_settings: StoreSection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that held what the other waits for would have one of them undone by PostgreSQL."""
    monkeypatch.setattr(module, "BUSY_TIMEOUT_S", 60.0)  # SQLite lets writers in without an order
    names = ["a", "b", "c"]

    def issue(device: str) -> Issued:
        return Issued(token_hex(8), f"pem {device}", NOW_S + 90 * DAY_S)

    def change(number: int) -> None:
        secrets = [(name, enrolment.secret_hash(f"{name} {number}")) for name in names[:: -1 if number % 2 else 1]]
        with database.begin() as on:
            enrolment.invite(on, secrets, by="application:anna", now_s=NOW_S, expires_s=NOW_S + DAY_S)
        for name, sha256 in secrets:
            redeemed(database, sha256, issue)
            with database.begin() as on:
                enrolment.renew(on, name, "1", issue, NOW_S)
                enrolment.delete_expired(on, NOW_S, 0.0)
            with database.begin() as on:
                enrolment.revoke(on, name, "ops", NOW_S)

    with closing(open_database(store_settings)) as database, ThreadPoolExecutor(6) as threads:
        list(threads.map(change, range(24)))


def test_thousands_of_invitations_are_a_few_statements(database: Database) -> None:
    """What else waits to be written waits for them."""
    secrets = [(f"d{number}", enrolment.secret_hash(str(number))) for number in range(2000)]
    statements = []
    with database.begin() as on:
        event.listen(on, "before_cursor_execute", lambda *call: statements.append(call[2]))
        for _ in range(2):
            enrolment.invite(on, secrets, by="application:anna", now_s=NOW_S, expires_s=NOW_S + DAY_S)
    with database.reading() as on:
        assert on.scalar(select(func.count()).select_from(JOIN_TOKENS)) == len(secrets)
    assert len(statements) < 40
