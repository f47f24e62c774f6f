"""The tables of the audit log. Its head is a row of its own, which is locked while an entry is added."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError
from firstline_core.fleet.audit_log import Entry, Head, next_entry
from firstline_core.fleet.rollout import AuditPage
from firstline_core.storage.files import make_folder, sync_folder
from firstline_gateway.store.schema import METADATA
from firstline_gateway.store.store import Store

ENTRIES = sa.Table(
    "audit_log_entries",
    METADATA,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at_s", sa.Double, nullable=False),
    sa.Column("actor", sa.String(160), nullable=False),
    sa.Column("action", sa.String(64), nullable=False),
    sa.Column("subject", sa.String(256), nullable=False, index=True),
    sa.Column("details", sa.Text, nullable=False),
    sa.Column("previous", sa.String(64), nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
)

HEAD = sa.Table(
    "audit_log_head",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
)
"""One row, of id 1."""


_DETAILS_BYTES = 64 * 1024


def add(connection: sa.Connection, at_s: float, actor: str, action: str, subject: str, /, **details: Any) -> Entry:
    """Adds an entry; replicas that add at the same moment do so one after the other.

    Args:
        connection: within the transaction that carries out what the entry tells.
        at_s: wall time.
        actor: a principal, or "rule:..." for what no person did.
        action: a word for programs, such as "rollout.start".
        subject: the object of the action.
        details: the numbers behind the decision; above 64 KiB only their size is stored.
    """
    text = msgspec.json.encode(details).decode()
    if len(text) > _DETAILS_BYTES:
        text = msgspec.json.encode({"left_out_bytes": len(text)}).decode()
    head = connection.execute(sa.select(HEAD.c.number, HEAD.c.sha256).with_for_update()).one()
    entry = next_entry((head.number, head.sha256), at_s=at_s, actor=actor, action=action, subject=subject, details=text)
    connection.execute(sa.insert(ENTRIES).values(msgspec.structs.asdict(entry)))
    connection.execute(sa.update(HEAD).values(number=entry.number, sha256=entry.sha256))
    return entry


def lock(connection: sa.Connection) -> None:
    """Waits for the transactions that add entries; others wait for this one."""
    connection.execute(sa.select(HEAD.c.number).with_for_update()).one()


def last(connection: sa.Connection) -> tuple[int, str]:
    """Returns the number and hash of the last entry; (0, `FIRST`) if the log is empty."""
    row = connection.execute(sa.select(HEAD.c.number, HEAD.c.sha256)).one()
    return row.number, row.sha256


def first_since(connection: sa.Connection, since_s: float) -> int:
    """Returns the number of the first entry from a wall time on; that of the next entry if there is none.

    Later entries can have earlier times, because the clock may step back.
    """
    found = connection.execute(sa.select(sa.func.min(ENTRIES.c.number)).where(ENTRIES.c.at_s >= since_s)).scalar_one()
    return found if found is not None else last(connection)[0] + 1


class Wanted(NamedTuple):
    """The entries of a list.

    Attributes:
        after: number; the list has the entries after it.
        subject: "" for all.
        action: its beginning, such as "rollout."; "" for all.
        since_s: wall time of the first.
        before: the list has the entries before this number, the newest first; None for the oldest first.
    """

    after: int = 0
    subject: str = ""
    action: str = ""
    since_s: float = 0.0
    before: int | None = None


def page(connection: sa.Connection, wanted: Wanted, limit: int) -> list[Entry]:
    """Returns entries."""
    number = ENTRIES.c.number
    query = sa.select(ENTRIES).where(number > wanted.after, ENTRIES.c.at_s >= wanted.since_s).limit(limit)
    query = query.order_by(number if wanted.before is None else number.desc())
    if wanted.before is not None:
        query = query.where(number < wanted.before)
    if wanted.subject:
        query = query.where(ENTRIES.c.subject == wanted.subject)
    if wanted.action:
        query = query.where(ENTRIES.c.action.startswith(wanted.action, autoescape=True))
    return [Entry(**row._mapping) for row in connection.execute(query)]


KEY_FILE = "audit-log.key"


class AuditLog:
    """The audit log of one gateway, or of the replicas that share its store.

    Args:
        store: reads it.
        directory: of the authority, where the key is that signs heads; made when it is first asked for.
        clock: for wall time.
    """

    def __init__(self, store: Store, directory: Path, *, clock: Clock) -> None:
        self._store = store
        self._directory = directory
        self._clock = clock

    async def page(self, wanted: Wanted, limit: int) -> AuditPage:
        """Returns entries by number."""
        entries = await self._store.read(partial(page, wanted=wanted, limit=limit))
        return AuditPage(tuple(entries), entries[-1].number if len(entries) == limit else None)

    async def note(self, actor: str, action: str, subject: str, details: dict[str, Any]) -> None:
        """Adds an entry about something that changes nothing else in the store."""
        now_s = self._clock.wall_s()
        await self._store.write(lambda on: add(on, now_s, actor, action, subject, **details))

    async def note_export(self, actor: str, since_s: float) -> Head:
        """Notes an export from a wall time on, and returns the signed head with its first and last entry.

        Raises:
            ConfigError: there is no key, and none can be made.
        """
        first = await self._store.read(partial(first_since, since_s=since_s))
        await self.note(actor, "audit.export", "audit", {"since_s": since_s, "first": first})
        return await self.head(first)

    async def head(self, first: int = 1) -> Head:
        """Returns the signed head: how far the log goes now.

        Args:
            first: number of the first entry of an export.

        Raises:
            ConfigError: there is no key, and none can be made.
        """
        newest = await self._store.read(last)
        key = await asyncio.to_thread(open_key, self._directory)
        return sign(newest, key, self._clock.wall_s(), first)


def open_key(directory: Path) -> Ed25519PrivateKey:
    """Returns the key in the authority's folder, which replicas and backups share; creates it if missing. Blocks.

    Raises:
        ConfigError: the key cannot be created or read.
    """
    path = directory / KEY_FILE
    try:
        make_folder(directory)
        _make(path)
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} cannot be used to sign the audit log: {error}.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} holds no Ed25519 key; move it away, and a new one is made.")
    return key


def sign(last: tuple[int, str], key: Ed25519PrivateKey, now_s: float, first: int = 1) -> Head:
    """Returns the signed head of a log, or of an export from `first` on, whose last entry has this number and hash."""
    public = key.public_key().public_bytes_raw().hex()
    return Head(*last, at_s=now_s, public_key=public, first=first).signed(key)


def _make(path: Path) -> None:
    """Creates the key if missing; if two replicas do so at once, one key is kept."""
    if path.exists():
        return
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    content = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    try:
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    sync_folder(path.parent)
