"""The profiles in the store, within a caller's transaction."""

from __future__ import annotations

import msgspec
from sqlalchemy import ColumnElement, Connection, delete, select, tuple_

from firstline_core.fleet.profiles import MACHINE_VERSIONS, ProfileEntry
from firstline_core.protocol.enrolment import device_principal
from firstline_gateway.profiles.tables import PROFILES
from firstline_gateway.store import statements

_C = PROFILES.c
_LOOKED_AT = 64
"""Profiles of one bundle on machines of one fingerprint, the latest: another model's digest ends the search there."""

Place = tuple[str, int, str]
"""Bundle, version and machine."""


def put(connection: Connection, entry: ProfileEntry, content: bytes) -> None:
    """Keeps a profile in the place of the one before, and forgets the machine's oldest of that bundle."""
    values = {
        "bundle": entry.bundle,
        "version": entry.version,
        "machine": entry.machine,
        "kept_s": entry.kept_s,
        "by": entry.by,
        "entry": msgspec.json.encode(entry).decode(),
        "content": content,
        "fingerprint": entry.fingerprint,
    }
    added = statements.insert(connection, PROFILES).values(values)
    replaced = {name: values[name] for name in ("kept_s", "by", "entry", "content", "fingerprint")}
    connection.execute(added.on_conflict_do_update(index_elements=["bundle", "version", "machine"], set_=replaced))
    mine = (_C.bundle == entry.bundle, _C.machine == entry.machine)
    others = select(_C.version).where(*mine, _C.version != entry.version).order_by(_C.kept_s.desc(), _C.version.desc())
    if old := connection.execute(others.offset(MACHINE_VERSIONS - 1)).scalars().all():
        connection.execute(delete(PROFILES).where(*mine, _C.version.in_(old)))


def find(connection: Connection, place: Place) -> tuple[ProfileEntry, bytes] | None:
    """Returns one profile; None if it is not stored."""
    row = connection.execute(select(_C.entry, _C.content).where(*_at(place))).first()
    return (_entry(row.entry), row.content) if row is not None else None


def of_hardware(connection: Connection, bundle: str, model_digest: str, fingerprint: str) -> bytes | None:
    """The latest profile that a person brought of a machine of this fingerprint, and in which the model ran."""
    theirs = (_C.bundle == bundle, _C.fingerprint == fingerprint, ~_C.by.startswith(device_principal("")))
    found = select(_C.version, _C.machine, _C.entry).where(*theirs).order_by(_C.kept_s.desc()).limit(_LOOKED_AT)
    for row in connection.execute(found).all():
        if model_digest in _entry(row.entry).models:
            here = _at((bundle, row.version, row.machine))
            return connection.execute(select(_C.content).where(*here)).scalar_one_or_none()
    return None


def page(
    connection: Connection, after: Place, limit: int, *, bundle: str = "", machine: str = ""
) -> list[ProfileEntry]:
    """Returns the entries of profiles, by bundle, version and machine.

    Args:
        connection: within a transaction.
        after: from the first one after this place on.
        limit: most of them.
        bundle: only of this one; "" for all.
        machine: likewise.
    """
    query = select(_C.entry).where(tuple_(_C.bundle, _C.version, _C.machine) > after)
    for column, wanted in ((_C.bundle, bundle), (_C.machine, machine)):
        if wanted:
            query = query.where(column == wanted)
    rows = connection.execute(query.order_by(_C.bundle, _C.version, _C.machine).limit(limit))
    return [_entry(text) for text in rows.scalars()]


def remove(connection: Connection, place: Place) -> bool:
    """Deletes one; returns False if it is not stored."""
    return connection.execute(delete(PROFILES).where(*_at(place))).rowcount > 0


def delete_device(connection: Connection, device: str) -> None:
    """Deletes the profiles that a device measured of itself."""
    connection.execute(delete(PROFILES).where(_C.machine == device, _C.by == device_principal(device)))


def _at(place: Place) -> tuple[ColumnElement[bool], ...]:
    bundle, version, machine = place
    return _C.bundle == bundle, _C.version == version, _C.machine == machine


def _entry(text: str) -> ProfileEntry:
    return msgspec.json.decode(text, type=ProfileEntry)
