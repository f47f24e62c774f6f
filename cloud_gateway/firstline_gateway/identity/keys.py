"""API keys in the store: create, list and revoke them.

A key is 32 random bytes, so a plain SHA-256 of it cannot be searched; it is printed once and never stored.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, insert, select, update

from firstline_core.errors import ConfigError, did_you_mean
from firstline_core.fleet.persons import PersonName
from firstline_core.types import Name
from firstline_gateway.identity.enrolment import next_version
from firstline_gateway.identity.principals import SCOPES, Scope
from firstline_gateway.identity.tables import API_KEYS

Kind = Literal["application", "device"]

# A fixed start keeps keys from looking like a flag ("-..."), and lets secret scanners know them.
PREFIX = "flk_"


def key_hash(text: str) -> str:
    """Returns the digest under which the store keeps a key."""
    return hashlib.sha256(text.encode()).hexdigest()


def create_key(
    connection: Connection,
    name: str,
    scopes: Collection[Scope],
    *,
    now_s: float,
    kind: Kind = "application",
    expires_s: float | None = None,
    requests_per_s: float | None = None,
    person: str = "",
) -> str:
    """Adds a key and returns its text, which is nowhere else.

    Args:
        connection: within a transaction.
        name: unique among the keys that are not revoked.
        scopes: its permissions.
        now_s: the wall time.
        kind: "device" for a device of that name without a certificate.
        expires_s: the wall time until which it is valid; None without end.
        requests_per_s: how often it may be used, on one gateway; None without limit.
        person: the user, for the audit log; "" for a program.

    Raises:
        ConfigError: the name is taken, or a name is malformed.
    """
    _check(name, Name, "a key; use 1 to 64 letters, digits, '.', '_', '-', a letter or digit first")
    if person:
        _check(person, PersonName, "a person; use 1 to 64 letters, digits, '.', '_', '@', '+', '-'")
    version = next_version(connection)  # first: of two that create the same name, one waits for the other
    taken = select(API_KEYS.c.sha256).where(API_KEYS.c.name == name, API_KEYS.c.revoked_s.is_(None))
    if connection.execute(taken).first() is not None:
        raise ConfigError(f"A key named '{name}' exists; revoke it first, or choose another name.")
    text = PREFIX + secrets.token_urlsafe(32)
    connection.execute(
        insert(API_KEYS).values(
            sha256=key_hash(text),
            name=name,
            kind=kind,
            scopes=" ".join(scope for scope in SCOPES if scope in scopes),
            created_s=now_s,
            expires_s=expires_s,
            requests_per_s=requests_per_s,
            person=person,
            changed=version,
        )
    )
    return text


def list_keys(connection: Connection) -> list[Any]:
    """Returns the rows of the keys that are not revoked, by name."""
    query = select(API_KEYS).where(API_KEYS.c.revoked_s.is_(None)).order_by(API_KEYS.c.name)
    return list(connection.execute(query))


def revoke_key(connection: Connection, name: str, now_s: float) -> None:
    """Marks a key as revoked; gateways refuse it after at most `auth.refresh_s`.

    Raises:
        ConfigError: no key has this name.
    """
    version = next_version(connection)
    revoked = connection.execute(
        update(API_KEYS)
        .where(API_KEYS.c.name == name, API_KEYS.c.revoked_s.is_(None))
        .values(revoked_s=now_s, changed=version)
    ).rowcount
    if not revoked:
        end = did_you_mean(name, (key.name for key in list_keys(connection)))
        raise ConfigError(
            f"There is no key named '{name}'{end} `firstline-gateway key list` with the same --config lists them."
        )


def _check(text: str, kind: Any, what: str) -> None:
    """Checks that a text is a name of this kind; the error ends with `what`, which says how such names are formed."""
    try:
        msgspec.convert(text, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{text!a} cannot name {what}.") from error
