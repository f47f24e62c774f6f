"""The devices in the store, within a caller's transaction: their desired and reported documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, Row, Select, bindparam, delete, insert, or_, select, update

from firstline_core.errors import NotFoundError
from firstline_core.fleet.twin import Brake, Desired, Reported
from firstline_gateway.fleet.selector import Selector
from firstline_gateway.fleet.tables import BRAKE, COUNTS, DEVICES, HISTORY
from firstline_gateway.store import schema
from firstline_gateway.store.schema import batched

_HEEDED = 2**52  # a device that says more would leave no numbers to go on with
_EARLIER = 8  # sessions whose late words are known as late
_AT_ONCE = 500  # rows that are read for a page of which most may not be meant
_C = DEVICES.c
_NOTHING = msgspec.json.encode(Desired(0)).decode()


class Device(Struct, frozen=True):
    """A device as the fleet knows it.

    Attributes:
        accepted_s: wall time since which it belongs here; None while it is not to be given anything.
        first_seen_s: wall time when it was first heard of by itself; None where it never was.
        last_seen_s: likewise, the latest.
        online: whether its latest session has not ended, as far as is known.
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


def seen(connection: Connection, name: str, session: str, now_s: float, *, accept: bool) -> bool:
    """A device speaks, as the process `session`.

    Args:
        connection: within a transaction.
        name: of the device.
        session: of its process; "" where it does not say.
        now_s: wall time.
        accept: whether a device that was never heard of belongs here at once.

    Returns:
        Whether this is its latest process; a word of an earlier one comes late, and is not to be believed.
    """
    _ensure(connection, [name], now_s if accept else None)
    held = connection.execute(
        select(_C.session, _C.earlier_sessions, _C.first_seen_s).where(_C.name == name).with_for_update()
    ).one()
    earlier = msgspec.json.decode(held.earlier_sessions, type=list[str])
    if session in earlier:
        return False
    values: dict[str, Any] = {"last_seen_s": now_s, "online": True}
    if held.first_seen_s is None:
        values["first_seen_s"] = now_s
    if session and session != held.session:
        kept = [*earlier, held.session][-_EARLIER:] if held.session else earlier
        values |= {"session": session, "sequence": -1, "earlier_sessions": msgspec.json.encode(kept).decode()}
    connection.execute(update(DEVICES).where(_C.name == name).values(**values))
    return True


def left(connection: Connection, name: str, session: str) -> bool:
    """Notes that a device's process has ended, by its last will; returns False for the will of an earlier process."""
    mine = (_C.name == name, _C.session == session)
    return connection.execute(update(DEVICES).where(*mine).values(online=False)).rowcount > 0


def report(connection: Connection, name: str, reported: Reported, now_s: float, *, accept: bool) -> bool:
    """Stores a device's report; returns False if a newer one is stored already.

    Where it knows a later revision than there was here, the store is of an earlier moment: its document gets a higher
    number and is published again, because a device ignores older documents than it knows. Where it knows none so late
    as what was published, the broker may have lost that, and is given it again.
    """
    if not seen(connection, name, reported.session, now_s, accept=accept):
        return False
    newer = (_C.name == name, _C.sequence < reported.sequence)
    values = {"sequence": reported.sequence, "reported": msgspec.json.encode(reported).decode()}
    if connection.execute(update(DEVICES).where(*newer).values(**values)).rowcount == 0:
        return False
    differs = or_(_C.revision < reported.revision, _C.published > reported.revision)
    held = connection.execute(select(_C.desired, _C.revision).where(_C.name == name, differs)).first()
    if held is None or reported.revision >= _HEEDED:
        return True
    values = {"published": -1}
    if held.revision < reported.revision:
        said = msgspec.structs.replace(msgspec.json.decode(held.desired, type=Desired), revision=reported.revision + 1)
        values |= {"revision": said.revision, "desired": msgspec.json.encode(said).decode()}
    connection.execute(update(DEVICES).where(_C.name == name).values(**values))
    return True


