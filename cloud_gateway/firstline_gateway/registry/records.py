"""Signed metadata and the history of aliases in the store, within a caller's transaction."""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa
from msgspec.structs import asdict

from firstline_core.fleet.registry import AliasChange
from firstline_gateway.store.schema import METADATA, SEQUENCE

SIGNED = sa.Table(
    "registry_metadata",
    METADATA,
    sa.Column("role", sa.String(16), primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("content", sa.LargeBinary, nullable=False),  # as it was signed; devices verify it, so it needs no seal
    sa.Column("expires_s", sa.Double, nullable=False),
)

ALIASES = sa.Table(
    "registry_aliases",
    METADATA,
    sa.Column("sequence", SEQUENCE, primary_key=True, autoincrement=True),
    sa.Column("model", sa.String(64), nullable=False),
    sa.Column("alias", sa.String(64), nullable=False),
    sa.Column("version", sa.BigInteger),  # NULL: for nothing any more
    sa.Column("by", sa.String(160), nullable=False),
    sa.Column("at_s", sa.Double, nullable=False),
    sa.Index(None, "model", "alias", "sequence"),
)
"""Each change is a row; the newest holds."""


# A device that began to fetch may ask for what was current then.
_VERSIONS_KEPT = 20
_M, _A = SIGNED.c, ALIASES.c


class RoleHead(NamedTuple):
    """The version of a role's newest metadata, and when it expires (wall time, seconds)."""

    version: int
    expires_s: float


class SignedMetadata(NamedTuple):
    """Metadata as it was signed; `expires_s` is wall time in seconds."""

    role: str
    version: int
    content: bytes
    expires_s: float


def lock(connection: sa.Connection) -> None:
    """Lets one transaction publish at a time; SQLite's transactions that write exclude each other anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("LOCK TABLE registry_metadata IN SHARE ROW EXCLUSIVE MODE"))


def newest(connection: sa.Connection, role: str) -> SignedMetadata | None:
    """Returns the newest metadata of a role."""
    return _document(connection, sa.select(SIGNED).where(_M.role == role).order_by(_M.version.desc()).limit(1))


def numbered(connection: sa.Connection, role: str, version: int) -> SignedMetadata | None:
    """Returns one version of the metadata of a role."""
    return _document(connection, sa.select(SIGNED).where(_M.role == role, _M.version == version))


def roots(connection: sa.Connection) -> list[SignedMetadata]:
    """Returns every root that was published, the oldest first."""
    rows = connection.execute(sa.select(SIGNED).where(_M.role == "root").order_by(_M.version))
    return [SignedMetadata(*row) for row in rows]


def heads(connection: sa.Connection) -> dict[str, RoleHead]:
    """Returns the head of each role."""
    newest_of = sa.select(_M.role, sa.func.max(_M.version).label("version")).group_by(_M.role).subquery()
    query = sa.select(_M.role, _M.version, _M.expires_s).join(
        newest_of, (newest_of.c.role == _M.role) & (newest_of.c.version == _M.version)
    )
    return {role: RoleHead(version, expires_s) for role, version, expires_s in connection.execute(query)}


def put(connection: sa.Connection, documents: list[SignedMetadata]) -> None:
    """Stores new metadata, and deletes outdated versions; every root is kept."""
    connection.execute(sa.insert(SIGNED), [document._asdict() for document in documents])
    for document in documents:
        if document.role != "root":
            retained = 1 if document.role == "timestamp" else _VERSIONS_KEPT
            of_role = sa.select(_M.version).where(_M.role == document.role).order_by(_M.version.desc())
            old = connection.execute(of_role.offset(retained)).scalars().all()
            connection.execute(sa.delete(SIGNED).where(_M.role == document.role, _M.version.in_(old)))


def aliases(connection: sa.Connection, model: str = "") -> list[AliasChange]:
    """Returns the current aliases, of one model or of all, by model and alias."""
    latest = sa.select(sa.func.max(_A.sequence)).group_by(_A.model, _A.alias)
    query = _changes().where(_A.sequence.in_(latest), _A.version.is_not(None)).order_by(_A.model, _A.alias)
    if model:
        query = query.where(_A.model == model)
    return [AliasChange(*row) for row in connection.execute(query)]


def alias_history(connection: sa.Connection, model: str, alias: str, limit: int) -> list[AliasChange]:
    """Returns the history of an alias, newest first."""
    query = _changes().where(_A.model == model, _A.alias == alias).order_by(_A.sequence.desc()).limit(limit)
    return [AliasChange(*row) for row in connection.execute(query)]


def change_alias(connection: sa.Connection, change: AliasChange) -> None:
    """Changes an alias."""
    connection.execute(sa.insert(ALIASES).values(asdict(change)))


def _changes() -> sa.Select[Any]:
    return sa.select(*(_A[name] for name in AliasChange.__struct_fields__))


def _document(connection: sa.Connection, query: sa.Select[Any]) -> SignedMetadata | None:
    row = connection.execute(query).first()
    return None if row is None else SignedMetadata(*row)
