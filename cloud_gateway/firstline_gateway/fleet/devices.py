"""The devices in the store: their desired and reported documents and tags, and the brake.

Functions read and write within a caller's transaction. Documents are stored as JSON; searched fields have columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from firstline_core.errors import NotFoundError
from firstline_core.fleet.rest import Presence, Sort, presence
from firstline_core.fleet.selector import Selector
from firstline_core.fleet.twin import Brake, Desired, Reported
from firstline_core.storage.seals import DECODING_ERRORS
from firstline_core.telemetry.logs import logger
from firstline_gateway.fleet.totals import COUNTS, HISTORY
from firstline_gateway.store.schema import METADATA, JsonColumn, batched, insert_missing, single_row

DEVICES = sa.Table(
    "fleet_devices",
    METADATA,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("tags", JsonColumn(dict[str, str]), nullable=False, default=dict),
    sa.Column("accepted_s", sa.Double),  # NULL while it is not accepted
    sa.Column("first_seen_s", sa.Double),
    sa.Column("last_seen_s", sa.Double),  # NULL before the first message
    sa.Column("online", sa.Boolean, nullable=False, default=False),
    sa.Column("session", sa.String(64), nullable=False, default=""),
    sa.Column("earlier_sessions", JsonColumn(list[str]), nullable=False, default=list),  # the latest last
    sa.Column("sequence", sa.BigInteger, nullable=False, default=-1),  # of `reported`
    sa.Column("agent_version", sa.String(64), nullable=False, default=""),  # of `reported`; "" without it
    sa.Column("reported", JsonColumn(Reported)),
    # Without revision and brake, see `REVISION`.
    sa.Column("desired", JsonColumn(Desired), nullable=False, default=Desired(0)),
    sa.Column("revision", sa.BigInteger, nullable=False, default=0),  # counts the changes of `desired`
    # The revision at the broker (-1 for none) minus `revision`. If it is below the number of the brake, the
    # broker lacks the newest document.
    sa.Column("lead", sa.BigInteger, nullable=False, default=-1),
    sa.Index(None, "last_seen_s"),
    # Publishers look for devices every few seconds, and an operator waits until accepted devices are counted.
    sa.Index(None, "lead", "name", "accepted_s"),
)
BRAKE = single_row(
    "fleet_brake",
    sa.Column("number", sa.BigInteger, nullable=False),  # counts the changes of the brake
    sa.Column("brake", sa.Text),  # JSON; NULL without a limit
)
"""The limits on all devices' escalations. No device's row changes with them."""

_REVISION_LIMIT = 2**52  # a device that reports more would leave no room for further revisions
_EARLIER = 8  # sessions whose late messages are recognised
_AT_ONCE = 500  # rows that are read together, of which most may not match
_C = DEVICES.c

_BRAKES = sa.func.coalesce(sa.select(BRAKE.c.number).scalar_subquery(), 0)
REVISION = (_C.revision + _BRAKES).label("revision")
"""The revision of a device's desired document: each change of the document or of the brake is a new one."""
# In the statement that reads `REVISION`, so that a document has the brake of its revision.
_BRAKE = sa.select(BRAKE.c.brake).scalar_subquery().label("brake")
# Statements of each message, which take longer to build than to run.
_DEVICE: sa.BindParameter[str] = sa.bindparam("device")
_NUMBER = sa.bindparam("number", type_=sa.BigInteger())
_UPDATE = sa.update(DEVICES).where(_C.name == _DEVICE)
_UPDATE_OLDER = _UPDATE.where(_C.sequence < _NUMBER)
_SESSIONS = sa.select(_C.session, _C.earlier_sessions, _C.first_seen_s).where(_C.name == _DEVICE).with_for_update()
_DIFFERING_REVISION = sa.select(REVISION).where(
    _C.name == _DEVICE, sa.or_(_NUMBER > REVISION, _C.revision + _C.lead > _NUMBER)
)
_DAMAGED_BRAKE = Brake(
    0.0, "The stored limit on escalations is damaged: set it with `firstline fleet brake`, or `firstline fleet lift`."
)

log = logger(__name__)


