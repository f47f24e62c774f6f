"""One audit, counted in its pool or not, within one transaction of the store's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection

from firstline_core.types import AuditNote, ModelKey
from firstline_gateway.contracts import store
from firstline_gateway.contracts.pool import Pool, PoolKey, counted, opened
from firstline_gateway.contracts.quota import HOUR_S
from firstline_gateway.settings.settings import Contracts


class Skipped(StrEnum):
    """Why an audit was not counted: none of it depends on the audit's loss."""

    REPEATED = "repeated"  # this request was counted before
    DEVICE_LIMIT = "device_limit"  # this device had its share of the hour
    SPACING = "spacing"  # another audit of the promise was counted a moment ago
    NOT_PROMISED = "not_promised"  # the bundle here makes no such promise
    DISK = "disk"  # the store refuses, and what is not kept is not counted
    NO_ANSWER = "no_answer"  # the full model gave what is no probability


@dataclass(frozen=True, slots=True)
class Audit:
    """An audit that is still to be counted, of an answered request."""

    device: str
    request_id: str
    model: ModelKey
    key: PoolKey
    note: AuditNote
    disagrees: bool


@dataclass(frozen=True, slots=True)
class Counted:
    """The pool after an audit; where that raised the alarm, how many devices' audits it has."""

    pool: Pool
    alarmed_devices: int | None


def count(
    connection: Connection, one: Audit, settings: Contracts, *, service_s: float, now_s: float
) -> Counted | Skipped:
    """Counts an audit.

    Args:
        connection: of the caller's transaction.
        one: the audit.
        settings: how many count.
        service_s: the store's own time, by which an audit is a repeat, one too many, or too soon after another.
        now_s: wall time, to be shown.
    """
    if store.counted(connection, one.device, one.request_id):
        return Skipped.REPEATED
    if store.counted_since(connection, one.device, service_s - HOUR_S) >= settings.audits_per_device_hour:
        return Skipped.DEVICE_LIMIT
    pool = store.locked(connection, one.key)
    if pool is None:
        pool = opened(one.key, now_s)
    elif service_s - pool.last_service_s < settings.audit_spacing_s:
        return Skipped.SPACING
    after = counted(pool, one.note, float(one.disagrees), now_s=now_s, service_s=service_s, delta=settings.delta)
    if not store.put(connection, after, one.device, one.request_id, disagrees=one.disagrees):
        return Skipped.REPEATED
    alarms = after.alarmed_s is not None and pool.alarmed_s is None
    return Counted(after, store.devices(connection)[one.key] if alarms else None)
