"""The alarms that devices raised by their own audits, in the store, within a caller's transaction.

They are shown, and change nothing for other devices: a single bad lens, or a liar, must not alarm a fleet. A device
repeats its alarm with each request and with its telemetry. Its first report adds an entry to the audit log, which is
also the message of webhooks: replicas that share a store add one. A device that switches between variants has an alarm
for each variant whose promise is broken.

Transactions lock a device's alarms in the order of their key, and the audit log after them.

`since_s`, `last_s` and `ended_s` are wall time, to be shown. Alarms age by `service_s`, the store's own clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import sqlalchemy as sa

from firstline_core.fleet.telemetry import ModelCounts
from firstline_core.telemetry.logs import logger
from firstline_core.types import ContractAlarm, ModelKey
from firstline_core.units import DAY_S
from firstline_gateway import audit_log
from firstline_gateway.identity.enrolment import revoked_devices
from firstline_gateway.identity.principals import UNAUTHENTICATED
from firstline_gateway.store.schema import METADATA, insert, upsert

DEVICE_ALARM = "contract.device_alarm"
"""Action of the audit log's entry about an alarm that a device raised."""

ALARMS_OF_ALL = 100_000
"""The largest number of stored alarms. Before another one is added, those are deleted whose report is the oldest."""

_KEPT_S = 30 * DAY_S  # time off after which a device does not raise its alarm again
_SETTLED_S = 900.0  # delay of telemetry from before an alarm, and time in which an alarm that returns is the same
_ENTRIES_A_DAY = 16  # of one device, which chooses what it reports
_ALARMS = 64  # of one device
_MADE_ROOM = 0.01  # of all alarms, so that few reports pay for the search for the oldest
_EVENT_LIMIT = 256  # characters

