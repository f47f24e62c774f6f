"""Profile requests in the store, within a caller's transaction: until when, and what came of it."""

from __future__ import annotations

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, Row, delete, select

from firstline_core.fleet.twin import DesiredProfile
from firstline_gateway.profiles.tables import PROFILE_REQUESTS
from firstline_gateway.store import statements

_C = PROFILE_REQUESTS.c


class RequestRecord(Struct, frozen=True):
    """A request: a device has one for each bundle.

    Attributes:
        wanted: as the device hears it.
        by: the principal that asks.
        asked_s: wall time when it did.
        until_s: wall time when the request ends, unless it was fulfilled.
        version: that the device brought; 0 where it has brought none.
        sha256: of the uploaded profile; "" if it is not known.
        brought_s: wall time when it did; None where it has not.
        ended_s: wall time when it was noted that the request has ended; None where it was not.
        why: why the device had not measured when the request ended, as a sentence, or "".
    """

    device: str
    wanted: DesiredProfile
    by: str
    asked_s: float
    until_s: float
    version: int = 0
    sha256: str = ""
    brought_s: float | None = None
    ended_s: float | None = None
    why: str = ""

    def has_expired(self, now_s: float) -> bool:
        """Returns whether the request can no longer be fulfilled."""
        return self.brought_s is None and (self.ended_s is not None or self.until_s <= now_s)


def put(connection: Connection, asked: RequestRecord) -> None:
    """Keeps a request as it stands now, in the place of the one of that device and bundle before."""
    values = msgspec.structs.asdict(asked)
    wanted = values.pop("wanted")
    values |= {"bundle": wanted.bundle, "wanted": msgspec.json.encode(wanted).decode()}
    added = statements.insert(connection, PROFILE_REQUESTS).values(values)
    replaced = {name: value for name, value in values.items() if name not in ("device", "bundle")}
    connection.execute(added.on_conflict_do_update(index_elements=["device", "bundle"], set_=replaced))


def of(connection: Connection, device: str) -> list[RequestRecord]:
    """All of one device, in the order in which they were asked."""
    mine = select(PROFILE_REQUESTS).where(_C.device == device).order_by(_C.asked_s, _C.bundle)
    return [_asked(row) for row in connection.execute(mine)]


def find(connection: Connection, device: str, bundle: str) -> RequestRecord | None:
    """Returns one request; None if it does not exist."""
    row = connection.execute(select(PROFILE_REQUESTS).where(_C.device == device, _C.bundle == bundle)).first()
    return _asked(row) if row is not None else None


def due(connection: Connection, now_s: float, limit: int) -> list[str]:
    """Devices with requests that are over and were not noted as such."""
    open_ = (_C.until_s <= now_s, _C.brought_s.is_(None), _C.ended_s.is_(None))
    return list(
        connection.execute(select(_C.device).distinct().where(*open_).order_by(_C.device).limit(limit)).scalars()
    )


def remove(connection: Connection, device: str, bundle: str) -> None:
    """Forgets one."""
    connection.execute(delete(PROFILE_REQUESTS).where(_C.device == device, _C.bundle == bundle))


def delete_device(connection: Connection, device: str) -> None:
    """Deletes all requests of a device."""
    connection.execute(delete(PROFILE_REQUESTS).where(_C.device == device))


def _asked(row: Row[tuple[object, ...]]) -> RequestRecord:
    values = {name: getattr(row, name) for name in RequestRecord.__struct_fields__ if name != "wanted"}
    return RequestRecord(wanted=msgspec.json.decode(row.wanted, type=DesiredProfile), **values)
