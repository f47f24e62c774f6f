"""The tables of the audit log. Its head is a row of its own, which is locked while an entry is added.

`identity/audit_head.py`, which needs the authority's folder, signs the head, and reads the log for the API.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from firstline_core.fleet.audit_log import Entry, next_entry
from firstline_gateway.store.schema import METADATA, single_row

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

HEAD = single_row(
    "audit_log_head",
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
)

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
    content = msgspec.json.encode(details)
    if len(content) > _DETAILS_BYTES:
        content = msgspec.json.encode({"left_out_bytes": len(content)})
    row = connection.execute(sa.select(HEAD.c.number, HEAD.c.sha256).with_for_update()).one()
    head = msgspec.convert(tuple(row), tuple[int, str])  # a damaged number is damage of the store, see `Database.begin`
    entry = next_entry(head, at_s=at_s, actor=actor, action=action, subject=subject, details=content.decode())
    connection.execute(sa.insert(ENTRIES).values(msgspec.structs.asdict(entry)))
    connection.execute(sa.update(HEAD).values(number=entry.number, sha256=entry.sha256))
    return entry


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


class EntryFilter(NamedTuple):
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


def page(connection: sa.Connection, wanted: EntryFilter, limit: int) -> list[Entry]:
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
