"""Devices and their certificates in the store: invited, enrolled, renewed, revoked. A function is one transaction.

The audit log has an entry for each invitation, enrolment and revocation.

Each that changes something takes its number (`next_version`) before anything else, so that they take turns: of two
that hold what the other waits for, PostgreSQL would undo one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, delete, func, insert, select, union, update

from firstline_core.protocol.enrolment import EnrolmentState
from firstline_gateway import audit_log
from firstline_gateway.identity.tables import API_KEYS, CERTIFICATES, DEVICES, JOIN_TOKENS, VERSION
from firstline_gateway.store import service_clock


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate made for a device, as the store keeps it."""

    serial: str
    pem: str
    not_after_s: float


Issue = Callable[[str], Issued]
"""Makes a certificate for the device of this name."""

_ENROLLED = select(DEVICES.c.name).where(DEVICES.c.revoked_s.is_(None))
_KEYS = select(API_KEYS.c.name).where(API_KEYS.c.kind == "device")
REVOKED = union(
    select(DEVICES.c.name).where(DEVICES.c.revoked_s.is_not(None)),
    _KEYS.where(
        API_KEYS.c.revoked_s.is_not(None),
        API_KEYS.c.name.not_in(_KEYS.where(API_KEYS.c.revoked_s.is_(None))),
        API_KEYS.c.name.not_in(_ENROLLED),
    ),
)
"""Selects the devices that were revoked, or whose API key was, and that have no access since."""


@dataclass(frozen=True, slots=True)
class EnrolledDevice:
    """The result of a join token: the device's certificate; `again` if it had been given before."""

    device: str
    certificate: str
    again: bool


def secret_hash(secret: str) -> str:
    """Returns the hash of a join token's secret: 32 random bytes, so a plain hash of them cannot be searched."""
    return hashlib.sha256(secret.encode()).hexdigest()


def next_version(connection: Connection) -> int:
    """Returns the number of the change that this transaction makes; other changes wait until it ends."""
    connection.execute(update(VERSION).values(version=VERSION.c.version + 1))
    return int(connection.execute(select(VERSION.c.version)).scalar_one())


def invite(
    connection: Connection, secrets: Sequence[tuple[str, str]], *, by: str, now_s: float, expires_s: float
) -> None:
    """Stores the join tokens of devices, and deletes those that they had and did not use.

    Args:
        connection: within a transaction.
        secrets: names, and the `secret_hash` of each one's token.
        by: the principal that invites.
        now_s: the wall time.
        expires_s: the wall time until which they enrol.
    """
    next_version(connection)
    unused = delete(JOIN_TOKENS).where(JOIN_TOKENS.c.device == bindparam("invited"), JOIN_TOKENS.c.used_s.is_(None))
    connection.execute(unused, [{"invited": device} for device, _ in secrets])
    common = {"created_by": by, "created_s": now_s, "expires_s": expires_s}
    connection.execute(
        insert(JOIN_TOKENS), [{"sha256": sha256, "device": device, **common} for device, sha256 in secrets]
    )
    connection.execute(delete(JOIN_TOKENS).where(JOIN_TOKENS.c.expires_s < now_s))
    names = [name for name, _ in secrets]
    subject = f"device:{names[0]}" if len(names) == 1 else "devices"
    audit_log.add(connection, now_s, by, "device.invite", subject, devices=names, expires_s=expires_s)


def is_token(connection: Connection, sha256: str, now_s: float) -> bool:
    """Returns whether there is a join token with this hash, used or not, that has not expired."""
    query = select(JOIN_TOKENS.c.sha256).where(JOIN_TOKENS.c.sha256 == sha256, JOIN_TOKENS.c.expires_s > now_s)
    return connection.execute(query).first() is not None


