"""API keys in the store: created, listed, revoked; and an older gateway's token file taken over.

A key is 32 random bytes, so a plain SHA-256 of it cannot be searched; it is printed once and never stored.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, insert, select, update

from firstline_core.errors import ConfigError
from firstline_core.names import Name
from firstline_gateway.identity.enrolment import next_version
from firstline_gateway.identity.scopes import SCOPES, Scope
from firstline_gateway.identity.tables import API_KEYS

Kind = Literal["application", "device"]

# A fixed start keeps keys from looking like a flag ("-..."), and lets secret scanners know them.
PREFIX = "flk_"
_SCOPES_OF_OLD = {"device": "infer", "application": "infer", "operator": "infer fleet admin"}


class OldToken(Struct, frozen=True, forbid_unknown_fields=True):
    """A bearer token as gateways without a store kept it."""

    name: Name
    kind: Literal["device", "application", "operator"]
    sha256: str
    created: datetime


class _OldFile(Struct, frozen=True, forbid_unknown_fields=True):
    tokens: tuple[OldToken, ...] = ()


def key_hash(text: str) -> str:
    """What the store keeps of a key."""
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
) -> str:
    """Adds a key and returns its text, which is nowhere else.

    Args:
        connection: within a transaction.
        name: unique among the keys that are not revoked.
        scopes: what it may do.
        now_s: the wall time.
        kind: "device" stands for a device of that name, which has no certificate.
        expires_s: the wall time until which it is valid; None without end.
        requests_per_s: how often it may be used, on one gateway; None without limit.

    Raises:
        ConfigError: the name is taken or malformed.
    """
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{name!a} cannot name a key; use 1 to 64 letters, digits, '.', '_', '-', a letter or digit first."
        ) from error
    version = next_version(connection)  # first: of two that create the same name, one waits for the other
    if _is_taken(connection, name):
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
            changed=version,
        )
    )
    return text


def list_keys(connection: Connection) -> list[Any]:
    """Rows of the keys that are not revoked, by name."""
    query = select(API_KEYS).where(API_KEYS.c.revoked_s.is_(None)).order_by(API_KEYS.c.name)
    return list(connection.execute(query))


def revoke_key(connection: Connection, name: str, now_s: float) -> None:
    """Refuses a key from now on.

    Raises:
        ConfigError: there is none of that name.
    """
    version = next_version(connection)
    revoked = connection.execute(
        update(API_KEYS)
        .where(API_KEYS.c.name == name, API_KEYS.c.revoked_s.is_(None))
        .values(revoked_s=now_s, changed=version)
    ).rowcount
    if not revoked:
        raise ConfigError(f"There is no key named '{name}'; `firstline-gateway key list` shows those there are.")


def read_old_tokens(path: Path) -> tuple[OldToken, ...]:
    """The tokens that an older gateway kept in a file; none where there is no file.

    Raises:
        ConfigError: it cannot be read, or is not a token file.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=_OldFile).tokens
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigError(f"The token file {path} cannot be read: {error.strerror}.") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The token file {path} is damaged ({error}); restore it, or move it away and create keys anew."
        ) from error


def take_over(connection: Connection, tokens: Collection[OldToken]) -> list[str]:
    """Keeps old tokens as keys; those that were taken over before are left alone, revoked or not.

    Returns:
        The names of the new ones.
    """
    if not tokens:
        return []
    seen = set(connection.scalars(select(API_KEYS.c.sha256)))
    taken = [token for token in tokens if token.sha256 not in seen and not _is_taken(connection, token.name)]
    if taken:
        version = next_version(connection)
        for token in taken:
            connection.execute(
                insert(API_KEYS).values(
                    sha256=token.sha256,
                    name=token.name,
                    kind="device" if token.kind == "device" else "application",
                    scopes=_SCOPES_OF_OLD[token.kind],
                    created_s=token.created.timestamp(),
                    changed=version,
                )
            )
    return [token.name for token in taken]


def _is_taken(connection: Connection, name: str) -> bool:
    query = select(API_KEYS.c.sha256).where(API_KEYS.c.name == name, API_KEYS.c.revoked_s.is_(None))
    return connection.execute(query).first() is not None
