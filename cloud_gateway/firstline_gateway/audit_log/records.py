"""The audit log in the store, within a caller's transaction: an action and its entry are committed together."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, insert, select, update

from firstline_core.fleet.audit_log import FIRST, Entry, next_entry
from firstline_gateway.audit_log.tables import ENTRIES, HEAD
from firstline_gateway.store import statements

_DETAILS_BYTES = 64 * 1024


def add(
    connection: Connection, *, at_s: float, actor: str, action: str, subject: str, details: dict[str, Any]
) -> Entry:
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
    row = {"id": 1, "number": 0, "sha256": FIRST}
    connection.execute(statements.insert(connection, HEAD).values(row).on_conflict_do_nothing())
    held = connection.execute(select(HEAD.c.number, HEAD.c.sha256).with_for_update()).one()
    entry = next_entry((held.number, held.sha256), at_s=at_s, actor=actor, action=action, subject=subject, details=text)
    connection.execute(insert(ENTRIES).values(msgspec.structs.asdict(entry)))
    connection.execute(update(HEAD).values(number=entry.number, sha256=entry.sha256))
    return entry


def last(connection: Connection) -> tuple[int, str]:
    """Returns the number and hash of the last entry; (0, `FIRST`) if the log is empty."""
    found = connection.execute(select(HEAD.c.number, HEAD.c.sha256)).one_or_none()
    return (found.number, found.sha256) if found is not None else (0, FIRST)


def page(connection: Connection, after: int, limit: int, subject: str = "") -> list[Entry]:
    """Entries by number, from the first one after `after` on; of one subject, or of all."""
    query = select(ENTRIES).where(ENTRIES.c.number > after).order_by(ENTRIES.c.number).limit(limit)
    if subject:
        query = query.where(ENTRIES.c.subject == subject)
    return [Entry(**row._mapping) for row in connection.execute(query)]
