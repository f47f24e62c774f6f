"""The tables of profiles and profile requests, with functions within a caller's transaction."""

from __future__ import annotations

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import asdict

from firstline_core.fleet.profiles import MACHINE_VERSIONS, ProfileEntry
from firstline_core.fleet.twin import DesiredProfile
from firstline_core.protocol.enrolment import device_principal
from firstline_gateway.store.schema import METADATA, Document, upsert

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
    sa.Column("entry", Document(ProfileEntry), nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)

PROFILE_REQUESTS = sa.Table(
    "profile_requests",
    METADATA,
    sa.Column("device", sa.String(64), primary_key=True),
    sa.Column("bundle", sa.String(64), primary_key=True),
    sa.Column("wanted", Document(DesiredProfile), nullable=False),
    sa.Column("by", sa.String(160), nullable=False),
    sa.Column("asked_s", sa.Double, nullable=False),
    sa.Column("until_s", sa.Double, nullable=False, index=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("delivered_s", sa.Double),
    sa.Column("ended_s", sa.Double),
    sa.Column("why", sa.Text, nullable=False),
)

_P, _R = PROFILES.c, PROFILE_REQUESTS.c


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


class RequestRecord(Struct, frozen=True):
    """A request; a device has at most one for each bundle.

    Attributes:
        wanted: as the device receives it.
        by: the principal that made it.
        asked_s: wall time of the request.
        until_s: wall time when the request ends, unless it was fulfilled.
        version: that the device uploaded; 0 if none.
        sha256: of the uploaded profile; "" if it is not known.
        delivered_s: wall time of the upload; None before.
        ended_s: wall time when the end of the request was recorded; None before.
        why: why the device had not measured when the request ended, in a sentence, or "".
    """

    device: str
    wanted: DesiredProfile
    by: str
    asked_s: float
    until_s: float
    version: int = 0
    sha256: str = ""
    delivered_s: float | None = None
    ended_s: float | None = None
    why: str = ""

    def has_expired(self, now_s: float) -> bool:
        """Whether the request can no longer be fulfilled."""
        return self.delivered_s is None and (self.ended_s is not None or self.until_s <= now_s)


_REQUEST = [_R[name] for name in RequestRecord.__struct_fields__]


def put_request(connection: sa.Connection, request: RequestRecord) -> None:
    """Stores a request, replacing the previous one of that device and bundle."""
    upsert(connection, PROFILE_REQUESTS, asdict(request) | {"bundle": request.wanted.bundle})


def requests_of(connection: sa.Connection, device: str) -> list[RequestRecord]:
    """Returns all requests of one device, oldest first."""
    query = sa.select(*_REQUEST).where(_R.device == device).order_by(_R.asked_s, _R.bundle)
    return [RequestRecord(**row._mapping) for row in connection.execute(query)]


def find_request(connection: sa.Connection, device: str, bundle: str) -> RequestRecord | None:
    """Returns one request; None if it does not exist."""
    row = connection.execute(sa.select(*_REQUEST).where(_R.device == device, _R.bundle == bundle)).first()
    return RequestRecord(**row._mapping) if row is not None else None


def devices_with_expired_requests(connection: sa.Connection, now_s: float, limit: int) -> list[str]:
    """Returns devices with requests whose end has passed and was not recorded."""
    unrecorded = (_R.until_s <= now_s, _R.delivered_s.is_(None), _R.ended_s.is_(None))
    query = sa.select(_R.device).distinct().where(*unrecorded).order_by(_R.device).limit(limit)
    return list(connection.execute(query).scalars())


def remove_request(connection: sa.Connection, device: str, bundle: str) -> None:
    """Deletes a request."""
    connection.execute(sa.delete(PROFILE_REQUESTS).where(_R.device == device, _R.bundle == bundle))


def delete_device(connection: sa.Connection, device: str) -> None:
    """Deletes the requests of a device, and the profiles that it measured itself."""
    connection.execute(sa.delete(PROFILES).where(_P.machine == device, _P.by == device_principal(device)))
    connection.execute(sa.delete(PROFILE_REQUESTS).where(_R.device == device))


def _at(place: Place) -> tuple[sa.ColumnElement[bool], ...]:
    bundle, version, machine = place
    return _P.bundle == bundle, _P.version == version, _P.machine == machine