def desire(
    connection: Connection,
    names: Iterable[str],
    change: Callable[[str, Desired], Desired],
    now_s: float,
    *,
    known: bool = False,
) -> list[str]:
    """Changes what devices are to run; each change is a new revision.

    Args:
        connection: within a transaction.
        names: of the devices; a device that is not known yet gets the document when it connects.
        change: from what a device was to run to what it is; its revision is not looked at.
        now_s: wall time.
        known: change only known devices; a device that was removed meanwhile is not created again.

    Returns:
        Those for which something changed.
    """
    changed: list[dict[str, Any]] = []
    for some in batched(sorted(set(names))):  # in one order, so that two who change several do not wait for each other
        if not known:
            _ensure(connection, some, now_s)
        query = select(_C.name, _C.desired, _C.revision).where(_C.name.in_(some)).order_by(_C.name)
        for held in connection.execute(query.with_for_update()):
            before = msgspec.json.decode(held.desired, type=Desired)
            after = msgspec.structs.replace(change(held.name, before), revision=before.revision)
            if after != before:
                after = msgspec.structs.replace(after, revision=held.revision + 1)
                said = msgspec.json.encode(after).decode()
                changed.append({"one": held.name, "said": said, "number": after.revision})
    if changed:
        mine = update(DEVICES).where(_C.name == bindparam("one"))
        connection.execute(mine.values(desired=bindparam("said"), revision=bindparam("number")), changed)
    return [each["one"] for each in changed]


def find(connection: Connection, name: str, *, lock: bool = False) -> Device | None:
    """Returns one device; None for an unknown device. With `lock`, the row stays locked until this transaction ends."""
    query = _query().where(_C.name == name)
    row = connection.execute(query.with_for_update() if lock else query).first()
    return _device(row) if row is not None else None


def unknown(name: str) -> NotFoundError:
    """Returns the error for an unknown device."""
    return NotFoundError(f"Nobody has heard of a device {name} here; `firstline device ls` shows those that are known.")


def page(
    connection: Connection, after: str, limit: int, selector: Selector, *, model: str = "", version: int | None = None
) -> list[Device]:
    """Devices by name, from the first one after a name on.

    Args:
        connection: within a transaction.
        after: the name; "" for the first ones.
        limit: most of them.
        selector: of their tags.
        model: only those that say they run it; "" for all.
        version: likewise, in this version; None for any.
    """
    found: list[Device] = []
    at_once = limit if not (selector.text or model) else max(limit, _AT_ONCE)
    while len(found) < limit:
        rows = connection.execute(_query().where(_C.name > after).order_by(_C.name).limit(at_once)).all()
        found += [
            device
            for device in map(_device, rows)
            if selector.matches(device.tags) and (not model or _runs(device, model, version))
        ]
        if len(rows) < at_once:
            break
        after = rows[-1].name
    return found[:limit]


def _runs(device: Device, model: str, version: int | None) -> bool:
    said = device.reported.models if device.reported is not None else ()
    return any(each.name == model and version in (None, each.version) for each in said)


def tagged(connection: Connection) -> list[tuple[str, dict[str, str]]]:
    """Names and tags of all devices that belong here."""
    rows = connection.execute(select(_C.name, _C.tags).where(_C.accepted_s.is_not(None)).order_by(_C.name))
    return [(row.name, msgspec.json.decode(row.tags, type=dict[str, str])) for row in rows]


def tag(connection: Connection, name: str, tags: Mapping[str, str | None]) -> dict[str, str]:
    """Sets a known device's tags, and takes away those that are None; all that it has now."""
    held = connection.execute(select(_C.tags).where(_C.name == name).with_for_update()).scalar_one()
    after = {**msgspec.json.decode(held, type=dict[str, Any]), **tags}
    kept = {key: value for key, value in after.items() if value is not None}
    connection.execute(update(DEVICES).where(_C.name == name).values(tags=msgspec.json.encode(kept).decode()))
    return kept


