"""Monitors the contracts of the served models: counts audits, raises alarms, and adds notices to answers.

Replicas that share a store share its pools. Each audit is counted in a transaction that locks its pool, so the audits
of all replicas form one sequence. Its order does not depend on the losses. The test is therefore valid: it raises a
false alarm with a probability of at most delta for any number of replicas. `refresh` reads the counts of the others.

The store's writer thread writes audits in the order of the answers: no answer waits for a disk.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import InitVar, dataclass
from functools import partial

from sqlalchemy import Connection

from firstline_core.bundle.manifest import Manifest
from firstline_core.clock import Clock
from firstline_core.errors import CapacityError
from firstline_core.fleet.rest import Evidence
from firstline_core.routing.certificate import ALL_ROWS
from firstline_core.tasks.base import Task
from firstline_core.tasks.field import field_events, field_losses
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import Arrays, ContractAlarm, ContractNotice, InferRequest, ModelKey
from firstline_core.units import HOUR_S
from firstline_gateway import audit_log
from firstline_gateway.contracts import records
from firstline_gateway.contracts.metrics import ContractMetrics
from firstline_gateway.contracts.pool import AuditPool, PoolKey, promises_in, promises_of
from firstline_gateway.contracts.records import Audit, Contribution, Counted, Skipped, count
from firstline_gateway.fleet import alarms
from firstline_gateway.fleet.alarms import DeviceAlarm
from firstline_gateway.identity.principals import UNAUTHENTICATED, device_of
from firstline_gateway.models.repository import Repository, ServedModel
from firstline_gateway.settings.settings import ContractsSection
from firstline_gateway.store.service_clock import ServiceClock
from firstline_gateway.store.store import Store, limited_wait

log = logger(__name__)

_WAITING = 1024
_REPEAT_S = 600.0  # until a device's alarm is stored again, so that it does not expire
_RETRY_S = 5.0  # between the writes about one device's alarm of one version, whatever its requests say
_OTHER_CERTIFICATE = "Its device has another certificate than the bundle here; bring both tiers to the same bundle."
_BEHIND = f"{_WAITING} audits wait for the store; give it a faster disk."

_Stored = tuple[list[AuditPool], dict[PoolKey, int], list[DeviceAlarm]]
_Alarms = dict[tuple[str, ModelKey], dict[str, DeviceAlarm]]
"""The alarms of each device about each version, by edge variant. They are replaced, never changed in place."""


class ActiveDevices:
    """The devices that sent a request within the last hour."""

    def __init__(self) -> None:
        self._latest_s: OrderedDict[str, float] = OrderedDict()  # the longest silent first

    def add(self, device: str, now_s: float) -> None:
        """Notes a request of a device; `now_s` is monotonic time, and never less than in an earlier call."""
        self._latest_s[device] = now_s
        self._latest_s.move_to_end(device)
        self._expire(now_s)

    def count(self, now_s: float) -> int:
        """Returns the number of these devices."""
        self._expire(now_s)
        return len(self._latest_s)

    def _expire(self, now_s: float) -> None:
        while self._latest_s and next(iter(self._latest_s.values())) <= now_s - HOUR_S:
            self._latest_s.popitem(last=False)


class DeviceActivity:
    """The active devices of each version, and the edge variants that devices audit. Used on one event loop."""

    def __init__(self) -> None:
        self._active: dict[ModelKey, ActiveDevices] = {}
        self._variants: dict[ModelKey, dict[str, str]] = {}  # the edge variant of each device that audits
        self._auditing: dict[ModelKey, dict[str, set[str]]] = {}  # the devices that ever audited, by edge variant

    def restore(self, contributed: Mapping[PoolKey, Sequence[Contribution]], *, service_s: float, now_s: float) -> None:
        """Adds the devices that audited before this process started, so that a quota is not divided among too few.

        Args:
            contributed: the devices that audited, by promise.
            service_s: the store's own time: a device that sent a request in its last hour counts, however long no
                gateway has run since.
            now_s: monotonic time.
        """
        latest: dict[ModelKey, dict[str, tuple[float, str]]] = {}
        for key, contributions in contributed.items():
            devices = latest.setdefault(key.model, {})
            for one in contributions:
                devices[one.device] = max(devices.get(one.device, (-math.inf, "")), (one.service_s, key.edge_digest))
                self.audited(key.model, one.device, key.edge_digest)
        for model, devices in latest.items():
            self._variants[model] = {device: digest for device, (_, digest) in devices.items()}
            active = self._active[model] = ActiveDevices()
            for device, (latest_s, _) in sorted(devices.items(), key=lambda item: item[1]):
                active.add(device, now_s - max(0.0, service_s - latest_s))
            active.count(now_s)

    def requested(self, model: ModelKey, device: str, now_s: float) -> None:
        """Notes that a device sent a request for a version; `now_s` is monotonic time."""
        self._active.setdefault(model, ActiveDevices()).add(device, now_s)

    def audited(self, model: ModelKey, device: str, edge_digest: str) -> None:
        """Notes that a device audited an edge variant; the audit need not count."""
        self._variants.setdefault(model, {})[device] = edge_digest
        self._auditing.setdefault(model, {}).setdefault(edge_digest, set()).add(device)

    def variant(self, model: ModelKey, device: str) -> str | None:
        """Returns the edge variant that a device audited last; None if it never did."""
        return self._variants.get(model, {}).get(device)

    def active_devices(self, models: Iterable[ModelKey], now_s: float) -> int:
        """Returns how many devices sent requests for these versions within the last hour, each once per version."""
        return sum(self._active[model].count(now_s) for model in models if model in self._active)

    def auditing(self, model: ModelKey, variant: str | None, contributors: Mapping[PoolKey, int]) -> int:
        """Returns how many devices share a promise; for an unknown edge variant, the most that share any.

        Args:
            model: the version.
            variant: the edge variant's digest.
            contributors: of each pool, over all replicas.
        """
        counts = {digest: len(devices) for digest, devices in self._auditing.get(model, {}).items()}
        for key, devices in contributors.items():
            if key.model == model:
                counts[key.edge_digest] = max(devices, counts.get(key.edge_digest, 0))
        return counts[variant] if variant is not None else max(counts.values(), default=1)


@dataclass(eq=False)
class ContractMonitor:
    """Counts audits and answers questions about contracts. Belongs to one event loop; keeps the order of calls.

    Args:
        store: reads and writes it; closed by the caller.
        repository: the served models.
        settings: which audits count, the alarm level, and the capacity for escalations.
        metrics: registry for the metrics of audits.
        clock: measures the last hour and gives wall time.
        service: clock for the limits on repeated, frequent and close audits.
    """

    store: Store
    repository: Repository
    settings: ContractsSection
    metrics: InitVar[RequestMetrics]
    clock: Clock
    service: ServiceClock

    def __post_init__(self, metrics: RequestMetrics) -> None:
        self.delta = self.settings.delta
        with self.store.database.reading() as connection:
            self._pools = {pool.key: pool for pool in records.pools(connection)}
            self._contributors = records.devices(connection)
            contributed = {key: records.contributions(connection, key) for key in self._pools}
            self._device_alarms = _by_device(alarms.listed(connection, self.service.now_s()))
        self._alarms: dict[ModelKey, dict[str, str]] = {}  # the broken event of each edge variant that alarms
        self._activity = DeviceActivity()
        # The writes about alarms that go on or began in the last _RETRY_S, with their service time, in order.
        self._tried: dict[tuple[str, ModelKey], tuple[float, Future[None]]] = {}
        self._logged: set[tuple[ModelKey, Skipped]] = set()  # errors that are logged already
        self._promising: dict[ModelKey, tuple[Manifest, bool]] = {}  # whether audits can test anything of a version
        self._note_alarms()
        self._activity.restore(contributed, service_s=self.service.now_s(), now_s=self.clock.monotonic_s())
        self._metrics = ContractMetrics(metrics, self.pools, self.device_alarms)
        self._closed = False
        self._room = threading.BoundedSemaphore(_WAITING)

    def adopt(self, settings: ContractsSection) -> None:
        """Uses other settings for audits and shares of escalations from now on; their `delta` is the same."""
        self.settings = settings

    def close(self) -> None:
        """Stops counting later answers; earlier audits are counted until the store is closed."""
        self._closed = True

    def refresh(self) -> Future[None]:
        """Reads the changes of other replicas; fails with CapacityError if the store refuses."""

        def read(connection: Connection) -> _Stored:
            device_alarms = alarms.listed(connection, self.service.now_s())
            return records.pools(connection), records.devices(connection), device_alarms

        return self.store.submit_then(read, self._take_up, writes=False)

    async def refreshed(self) -> None:
        """Returns once `refresh` is done.

        Raises:
            StoreUnavailableError: the store refuses, or does not answer.
        """
        async with limited_wait(self.store.database):
            await asyncio.wrap_future(self.refresh())

    def pools(self) -> list[AuditPool]:
        """Returns all pools, sorted by promise."""
        return sorted(self._pools.values(), key=lambda pool: pool.key)

    def devices(self, key: PoolKey) -> int:
        """Returns the number of devices with audits in a pool, as of the latest refresh."""
        return self._contributors.get(key, 0)

    async def details(
        self, keys: Iterable[PoolKey], limit: int
    ) -> dict[PoolKey, tuple[list[Contribution], list[Evidence]]]:
        """Returns the contributors to each pool, most disagreements first, and the pool over time.

        Raises:
            StoreUnavailableError: the store refuses, or does not answer.
        """
        return await self.store.read(
            lambda on: {key: (records.contributions(on, key, limit), records.evidence(on, key)) for key in keys}
        )

    def devices_last_hour(self, model: ModelKey) -> int:
        """Returns the number of devices that requested a version within the last hour."""
        return self._activity.active_devices([model], self.clock.monotonic_s())

    def device_alarms(self) -> list[DeviceAlarm]:
        """Returns the alarms of devices as of the latest refresh, by rank; see `alarms.listed`."""
        found = [alarm for by_variant in list(self._device_alarms.values()) for alarm in by_variant.values()]
        return sorted(found, key=lambda alarm: alarm.rank)

    def monitors(self, model: ModelKey) -> bool:
        """Returns whether this gateway serves a version, or counts its audits."""
        return model in self.repository.models or any(key.model == model for key in self._pools)

    def notice(self, request: InferRequest, served: ServedModel) -> ContractNotice | None:
        """Returns the notice for the device that sent this request; None if there is nothing to say."""
        device = device_of(request.principal)
        if device is None:
            return None
        model = served.key
        self._activity.requested(model, device, self.clock.monotonic_s())
        variant = self._activity.variant(model, device)
        broken = self._alarms.get(model, {})
        alarm = variant in broken if variant is not None else bool(broken)
        event = broken.get(variant, "") if variant is not None else ""
        quota = self.quota_per_device(model)
        # Also sent without a quota, so that a device learns that an alarm has ended.
        if not (alarm or quota is not None or self._promises(served)):
            return None
        return ContractNotice(alarm, quota, self._activity.auditing(model, variant, self._contributors), event)

    def quota_per_device(self, model: ModelKey) -> float | None:
        """Returns a device's share of the capacity for alarms, in escalations per hour; None without an alarm."""
        if model not in self._alarms:
            return None
        devices = self._activity.active_devices(self._alarms, self.clock.monotonic_s())
        return self.settings.escalations_per_hour / max(1, devices)

    def answered(self, request: InferRequest, served: ServedModel, outputs: Arrays) -> ContractNotice | None:
        """Notes the alarm of the device that sent an answered request, and counts the request if it is an audit.

        Args:
            request: the answered request.
            served: the model that answered.
            outputs: of the full model, one row.

        Returns:
            The notice for the device; see `notice`.
        """
        device = device_of(request.principal)
        if device is None:
            return None
        if not self._closed:
            self._note_answered(request, device, served, outputs)
        return self.notice(request, served)

    def _note_answered(self, request: InferRequest, device: str, served: ServedModel, outputs: Arrays) -> None:
        note, model = request.audit, served.key
        if request.alarm or device != UNAUTHENTICATED:  # an unauthenticated caller may not be the device that alarmed
            self._note_device_alarm(device, model, request.alarm)
        if note is None:
            return
        keys = promises_of(served.manifest, note)
        if not keys:
            self._skip(Skipped.NOT_PROMISED, model, device, _OTHER_CERTIFICATE)
            return
        self._activity.audited(model, device, note.edge_digest)  # even if this audit is not counted
        if problem := served.manifest.outputs_of(served.full).fault(outputs):
            self._skip(Skipped.NO_ANSWER, model, device, problem)
        elif not self._room.acquire(blocking=False):
            self._skip(Skipped.DISK, model, device, _BEHIND)
        else:
            losses = _losses(served.manifest.task, keys, request.edge_outputs, outputs)
            self._take(Audit(device, request.request_id, model, note, min(keys), losses, request.source))

    def end(self, model: ModelKey, by: str) -> Future[int]:
        """Deletes all pools of a version with their alarms, and enters that in the audit log.

        Later audits start a new test.

        Args:
            model: the version.
            by: the principal that ends the alarms.

        Returns:
            The number of deleted pools; fails with CapacityError if the store refuses, and deletes nothing.
        """
        now_s = self.clock.wall_s()

        def delete(connection: Connection) -> int:
            ended = records.delete_pools(connection, model)
            if ended:
                subject = f"bundle:{model.name}/{model.version}"
                audit_log.add(connection, now_s, by, "contract.end", subject, tests=ended)
            return ended

        return self.store.submit_then(delete, partial(self._forget, model))

    def _note_device_alarm(self, device: str, model: ModelKey, alarm: ContractAlarm | None) -> None:
        """Stores the beginning of a device's alarm, its end, and from time to time that it lasts.

        A failed write is not logged here: the store logs it once, and the device's next requests try again.
        """
        key, now_s = (device, model), self.service.now_s()
        known = self._device_alarms.get(key, {})
        if alarm is None:
            is_stored = all(each.ended_s is not None for each in known.values())
        else:
            found = known.get(alarm.edge_digest)
            is_stored = found is not None and found.repeats(alarm) and now_s - found.service_s < _REPEAT_S
        self._forget_tried(now_s)
        if is_stored or key in self._tried:
            return
        wall_s = self.clock.wall_s()

        def store(connection: Connection) -> list[alarms.Change]:
            return alarms.take_request(connection, device, model, alarm, now_s=wall_s, service_s=now_s)

        def note(changes: list[alarms.Change]) -> None:
            changed = {change.alarm.edge_digest: change.alarm for change in changes}
            if key in self._device_alarms or len(self._device_alarms) < alarms.ALARMS_OF_ALL:
                self._device_alarms[key] = self._device_alarms.get(key, {}) | changed
            for change in changes:
                change.log()

        with suppress(CapacityError):  # other writes wait already; the next request tries again
            self._tried[key] = now_s, self.store.submit_then(store, note)

    def _forget_tried(self, now_s: float) -> None:
        while self._tried:
            key, (at_s, writing) = next(iter(self._tried.items()))
            if now_s - at_s < _RETRY_S or not writing.done():
                return
            del self._tried[key]

    def _take(self, one: Audit) -> None:
        def ended(counting: Future[None]) -> None:
            self._room.release()
            error = counting.exception()
            if error is not None:
                self._skip(Skipped.DISK, one.model, one.device, str(error))

        try:
            counting = self.store.submit_then(
                lambda connection: count(
                    connection, one, self.settings, service_s=self.service.now_s(), now_s=self.clock.wall_s()
                ),
                partial(self._note, one),
                key=records.text_of(one.first),
            )
        except CapacityError as error:
            self._room.release()
            self._skip(Skipped.DISK, one.model, one.device, error.message)
        else:
            counting.add_done_callback(ended)

    # The methods from here to `_note_alarms` run on the writer thread.

    def _note(self, one: Audit, outcome: list[Counted] | Skipped) -> None:
        if isinstance(outcome, Skipped):
            self._skip(outcome, one.model, one.device, "")
            return
        self._logged.discard((one.model, Skipped.DISK))
        self._pools = self._pools | {each.pool.key: each.pool for each in outcome}
        self._metrics.counted(one.model, [each.lost for each in outcome])
        for each in outcome:
            if each.alarmed_devices is not None:
                self._note_alarms()
                event = each.pool.key.event
                found = records.alarm_figures(each.pool, each.alarmed_devices)
                log.error(f"contract broken: {event}" if event else "contract broken", **found)

    def _forget(self, model: ModelKey, ended: int) -> int:
        self._pools = {key: pool for key, pool in self._pools.items() if key.model != model}
        self._note_alarms()
        return ended

    def _take_up(self, stored: _Stored) -> None:
        pools, self._contributors, device_alarms = stored
        self._pools = {pool.key: pool for pool in pools}
        self._device_alarms = _by_device(device_alarms)
        self._note_alarms()

    def _note_alarms(self) -> None:
        alarms: dict[ModelKey, dict[str, str]] = {}
        alarmed = [(pool.alarmed_s, key) for key, pool in self._pools.items() if pool.alarmed_s is not None]
        for _, key in sorted(alarmed, reverse=True):  # the first event to alarm is the last to be entered
            alarms.setdefault(key.model, {})[key.edge_digest] = key.event
        self._alarms = alarms  # replaced in one step, because the event loop reads it

    def _skip(self, why: Skipped, model: ModelKey, device: str, sentence: str) -> None:
        self._metrics.skipped(why)
        # An operator has to repair these. They are logged once, because audits keep arriving until then.
        if why in (Skipped.DISK, Skipped.NOT_PROMISED) and (model, why) not in self._logged:
            self._logged.add((model, why))
            log.error("audit not counted", model=model.name, version=model.version, device=device, why=sentence)

    def _promises(self, served: ServedModel) -> bool:
        cached = self._promising.get(served.key)
        if cached is None or cached[0] is not served.manifest:
            cached = self._promising[served.key] = served.manifest, bool(promises_in(served.manifest))
        return cached[1]


def _by_device(listed: Iterable[DeviceAlarm]) -> _Alarms:
    found: _Alarms = {}
    for alarm in listed:
        found.setdefault((alarm.device, alarm.model), {})[alarm.edge_digest] = alarm
    return found


def _losses(task: Task, keys: Iterable[PoolKey], edge: Arrays, full: Arrays) -> dict[PoolKey, float]:
    """Returns the loss, in [0, 1], of each promise that an audit tests; of all rows it is the task's, as certified."""
    events = field_events(task, edge, full) | {ALL_ROWS: float(field_losses(task, edge, full)[0])}
    return {key: events[key.event] for key in keys if key.event in events}