class StoredDevice(Struct, frozen=True):
    """A device as the fleet knows it.

    Attributes:
        accepted_s: wall time of its acceptance; None for a device that must not receive anything.
        first_seen_s: wall time of its first message; None without one.
        last_seen_s: wall time of its latest message; None without one.
        online: whether its latest session has not ended, as far as known.
    """

    name: str
    tags: dict[str, str]
    accepted_s: float | None
    first_seen_s: float | None
    last_seen_s: float | None
    online: bool
    session: str
    reported: Reported | None
    desired: Desired

    def presence(self, now_s: float, revoked: Collection[str]) -> Presence:
        """Returns whether it is heard from.

        Args:
            now_s: wall time.
            revoked: names of the revoked devices.
        """
        age_s = None if self.last_seen_s is None else max(0.0, now_s - self.last_seen_s)
        return presence(age_s, online=self.online, revoked=self.name in revoked)


def mark_seen(connection: sa.Connection, name: str, session: str, now_s: float, *, accept: bool) -> bool:
    """Notes a message of a device's process.

    Args:
        connection: within a transaction.
        name: of the device.
        session: of its process; "" if unknown.
        now_s: wall time.
        accept: whether an unknown device is accepted at once.

    Returns:
        Whether this is its latest process; a message of an earlier one is late and must be ignored.
    """
    row = connection.execute(_SESSIONS, {"device": name}).one_or_none()
    if row is None:  # rarely: almost every message is of a device that is known
        _ensure(connection, name, now_s if accept else None)
        row = connection.execute(_SESSIONS, {"device": name}).one()
    earlier = row.earlier_sessions
    if session in earlier:
        return False
    values: dict[str, Any] = {"last_seen_s": now_s, "online": True}
    if row.first_seen_s is None:
        values["first_seen_s"] = now_s
    if session and session != row.session:
        earlier = [*earlier, row.session][-_EARLIER:] if row.session else earlier
        values |= {"session": session, "sequence": -1, "earlier_sessions": earlier}
    connection.execute(_UPDATE, {"device": name} | values)
    return True


def mark_offline(connection: sa.Connection, name: str, session: str) -> bool:
    """Notes that a device's process has ended, by its last will; returns False for the will of an earlier process."""
    mine = (_C.name == name, _C.session == session)
    return connection.execute(sa.update(DEVICES).where(*mine).values(online=False)).rowcount > 0


def report(connection: sa.Connection, name: str, reported: Reported, now_s: float, *, accept: bool) -> bool:
    """Stores a device's report; returns False if a newer one is stored already.

    If the device knows a later revision than the store, the store was restored from a backup: the desired document gets
    a higher revision and is published again, because a device ignores older documents than it knows. If the device
    knows an older revision than the published one, the broker may have lost that, and the document is published again.
    """
    if not mark_seen(connection, name, reported.session, now_s, accept=accept):
        return False
    values = {"sequence": reported.sequence, "reported": reported, "agent_version": reported.agent_version}
    if connection.execute(_UPDATE_OLDER, {"device": name, "number": reported.sequence} | values).rowcount == 0:
        return False
    revision = connection.execute(_DIFFERING_REVISION, {"device": name, "number": reported.revision}).scalar()
    if revision is None or reported.revision >= _REVISION_LIMIT:
        return True
    missing = reported.revision + 1 - revision if revision < reported.revision else 0
    values = {"revision": _C.revision + missing, "lead": -1 - _C.revision - missing}
    connection.execute(sa.update(DEVICES).where(_C.name == name).values(**values))
    return True


def desire(connection: sa.Connection, names: Iterable[str], change: Callable[[str, Desired], Desired]) -> list[str]:
    """Changes the desired documents of known devices; each change is a new revision.

    Args:
        connection: within a transaction.
        names: of the devices; one that was removed meanwhile is not created again.
        change: returns the new document from a device's name and old document; its revision and brake are ignored.

    Returns:
        The devices whose document has changed.
    """
    changed: list[dict[str, Any]] = []
    for some in batched(sorted(set(names))):  # in one order, so that two transactions do not deadlock
        query = sa.select(_C.name, _C.desired, _C.revision).where(_C.name.in_(some)).order_by(_C.name)
        for row in connection.execute(query.with_for_update()):
            before: Desired = row.desired
            after = replace(change(row.name, before), revision=before.revision, brake=before.brake)
            if after != before:
                changed.append({"one": row.name, "document": after, "number": row.revision + 1})
    if changed:
        mine = sa.update(DEVICES).where(_C.name == sa.bindparam("one"))
        new = {"desired": sa.bindparam("document"), "revision": sa.bindparam("number"), "lead": _C.lead - 1}
        connection.execute(mine.values(new), changed)
    return [each["one"] for each in changed]