def accept(connection: Connection, name: str, now_s: float) -> bool:
    """A device belongs here from now on; one that was never heard of will when it comes. False where it did before."""
    _ensure(connection, [name], None)
    open_ = (_C.name == name, _C.accepted_s.is_(None))
    return connection.execute(update(DEVICES).where(*open_).values(accepted_s=now_s)).rowcount > 0


def forget(connection: Connection, name: str) -> bool:
    """Deletes a device and its counts; returns False for an unknown device."""
    for table in (COUNTS, HISTORY):
        connection.execute(delete(table).where(table.c.device == name))
    return connection.execute(delete(DEVICES).where(_C.name == name)).rowcount > 0


def unpublished(connection: Connection, limit: int) -> list[tuple[str, Desired]]:
    """Desired documents that do not lie at the broker yet, of devices that belong here."""
    due = (_C.published < _C.revision, _C.accepted_s.is_not(None))
    rows = connection.execute(select(_C.name, _C.desired).where(*due).order_by(_C.name).limit(limit))
    return [(row.name, msgspec.json.decode(row.desired, type=Desired)) for row in rows]


def published(connection: Connection, revisions: Mapping[str, int]) -> None:
    """Notes which revisions lie at the broker."""
    rows = [{"one": name, "number": revision} for name, revision in sorted(revisions.items())]
    older = (_C.name == bindparam("one"), _C.published < bindparam("number"))
    if rows:
        connection.execute(update(DEVICES).where(*older).values(published=bindparam("number")), rows)


def brake(connection: Connection) -> Brake | None:
    """Returns the limits on all devices' escalations; None if there are no limits."""
    row = connection.execute(select(BRAKE.c.brake)).first()
    return msgspec.json.decode(row.brake, type=Brake) if row is not None else None


def set_brake(connection: Connection, wanted: Brake | None, by: str, now_s: float) -> None:
    """Sets or lifts the brake; `desire` informs the devices."""
    connection.execute(delete(BRAKE))
    if wanted is not None:
        row = {"id": 1, "brake": msgspec.json.encode(wanted).decode(), "by": by, "since_s": now_s}
        connection.execute(insert(BRAKE).values(row))


def names(connection: Connection) -> list[str]:
    """Of all devices that belong here."""
    return list(connection.execute(select(_C.name).where(_C.accepted_s.is_not(None)).order_by(_C.name)).scalars())


def _ensure(connection: Connection, names: Iterable[str], accepted_s: float | None) -> None:
    rows = [
        {
            "name": name,
            "tags": "{}",
            "accepted_s": accepted_s,
            "first_seen_s": None,
            "last_seen_s": None,
            "online": False,
            "session": "",
            "earlier_sessions": "[]",
            "sequence": -1,
            "reported": None,
            "desired": _NOTHING,
            "revision": 0,
            "published": -1,
        }
        for name in names
    ]
    connection.execute(schema.insert(connection, DEVICES).on_conflict_do_nothing(), rows)


def _query() -> Select[Any]:
    return select(
        _C.name,
        _C.tags,
        _C.accepted_s,
        _C.first_seen_s,
        _C.last_seen_s,
        _C.online,
        _C.session,
        _C.reported,
        _C.desired,
    )


def _device(row: Row[Any]) -> Device:
    return Device(
        name=row.name,
        tags=msgspec.json.decode(row.tags, type=dict[str, str]),
        accepted_s=row.accepted_s,
        first_seen_s=row.first_seen_s,
        last_seen_s=row.last_seen_s,
        online=row.online,
        session=row.session,
        reported=msgspec.json.decode(row.reported, type=Reported) if row.reported is not None else None,
        desired=msgspec.json.decode(row.desired, type=Desired),
    )