def redeem(
    connection: Connection, sha256: str, key_hash: str, issue: Issue, now_s: float, *, address: str
) -> EnrolledDevice | None:
    """Enrols the device that a join token is for, and revokes the certificates that it had before.

    A used token enrols no other device; the same device, which may have lost the answer, gets it again.

    Args:
        connection: within a transaction.
        sha256: `secret_hash` of the token's secret.
        key_hash: of the device's public key.
        issue: makes the certificate.
        now_s: the wall time.
        address: of the sender, for the audit log.

    Returns:
        The result; None if there is no such token, it has expired, or another key used it.
    """
    version = next_version(connection)
    unused = (JOIN_TOKENS.c.sha256 == sha256, JOIN_TOKENS.c.used_s.is_(None), JOIN_TOKENS.c.expires_s > now_s)
    taken = connection.execute(update(JOIN_TOKENS).where(*unused).values(used_s=now_s, key_hash=key_hash)).rowcount
    token = connection.execute(select(JOIN_TOKENS).where(JOIN_TOKENS.c.sha256 == sha256)).one_or_none()
    if not taken:
        if token is None or token.expires_s <= now_s or token.key_hash != key_hash:
            return None
        return EnrolledDevice(token.device, token.certificate, again=True)
    assert token is not None  # noqa: S101 (this transaction has just changed it)
    _revoke_certificates(connection, token.device, version, now_s)
    updated = connection.execute(
        update(DEVICES).where(DEVICES.c.name == token.device).values(enrolled_s=now_s, revoked_s=None, changed=version)
    ).rowcount
    if not updated:
        connection.execute(insert(DEVICES).values(name=token.device, enrolled_s=now_s, changed=version))
    issued = issue(token.device)
    _add_certificate(connection, token.device, issued, version, now_s)
    connection.execute(update(JOIN_TOKENS).where(JOIN_TOKENS.c.sha256 == sha256).values(certificate=issued.pem))
    subject = f"device:{token.device}"
    audit_log.add(connection, now_s, subject, "device.enrol", subject, address=address)
    return EnrolledDevice(token.device, issued.pem, again=False)


def renew(connection: Connection, device: str, serial: str, issue: Issue, now_s: float) -> str | None:
    """Gives a device its next certificate, as PEM; the present one stays valid until it ends.

    Args:
        connection: within a transaction.
        device: its name.
        serial: of the present certificate.
        issue: makes the next.
        now_s: the wall time.

    Returns:
        The certificate; None if the present one was revoked in the meantime.
    """
    version = next_version(connection)
    present = select(CERTIFICATES.c.serial).where(
        CERTIFICATES.c.serial == serial, CERTIFICATES.c.device == device, CERTIFICATES.c.revoked_s.is_(None)
    )
    if connection.execute(present).one_or_none() is None:
        return None
    issued = issue(device)
    _add_certificate(connection, device, issued, version, now_s)
    return issued.pem


def revoke(connection: Connection, device: str, by: str, now_s: float) -> bool:
    """Refuses a device from now on: its certificates, its join tokens, and its API key.

    Returns:
        False if there is nothing of that name.
    """
    version = next_version(connection)
    updated = connection.execute(
        update(DEVICES).where(DEVICES.c.name == device).values(revoked_s=now_s, changed=version)
    ).rowcount
    _revoke_certificates(connection, device, version, now_s)
    invited = connection.execute(delete(JOIN_TOKENS).where(JOIN_TOKENS.c.device == device)).rowcount
    keys = connection.execute(
        update(API_KEYS)
        .where(API_KEYS.c.name == device, API_KEYS.c.kind == "device", API_KEYS.c.revoked_s.is_(None))
        .values(revoked_s=now_s, changed=version)
    ).rowcount
    found = bool(updated or invited or keys)
    if found:
        audit_log.add(connection, now_s, by, "device.revoke", f"device:{device}")
    return found


def revoke_listed(connection: Connection, serials: Mapping[str, float]) -> None:
    """Revokes certificates that were revoked before, as a list of them shows, and that the store has as valid.

    Args:
        connection: within a transaction.
        serials: serial numbers, and when each was revoked (seconds since 1970).
    """
    version = next_version(connection)
    statement = (
        update(CERTIFICATES)
        .where(CERTIFICATES.c.serial == bindparam("listed"), CERTIFICATES.c.revoked_s.is_(None))
        .values(revoked_s=bindparam("when_s"), changed=version)
    )
    connection.execute(statement, [{"listed": serial, "when_s": when_s} for serial, when_s in serials.items()])