def find(connection: sa.Connection, name: str, *, lock: bool = False) -> StoredDevice | None:
    """Returns one device; None for an unknown device. With `lock`, the row stays locked until this transaction ends."""
    query = _query().where(_C.name == name)
    row = connection.execute(query.with_for_update() if lock else query).first()
    return _device(row) if row is not None else None


def existing(connection: sa.Connection, name: str, *, lock: bool = False) -> StoredDevice:
    """Returns one device, see `find`.

    Raises:
        NotFoundError: the device is unknown.
    """
    device = find(connection, name, lock=lock)
    if device is None:
        raise unknown(name)
    return device


def unknown(name: str) -> NotFoundError:
    """Returns the error for an unknown device."""
    return NotFoundError(f"The device {name} is unknown here; `firstline device list` lists the known devices.")


class Filter(NamedTuple):
    """The devices of a list; a device must fulfil all conditions.

    Attributes:
        selector: of their tags.
        search: part of their name, in upper or lower case; "" for all.
        model: only devices that report to run it; "" for all.
        version: only devices that report to run this version of the model; None for any.
        presence: None for any.
        accepted: None for any.
    """

    selector: Selector
    search: str = ""
    model: str = ""
    version: int | None = None
    presence: Presence | None = None
    accepted: bool | None = None

    def matches(self, device: StoredDevice, now_s: float, revoked: Collection[str]) -> bool:
        """Returns whether a device belongs to the list; see `StoredDevice.presence`."""
        return (
            self.search.lower() in device.name.lower()
            and self.selector.matches(device.tags)
            and (not self.model or _runs(device, self.model, self.version))
            and self.presence in (None, device.presence(now_s, revoked))
            and self.accepted in (None, device.accepted_s is not None)
        )


def page(
    connection: sa.Connection, after: str, limit: int, matches: Callable[[StoredDevice], bool], sort: Sort = Sort.NAME
) -> list[StoredDevice]:
    """Returns a page of devices.

    Args:
        connection: within a transaction.
        after: the last name of the page before; "" for the first page.
        limit: maximum number of devices.
        matches: whether a device belongs to the list.
        sort: the order. A device that sends a message between two pages moves to the end of the order by last message.
    """
    return list(islice(filter(matches, _sorted(connection, after, sort, limit)), limit))


def _sorted(connection: sa.Connection, after: str, sort: Sort, at_once: int) -> Iterator[StoredDevice]:
    seen_s = sa.func.coalesce(_C.last_seen_s, 0.0)
    order = (_C.name,) if sort is Sort.NAME else (seen_s, _C.name)
    last: tuple[Any, ...] | None = None
    if after:
        last = (after,)
        if sort is Sort.LAST_SEEN:
            last = (connection.execute(sa.select(seen_s).where(_C.name == after)).scalar() or 0.0, after)
    while True:
        query = _query().order_by(*order).limit(at_once)
        rows = connection.execute(query if last is None else query.where(sa.tuple_(*order) > last)).all()
        yield from map(_device, rows)
        if len(rows) < at_once:
            return
        at_once = _AT_ONCE
        last = (rows[-1].name,) if sort is Sort.NAME else (rows[-1].last_seen_s or 0.0, rows[-1].name)


def _runs(device: StoredDevice, model: str, version: int | None) -> bool:
    models = device.reported.models if device.reported is not None else ()
    return any(each.name == model and version in (None, each.version) for each in models)


def tagged(connection: sa.Connection) -> list[tuple[str, dict[str, str]]]:
    """Returns names and tags of all accepted devices."""
    rows = connection.execute(sa.select(_C.name, _C.tags).where(_C.accepted_s.is_not(None)).order_by(_C.name))
    return [(row.name, row.tags) for row in rows]


def tag(connection: sa.Connection, name: str, tags: Mapping[str, str | None]) -> dict[str, str]:
    """Sets tags of a known device, removes those that are None, and returns its tags."""
    before = connection.execute(sa.select(_C.tags).where(_C.name == name).with_for_update()).scalar_one()
    after = {**before, **tags}
    after = {key: value for key, value in after.items() if value is not None}
    connection.execute(sa.update(DEVICES).where(_C.name == name).values(tags=after))
    return after


