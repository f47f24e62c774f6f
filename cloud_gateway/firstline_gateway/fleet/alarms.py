"""The alarms that devices raised by their own audits, in the store, within a caller's transaction.

They are shown, and change nothing for other devices: a single bad lens, or a liar, must not alarm a fleet. A device
repeats its alarm with each request and with its telemetry. Its first report adds an entry to the audit log, which is
also the message of webhooks: replicas that share a store add one.

`since_s`, `last_s` and `ended_s` are wall time, to be shown. Alarms age by `service_s`, the store's own clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import sqlalchemy as sa

from firstline_core.fleet.telemetry import ModelCounts
from firstline_core.telemetry.logs import logger
from firstline_core.types import ContractAlarm, ModelKey
from firstline_gateway import audit_log
from firstline_gateway.identity.enrolment import revoked_devices
from firstline_gateway.identity.principals import UNAUTHENTICATED
from firstline_gateway.store.schema import METADATA, insert

DEVICE_ALARM = "contract.device_alarm"
"""Action of the audit log's entry about an alarm that a device raised."""

_DAY_S = 86_400.0
_KEPT_S = 30 * _DAY_S  # a device that was off for so long does not raise its alarm again
_SETTLED_S = 900.0  # telemetry from before an alarm may arrive so late, and an alarm that returns so soon is the same
_ENTRIES_A_DAY = 16  # of one device, which chooses what it reports
_ALARMS = 64  # of one device
_EVENT_LIMIT = 256  # characters