ALARMS = sa.Table(
    "device_alarms",
    METADATA,
    sa.Column("device", sa.Text, primary_key=True),
    sa.Column("bundle", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("edge_digest", sa.Text, primary_key=True),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("since_s", sa.Double, nullable=False),
    sa.Column("last_s", sa.Double, nullable=False),
    sa.Column("ended_s", sa.Double, nullable=True),
    sa.Column("service_s", sa.Double, nullable=False),
)

_A = ALARMS.c

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceAlarm:
    """The alarm that one device reports for the promise of one edge variant.

    Attributes:
        device: that reports it.
        bundle: name of the model.
        version: of the model.
        edge_digest: of the edge variant whose promise is broken.
        event: whose promise is broken; "" for the promise about all rows.
        since_s: wall time of the first report.
        last_s: wall time of the latest report.
        ended_s: wall time of the first report without the alarm; None while it lasts.
        service_s: time of service of the latest report.
    """

    device: str
    bundle: str
    version: int
    edge_digest: str
    event: str
    since_s: float
    last_s: float
    ended_s: float | None
    service_s: float

    @property
    def model(self) -> ModelKey:
        """The version."""
        return ModelKey(self.bundle, self.version)

    @property
    def rank(self) -> tuple[bool, float, str, str]:
        """Its place in lists: lasting alarms come first, then those that ended; the latest to begin first."""
        return self.ended_s is not None, -self.since_s, self.device, self.edge_digest

    def repeats(self, alarm: ContractAlarm) -> bool:
        """Returns whether a device reports this alarm again."""
        return self.ended_s is None and (self.edge_digest, self.event) == (alarm.edge_digest, _event(alarm))


class Change(NamedTuple):
    """The change that a report makes.

    Attributes:
        alarm: after the report.
        has_changed: whether it has begun or ended.
    """

    alarm: DeviceAlarm
    has_changed: bool

    def log(self) -> None:
        """Logs an alarm that has begun or ended."""
        alarm, has_changed = self
        if not has_changed:
            return
        fields = {
            "device": alarm.device,
            "model": alarm.bundle,
            "version": alarm.version,
            "edge_digest": alarm.edge_digest,
            "contract_event": alarm.event or None,
        }
        if alarm.ended_s is None:
            log.error("device contract broken by its own audits", **fields)
        else:
            log.warning("device alarm ended", **fields)


@dataclass(frozen=True, slots=True)
class _Report:
    """A device's report about one version, at a wall time and a time of service."""

    device: str
    model: ModelKey
    now_s: float
    service_s: float

    def raised(self, connection: sa.Connection, alarm: ContractAlarm) -> list[Change]:
        """Stores that an alarm is active; if it returns shortly after its end, it is the same alarm.

        Returns:
            The change; none if the device has too many alarms.
        """
        before = next(iter(self._locked(connection, _A.edge_digest == alarm.edge_digest)), None)
        is_same = before is not None and (before.ended_s is None or self.service_s - before.service_s < _SETTLED_S)
        found = DeviceAlarm(
            self.device,
            *self.model,
            alarm.edge_digest,
            _event(alarm),
            since_s=before.since_s if before is not None and is_same else self.now_s,
            last_s=self.now_s,
            ended_s=None,
            service_s=self.service_s,
        )
        if before is not None:
            upsert(connection, ALARMS, asdict(found))
        elif not self._has_room(connection):
            return []
        else:
            _make_room(connection)
            added = insert(connection, ALARMS).values(asdict(found)).on_conflict_do_nothing().returning(_A.device)
            is_same = connection.execute(added).first() is None  # another replica has added it at this moment
        return [Change(found, has_changed=not is_same)]

    def ended(self, connection: sa.Connection, before_s: float = math.inf) -> list[Change]:
        """Stores that no alarm of the version is active.

        Args:
            connection: of the caller's transaction.
            before_s: time of service; alarms that were reported later last.
        """
        changes = []
        for before in self._locked(connection, _A.ended_s.is_(None), _A.service_s <= before_s):
            found = replace(before, last_s=self.now_s, ended_s=self.now_s, service_s=self.service_s)
            upsert(connection, ALARMS, asdict(found))
            changes.append(Change(found, has_changed=True))
        return changes

    def _locked(self, connection: sa.Connection, *which: sa.ColumnElement[bool]) -> list[DeviceAlarm]:
        mine = _A.device == self.device, _A.bundle == self.model.name, _A.version == self.model.version
        query = sa.select(*_COLUMNS).where(*mine, *which).order_by(_A.edge_digest).with_for_update()
        return [DeviceAlarm(*row) for row in connection.execute(query)]

    def _has_room(self, connection: sa.Connection) -> bool:
        query = sa.select(sa.func.count()).where(_A.device == self.device)
        return bool(connection.execute(query).scalar_one() < _ALARMS)


def take_request(
    connection: sa.Connection,
    device: str,
    model: ModelKey,
    alarm: ContractAlarm | None,
    *,
    now_s: float,
    service_s: float,
) -> list[Change]:
    """Stores the alarm that a request reports, or the end of the version's alarms.

    Args:
        connection: of the caller's transaction.
        device: that sent the request.
        model: of the request.
        alarm: of the request.
        now_s: wall time.
        service_s: time of service.

    Returns:
        The changes that it makes.
    """
    report = _Report(device, model, now_s, service_s)
    if alarm is None:
        return report.ended(connection)
    changes = report.raised(connection, alarm)
    _enter(connection, changes, {})
    return changes


def take_telemetry(
    connection: sa.Connection, device: str, counts: Iterable[ModelCounts], *, now_s: float, service_s: float
) -> list[Change]:
    """Stores the alarms that a device's telemetry reports, and the end of those that it no longer reports.

    Args:
        connection: of the caller's transaction.
        device: that reports them.
        counts: of the versions in its telemetry.
        now_s: wall time.
        service_s: time of service.

    Returns:
        The changes that it makes.
    """
    query = sa.select(_A.bundle, _A.version).where(_A.device == device, _A.ended_s.is_(None))
    lasting = {ModelKey(*row) for row in connection.execute(query)}
    changes: list[Change] = []
    details: dict[ModelKey, dict[str, int]] = {}
    for each in sorted(counts, key=lambda each: each.key):
        report = _Report(device, each.key, now_s, service_s)
        if each.device_alarm is not None:
            changes += report.raised(connection, each.device_alarm)
            details[each.key] = {"audits": each.audited, "disagreements": each.disagreed}
        elif each.key in lasting:  # the telemetry may be from before an alarm that was reported since
            changes += report.ended(connection, service_s - _SETTLED_S)
    _enter(connection, changes, details)
    return changes


def _enter(connection: sa.Connection, changes: Iterable[Change], details: Mapping[ModelKey, Mapping[str, int]]) -> None:
    """Adds the alarms that have begun to the audit log."""
    for alarm, has_changed in changes:
        # Whose alarm it is without authentication, is unknown.
        if not has_changed or alarm.ended_s is not None or alarm.device == UNAUTHENTICATED:
            continue
        subject = f"device:{alarm.device}"
        entry_filter = audit_log.EntryFilter(subject=subject, action=DEVICE_ALARM, since_s=alarm.last_s - DAY_S)
        if len(audit_log.page(connection, entry_filter, _ENTRIES_A_DAY)) < _ENTRIES_A_DAY:
            found = {"model": alarm.bundle, "version": alarm.version, "event": alarm.event}
            found |= details.get(alarm.model, {})
            audit_log.add(connection, alarm.last_s, "rule:contract", DEVICE_ALARM, subject, **found)


def listed(connection: sa.Connection, service_s: float) -> list[DeviceAlarm]:
    """Returns the alarms by rank.

    Alarms without a report for a day are left out, and those of revoked devices, which were taken away on purpose.
    """
    query = sa.select(*_COLUMNS).where(_A.service_s > service_s - DAY_S)
    found = sorted((DeviceAlarm(*row) for row in connection.execute(query)), key=lambda alarm: alarm.rank)
    revoked = revoked_devices(connection) if found else ()
    return [alarm for alarm in found if alarm.device not in revoked]


def _make_room(connection: sa.Connection) -> None:
    """Deletes the alarms whose report is the oldest, if there are too many."""
    count = connection.execute(sa.select(sa.func.count()).select_from(ALARMS)).scalar_one()
    if count < ALARMS_OF_ALL:
        return
    number = count - ALARMS_OF_ALL + max(1, round(_MADE_ROOM * ALARMS_OF_ALL))
    key = _A.device, _A.bundle, _A.version, _A.edge_digest
    # Alarms that another transaction is changing stay: to wait for them could be a deadlock.
    oldest = sa.select(*key).order_by(_A.service_s, *key).limit(number).with_for_update(skip_locked=True)
    deleted = connection.execute(sa.delete(ALARMS).where(sa.tuple_(*key).in_(oldest))).rowcount
    log.warning("too many device alarms: the oldest are deleted", deleted=deleted, limit=ALARMS_OF_ALL)


def forget(connection: sa.Connection, service_s: float) -> None:
    """Deletes alarms that no device has reported for long."""
    connection.execute(sa.delete(ALARMS).where(_A.service_s < service_s - _KEPT_S))


def delete_device(connection: sa.Connection, device: str) -> None:
    """Deletes the alarms of a device."""
    connection.execute(sa.delete(ALARMS).where(_A.device == device))


def _event(alarm: ContractAlarm) -> str:
    return alarm.event[:_EVENT_LIMIT].replace("\0", "")  # which PostgreSQL refuses in text


_COLUMNS = tuple(_A[name] for name in DeviceAlarm.__dataclass_fields__)
