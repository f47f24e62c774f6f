"""Signed metadata and the history of aliases in the store, within a caller's transaction."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Index,
    LargeBinary,
    Select,
    String,
    Table,
    delete,
    func,
    insert,
    select,
    text,
)

from firstline_core.fleet.registry import AliasChange
from firstline_gateway.store.schema import METADATA, SEQUENCE

SIGNED = Table(
    "registry_metadata",
    METADATA,
    Column("role", String(16), primary_key=True),
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),  # as it was signed; devices verify it, so it needs no seal
    Column("expires_s", Double, nullable=False),
)

ALIASES = Table(
    "registry_aliases",
    METADATA,
    Column("sequence", SEQUENCE, primary_key=True, autoincrement=True),
    Column("model", String(64), nullable=False),
    Column("alias", String(64), nullable=False),
    Column("version", BigInteger),  # NULL: for nothing any more
    Column("changed_by", String(160), nullable=False),
    Column("changed_s", Double, nullable=False),
    Index(None, "model", "alias", "sequence"),
)
"""Each change is a row; the newest holds."""


# A device that began to fetch may ask for what was current then.
_VERSIONS_KEPT = 20
_M, _A = SIGNED.c, ALIASES.c


class Head(NamedTuple):
    """The version of a role's newest metadata, and when it expires (wall time, seconds)."""

    version: int
    expires_s: float


class Document(NamedTuple):
    """Metadata as it was signed; `expires_s` is wall time in seconds."""

    role: str
    version: int
    content: bytes
    expires_s: float


def lock(connection: Connection) -> None:
    """Lets one transaction publish at a time; SQLite's transactions that write exclude each other anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE registry_metadata IN SHARE ROW EXCLUSIVE MODE"))


def newest(connection: Connection, role: str) -> Document | None:
    """Returns the newest metadata of a role."""
    return _document(connection, select(SIGNED).where(_M.role == role).order_by(_M.version.desc()).limit(1))


def numbered(connection: Connection, role: str, version: int) -> Document | None:
    """Returns one version of the metadata of a role."""
    return _document(connection, select(SIGNED).where(_M.role == role, _M.version == version))


def heads(connection: Connection) -> dict[str, Head]:
    """Returns the head of each role."""
    newest_of = select(_M.role, func.max(_M.version).label("version")).group_by(_M.role).subquery()
    query = select(_M.role, _M.version, _M.expires_s).join(
        newest_of, (newest_of.c.role == _M.role) & (newest_of.c.version == _M.version)
    )
    return {role: Head(version, expires_s) for role, version, expires_s in connection.execute(query)}


def put(connection: Connection, documents: list[Document]) -> None:
    """Stores new metadata, and deletes outdated versions; every root is kept."""
    connection.execute(insert(SIGNED), [document._asdict() for document in documents])
    for document in documents:
        if document.role != "root":
            retained = 1 if document.role == "timestamp" else _VERSIONS_KEPT
            of_role = select(_M.version).where(_M.role == document.role).order_by(_M.version.desc())
            old = connection.execute(of_role.offset(retained)).scalars().all()
            connection.execute(delete(SIGNED).where(_M.role == document.role, _M.version.in_(old)))


def aliases(connection: Connection, model: str = "") -> list[AliasChange]:
    """Returns the current aliases, of one model or of all, by model and alias."""
    latest = select(func.max(_A.sequence)).group_by(_A.model, _A.alias)
    query = _changes().where(_A.sequence.in_(latest), _A.version.is_not(None)).order_by(_A.model, _A.alias)
    if model:
        query = query.where(_A.model == model)
    return [AliasChange(*row) for row in connection.execute(query)]


def alias_history(connection: Connection, model: str, alias: str, limit: int) -> list[AliasChange]:
    """Returns the history of an alias, newest first."""
    query = _changes().where(_A.model == model, _A.alias == alias).order_by(_A.sequence.desc()).limit(limit)
    return [AliasChange(*row) for row in connection.execute(query)]


def change_alias(connection: Connection, change: AliasChange) -> None:
    """Changes an alias."""
    connection.execute(
        insert(ALIASES).values(
            model=change.model,
            alias=change.alias,
            version=change.version,
            changed_by=change.by,
            changed_s=change.at_s,
        )
    )


def _changes() -> Select[Any]:
    return select(_A.model, _A.alias, _A.version, _A.changed_by, _A.changed_s)


def _document(connection: Connection, query: Select[Any]) -> Document | None:
    row = connection.execute(query).first()
    return None if row is None else Document(*row)