ALARMS = sa.Table(
    "device_alarms",
    METADATA,
    sa.Column("device", sa.Text, primary_key=True),
    sa.Column("bundle", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("edge_digest", sa.Text, nullable=False),
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
    """The alarm that one device reports for one version's promise.

    Attributes:
        device: that reports it.
        bundle: name of the model.
        version: of the model.
        edge_digest: of the edge variant whose promise is broken; "" if only telemetry reports it, which has none.
        event: whose promise is broken; "" for the promise about all rows, and if only telemetry reports it.
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
    def cause(self) -> tuple[str, str]:
        """The edge variant's digest and the event."""
        return self.edge_digest, self.event

    def repeats(self, alarm: ContractAlarm) -> bool:
        """Returns whether a request reports this alarm again."""
        return self.ended_s is None and self.cause == (alarm.edge_digest, _event(alarm))


class Change(NamedTuple):
    """What a report changed.

    Attributes:
        alarm: after the report; None if there is none.
        has_changed: whether it has begun or ended.
    """

    alarm: DeviceAlarm | None
    has_changed: bool

    def log(self) -> None:
        """Logs an alarm that has begun or ended."""
        alarm, has_changed = self
        if alarm is None or not has_changed:
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
class Report:
    """A device's report about one version, at a wall time and a time of service."""

    device: str
    model: ModelKey
    now_s: float
    service_s: float

    def raised(self, connection: sa.Connection, alarm: ContractAlarm | None, **details: object) -> Change:
        """Stores that the alarm is active; if it returns shortly after its end, it is the same alarm.

        Args:
            connection: of the caller's transaction.
            alarm: as a request reports it; None from telemetry.
            details: of the entry in the audit log.
        """
        before = self._locked(connection)
        edge_digest, event = before.cause if before is not None else ("", "")
        if alarm is not None:
            edge_digest, event = alarm.edge_digest, _event(alarm)
        is_same = before is not None and self._is_same(before, edge_digest)
        found = DeviceAlarm(
            self.device,
            *self.model,
            edge_digest,
            event,
            since_s=before.since_s if before is not None and is_same else self.now_s,
            last_s=self.now_s,
            ended_s=None,
            service_s=self.service_s,
        )
        if before is not None:
            connection.execute(sa.update(ALARMS).where(*self._key).values(asdict(found)))
        elif not self._has_room(connection):
            return Change(None, has_changed=False)
        else:
            added = insert(connection, ALARMS).values(asdict(found)).on_conflict_do_nothing().returning(_A.device)
            is_same = connection.execute(added).first() is None  # another replica has added it at this moment
        if not is_same:
            self._enter(connection, details)
        return Change(found, has_changed=not is_same)

    def ended(self, connection: sa.Connection) -> Change:
        """Stores that no alarm is active."""
        before = self._locked(connection)
        if before is None or before.ended_s is not None:
            return Change(before, has_changed=False)
        found = replace(before, last_s=self.now_s, ended_s=self.now_s, service_s=self.service_s)
        connection.execute(sa.update(ALARMS).where(*self._key).values(asdict(found)))
        return Change(found, has_changed=True)

    @property
    def _key(self) -> tuple[sa.ColumnElement[bool], ...]:
        return _A.device == self.device, _A.bundle == self.model.name, _A.version == self.model.version

    def _locked(self, connection: sa.Connection) -> DeviceAlarm | None:
        row = connection.execute(sa.select(*_COLUMNS).where(*self._key).with_for_update()).one_or_none()
        return None if row is None else DeviceAlarm(*row)

    def _is_same(self, before: DeviceAlarm, edge_digest: str) -> bool:
        lasts = before.ended_s is None or self.service_s - before.service_s < _SETTLED_S
        return lasts and before.edge_digest in ("", edge_digest)

    def _has_room(self, connection: sa.Connection) -> bool:
        query = sa.select(sa.func.count()).where(_A.device == self.device)
        return bool(connection.execute(query).scalar_one() < _ALARMS)

    def _enter(self, connection: sa.Connection, details: dict[str, object]) -> None:
        if self.device == UNAUTHENTICATED:  # whose alarm it is, is unknown
            return
        subject = f"device:{self.device}"
        wanted = audit_log.Wanted(subject=subject, action=DEVICE_ALARM, since_s=self.now_s - _DAY_S)
        if len(audit_log.page(connection, wanted, _ENTRIES_A_DAY)) < _ENTRIES_A_DAY:
            found = {"model": self.model.name, "version": self.model.version, **details}
            audit_log.add(connection, self.now_s, "rule:contract", DEVICE_ALARM, subject, **found)


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
        What that changed.
    """
    query = sa.select(*_COLUMNS).where(_A.device == device, _A.ended_s.is_(None))
    lasting = {alarm.model: alarm for alarm in (DeviceAlarm(*row) for row in connection.execute(query))}
    changes = []
    for each in counts:
        model = ModelKey(each.name, each.version)
        report = Report(device, model, now_s, service_s)
        if each.alarm:
            changes.append(report.raised(connection, None, audits=each.audited, disagreements=each.disagreed))
        elif model in lasting and service_s - lasting[model].service_s >= _SETTLED_S:
            changes.append(report.ended(connection))
    return changes


def listed(connection: sa.Connection, service_s: float) -> list[DeviceAlarm]:
    """Returns lasting alarms, then those that ended, the latest to begin first.

    Alarms without a report for a day are left out, and those of revoked devices, which were taken away on purpose.
    """
    query = (
        sa.select(*_COLUMNS)
        .where(_A.service_s > service_s - _DAY_S)
        .order_by(_A.ended_s.is_not(None), _A.since_s.desc(), _A.device)
    )
    found = [DeviceAlarm(*row) for row in connection.execute(query)]
    revoked = revoked_devices(connection) if found else ()
    return [alarm for alarm in found if alarm.device not in revoked]


def forget(connection: sa.Connection, service_s: float) -> None:
    """Deletes alarms that no device has reported for long."""
    connection.execute(sa.delete(ALARMS).where(_A.service_s < service_s - _KEPT_S))


def delete_device(connection: sa.Connection, device: str) -> None:
    """Deletes the alarms of a device."""
    connection.execute(sa.delete(ALARMS).where(_A.device == device))


def _event(alarm: ContractAlarm) -> str:
    return alarm.event[:_EVENT_LIMIT]


_COLUMNS = tuple(_A[name] for name in DeviceAlarm.__dataclass_fields__)
