"""The table of profiles, with functions within a caller's transaction."""

from __future__ import annotations

import sqlalchemy as sa

from firstline_core.fleet.profiles import MACHINE_VERSIONS, ProfileEntry
from firstline_core.protocol.enrolment import device_principal
from firstline_gateway.store.schema import METADATA, JsonColumn, upsert

Place = tuple[str, int, str]
"""Bundle, version and machine."""

PROFILES = sa.Table(
    "profiles",
    METADATA,
    sa.Column("bundle", sa.String(64), primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("machine", sa.String(64), primary_key=True),
    sa.Column("kept_s", sa.Double, nullable=False),
    sa.Column("by", sa.String(160), nullable=False),
    sa.Column("entry", JsonColumn(ProfileEntry), nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)

_P = PROFILES.c


def put(connection: sa.Connection, entry: ProfileEntry, content: bytes) -> None:
    """Stores a profile, replacing the previous one, and deletes the machine's oldest of that bundle."""
    values = {name: getattr(entry, name) for name in ("bundle", "version", "machine", "kept_s", "by")}
    values |= {"entry": entry, "content": content}
    upsert(connection, PROFILES, values)
    same = (_P.bundle == entry.bundle, _P.machine == entry.machine)
    others = (
        sa.select(_P.version).where(*same, _P.version != entry.version).order_by(_P.kept_s.desc(), _P.version.desc())
    )
    if old := connection.execute(others.offset(MACHINE_VERSIONS - 1)).scalars().all():
        connection.execute(sa.delete(PROFILES).where(*same, _P.version.in_(old)))


def find(connection: sa.Connection, place: Place) -> tuple[ProfileEntry, bytes] | None:
    """Returns one profile; None if it is not stored."""
    row = connection.execute(sa.select(_P.entry, _P.content).where(*_at(place))).first()
    return (row.entry, row.content) if row is not None else None


def page(
    connection: sa.Connection, after: Place, limit: int, *, bundle: str = "", machine: str = ""
) -> list[ProfileEntry]:
    """Returns the entries of profiles, by bundle, version and machine.

    Args:
        connection: within a transaction.
        after: the place before the first one.
        limit: most entries.
        bundle: only of this bundle; "" for all.
        machine: only of this machine; "" for all.
    """
    query = sa.select(_P.entry).where(sa.tuple_(_P.bundle, _P.version, _P.machine) > after)
    for column, wanted in ((_P.bundle, bundle), (_P.machine, machine)):
        if wanted:
            query = query.where(column == wanted)
    rows = connection.execute(query.order_by(_P.bundle, _P.version, _P.machine).limit(limit))
    return list(rows.scalars())


def remove(connection: sa.Connection, place: Place) -> bool:
    """Deletes a profile; returns False if it is not stored."""
    return connection.execute(sa.delete(PROFILES).where(*_at(place))).rowcount > 0


def delete_device(connection: sa.Connection, device: str) -> None:
    """Deletes the profiles that a device measured of itself."""
    connection.execute(sa.delete(PROFILES).where(_P.machine == device, _P.by == device_principal(device)))


def _at(place: Place) -> tuple[sa.ColumnElement[bool], ...]:
    bundle, version, machine = place
    return _P.bundle == bundle, _P.version == version, _P.machine == machine