def revoked_devices(connection: Connection) -> set[str]:
    """Returns the devices of `REVOKED`."""
    return set(connection.execute(REVOKED).scalars())


def list_devices(connection: Connection, after: str, limit: int, now_s: float) -> list[EnrolmentState]:
    """Returns the devices that are enrolled or invited, by name.

    Args:
        connection: within a transaction.
        after: the name after which the list starts; "" for the first.
        limit: largest number of devices.
        now_s: the wall time.
    """
    tokens = (
        select(JOIN_TOKENS.c.device, JOIN_TOKENS.c.expires_s)
        .where(JOIN_TOKENS.c.used_s.is_(None), JOIN_TOKENS.c.expires_s > now_s, JOIN_TOKENS.c.device > after)
        .subquery()
    )
    enrolled = select(DEVICES.c.name.label("name")).where(DEVICES.c.name > after)
    names = enrolled.union(select(tokens.c.device)).order_by("name").limit(limit).subquery()
    expires_s = (
        select(func.max(CERTIFICATES.c.not_after_s))
        .where(CERTIFICATES.c.device == names.c.name, CERTIFICATES.c.revoked_s.is_(None))
        .scalar_subquery()
    )
    query = (
        select(names.c.name, DEVICES.c.enrolled_s, expires_s, DEVICES.c.revoked_s, tokens.c.expires_s)
        .outerjoin(DEVICES, DEVICES.c.name == names.c.name)
        .outerjoin(tokens, tokens.c.device == names.c.name)
        .order_by(names.c.name)
    )
    return [EnrolmentState(*row) for row in connection.execute(query)]


def not_renewed_since(connection: Connection, since_s: float, usable_s: float) -> list[str]:
    """Returns the devices whose newest usable certificate was issued before a wall time, by name.

    Args:
        connection: within a transaction.
        since_s: the wall time.
        usable_s: certificates that ended before this wall time can no longer be renewed.
    """
    query = (
        select(CERTIFICATES.c.device)
        .where(CERTIFICATES.c.revoked_s.is_(None), CERTIFICATES.c.not_after_s > usable_s)
        .group_by(CERTIFICATES.c.device)
        .having(func.max(CERTIFICATES.c.issued_s) < since_s)
        .order_by(CERTIFICATES.c.device)
    )
    return list(connection.execute(query).scalars())


def delete_expired(connection: Connection, now_s: float, retention_s: float) -> None:
    """Deletes certificates and join tokens that ended long ago; after another change.

    Args:
        connection: within a transaction.
        now_s: the wall time.
        retention_s: how long each is kept after its end; a certificate by seconds of service too.
    """
    ended = (
        CERTIFICATES.c.not_after_s < now_s - retention_s,
        CERTIFICATES.c.retained_until_service_s < service_clock.read(connection) - retention_s,
    )
    connection.execute(delete(CERTIFICATES).where(*ended))
    connection.execute(delete(JOIN_TOKENS).where(JOIN_TOKENS.c.expires_s < now_s - retention_s))


def _revoke_certificates(connection: Connection, device: str, version: int, now_s: float) -> None:
    connection.execute(
        update(CERTIFICATES)
        .where(CERTIFICATES.c.device == device, CERTIFICATES.c.revoked_s.is_(None))
        .values(revoked_s=now_s, changed=version)
    )


def _add_certificate(connection: Connection, device: str, issued: Issued, version: int, now_s: float) -> None:
    connection.execute(
        insert(CERTIFICATES).values(
            serial=issued.serial,
            device=device,
            issued_s=now_s,
            not_after_s=issued.not_after_s,
            retained_until_service_s=service_clock.read(connection) + issued.not_after_s - now_s,
            changed=version,
        )
    )