def accept(connection: sa.Connection, name: str, now_s: float) -> bool:
    """Accepts a device, also an unknown one; returns False if it was accepted before."""
    _ensure(connection, name, None)
    open_ = (_C.name == name, _C.accepted_s.is_(None))
    return connection.execute(sa.update(DEVICES).where(*open_).values(accepted_s=now_s)).rowcount > 0


def forget(connection: sa.Connection, name: str) -> bool:
    """Deletes a device and its counts; returns False for an unknown device."""
    for table in (COUNTS, HISTORY):
        connection.execute(sa.delete(table).where(table.c.device == name))
    return connection.execute(sa.delete(DEVICES).where(_C.name == name)).rowcount > 0


def unpublished(connection: sa.Connection, limit: int, after: str = "") -> list[tuple[str, Desired]]:
    """Returns the desired documents of accepted devices that are not at the broker yet, the oldest revisions first.

    Args:
        connection: within a transaction.
        limit: maximum number of documents.
        after: a device whose document is not there yet; only those behind it are returned. "" for all.
    """
    query: sa.Select[Any] = sa.select(_C.name, _C.desired, REVISION, _BRAKE)
    query = query.where(_C.lead < _BRAKES, _C.accepted_s.is_not(None)).order_by(_C.lead, _C.name).limit(limit)
    lead = connection.execute(sa.select(_C.lead).where(_C.name == after)).scalar() if after else None
    if lead is not None:
        query = query.where(sa.tuple_(_C.lead, _C.name) > (lead, after))
    rows = connection.execute(query)
    return [(row.name, _desired(row)) for row in rows]


def mark_published(connection: sa.Connection, revisions: Mapping[str, int]) -> None:
    """Notes which revisions are at the broker."""
    rows = [{"one": name, "number": revision} for name, revision in sorted(revisions.items())]
    lead: sa.ColumnElement[int] = sa.bindparam("number") - _C.revision
    older = (_C.name == sa.bindparam("one"), _C.lead < lead)
    if rows:
        connection.execute(sa.update(DEVICES).where(*older).values(lead=lead), rows)


def brake(connection: sa.Connection) -> Brake | None:
    """Returns the limits on all devices' escalations; None if there are no limits."""
    return _brake(connection.execute(sa.select(BRAKE.c.brake)).scalar_one())


def set_brake(connection: sa.Connection, wanted: Brake | None) -> int:
    """Sets or lifts the brake in the desired documents of all devices.

    Returns:
        The number of accepted devices, which are informed; 0 if the brake was set so before.
    """
    if _brake(connection.execute(sa.select(BRAKE.c.brake).with_for_update()).scalar_one()) == wanted:
        return 0
    stored = msgspec.json.encode(wanted).decode() if wanted is not None else None
    connection.execute(sa.update(BRAKE).values(brake=stored, number=BRAKE.c.number + 1))
    accepted = sa.select(sa.func.count()).select_from(DEVICES).where(_C.accepted_s.is_not(None))
    return connection.execute(accepted).scalar_one()


@lru_cache(1)  # most rows are read with the same brake
def _brake(stored: str | None) -> Brake | None:
    """Reads the stored brake; a damaged one forbids escalation, as the limit that it set is unknown."""
    try:
        return msgspec.json.decode(stored, type=Brake) if stored is not None else None
    except DECODING_ERRORS as error:
        log.error("brake damaged", error=str(error), effect=_DAMAGED_BRAKE.reason)
        return _DAMAGED_BRAKE


def _ensure(connection: sa.Connection, name: str, accepted_s: float | None) -> None:
    """Adds a device that is unknown, with the defaults of the other columns."""
    insert_missing(connection, DEVICES, {"name": name, "accepted_s": accepted_s})


def _query() -> sa.Select[Any]:
    return sa.select(*(_C[name] for name in StoredDevice.__struct_fields__), REVISION, _BRAKE)


def _device(row: sa.Row[Any]) -> StoredDevice:
    values = {name: getattr(row, name) for name in StoredDevice.__struct_fields__}
    return StoredDevice(**values | {"desired": _desired(row)})


def _desired(row: sa.Row[Any]) -> Desired:
    stored: Desired = row.desired
    return replace(stored, revision=row.revision, brake=_brake(row.brake))
