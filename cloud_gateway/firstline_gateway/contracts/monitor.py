"""The contracts of what this gateway serves: counts devices' audits, alarms, and says so with every answer.

Each replica keeps pools of its own. Each is a valid test of the audits that it was given, since which replica answers
does not depend on an audit's loss; together they alarm falsely with at most delta times the number of replicas.

What is kept is written by one thread, in the order of the answers: no answer waits for a disk.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from firstline_core.clock import Clock
from firstline_core.errors import CapacityError
from firstline_core.routing import audit
from firstline_core.telemetry.logs import logger
from firstline_core.types import Array, AuditNote, ContractNotice, InferRequest
from firstline_gateway.contracts.device_alarms import DeviceAlarm, DeviceAlarms
from firstline_gateway.contracts.pool import Pool, PoolKey, counted, opened, promise_of, promises
from firstline_gateway.contracts.quota import HOUR_S, Seen, share_per_hour
from firstline_gateway.contracts.store import Contribution, Store
from firstline_gateway.executors.base import ModelKey
from firstline_gateway.metrics import GatewayMetrics
from firstline_gateway.repository import Repository, ServedModel
from firstline_gateway.settings import Contracts

log = logger(__name__)

_DEVICE = "device:"
_WAITING = 1024
_OTHER_CERTIFICATE = "Its device has another certificate than the bundle here; bring both tiers to the same bundle."
_BEHIND = f"{_WAITING} audits wait for the disk that contracts.state_file is on; give it a faster one."
_NO_PROBABILITY = "The full model gave what is no probability."
ANYBODY = "anybody"
"""Whom all callers are where authentication is off."""


class Skipped(StrEnum):
    """Why an audit was not counted: none of it depends on the audit's loss."""

    REPEATED = "repeated"  # this request was counted before
    DEVICE_LIMIT = "device_limit"  # this device had its share of the hour
    SPACING = "spacing"  # another audit of the promise was counted a moment ago
    NOT_PROMISED = "not_promised"  # the bundle here makes no such promise
    DISK = "disk"  # what is not kept is not counted
    NO_ANSWER = "no_answer"  # the full model gave what is no probability


@dataclass(frozen=True, slots=True)
class _Audit:
    """What remains to be counted of a request that was answered."""

    device: str
    request_id: str
    model: ModelKey
    key: PoolKey
    note: AuditNote
    disagrees: bool


class ContractMonitor:
    """Asked on one event loop. What its futures promise is done in the order of the calls.

    Args:
        store: closed here.
        repository: what is served.
        settings: what counts, what alarms, and what an alarm may cost.
        metrics: gains the audits.
        clock: for ages and dates.
    """

    def __init__(
        self, store: Store, repository: Repository, settings: Contracts, *, metrics: GatewayMetrics, clock: Clock
    ) -> None:
        self._store = store
        self._repository = repository
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._pools = {pool.key: pool for pool in store.pools()}
        self._quotas = store.quotas()
        self._alarms: dict[ModelKey, set[str]] = {}  # the edge variants of each version that alarms
        self._seen: dict[ModelKey, Seen] = {}
        self._told: set[tuple[ModelKey, Skipped]] = set()  # what the log says already
        self._variants: dict[ModelKey, dict[str, str]] = {}  # the edge variant of each device that audits
        self._auditing: dict[ModelKey, dict[str, set[str]]] = {}  # the devices that ever did, by edge variant
        self._device_alarms = DeviceAlarms()
        self._promising: dict[ModelKey, bool] = {}  # whether audits can test anything of a version
        self._note_alarms()
        self._remember()
        metrics.contracts(self.pools, self.device_alarms)
        self._closed = False
        self._room = threading.BoundedSemaphore(_WAITING)
        self._counting = ThreadPoolExecutor(1, thread_name_prefix="contracts")

    def close(self) -> None:
        """Counts what was answered before; what is answered later counts nowhere."""
        self._closed = True
        self._counting.shutdown()
        self._store.close()

    def settled(self) -> Future[None]:
        """Done once what was answered before is counted."""
        return self._counting.submit(lambda: None)

    def pools(self) -> list[Pool]:
        """All of them, by promise."""
        return sorted(self._pools.values(), key=lambda pool: pool.key)

    def devices(self, key: PoolKey) -> int:
        """How many devices' audits a pool has."""
        return self._store.devices(key)

    def contributions(self, key: PoolKey, limit: int) -> list[Contribution]:
        """Who contributed to a pool, those with most disagreements first."""
        return self._store.contributions(key, limit)

    def devices_last_hour(self, model: ModelKey) -> int:
        """How many devices asked for a version within the last hour."""
        return self._devices_of_the_hour([model], self._clock.monotonic_s())

    def device_alarms(self) -> list[DeviceAlarm]:
        """What devices' own audits broke, as they told within the last day, those under way first."""
        return self._device_alarms.listed(self._clock.wall_s())

    def quotas(self) -> dict[ModelKey, float]:
        """What operators set, in escalations per hour of all devices together."""
        return dict(self._quotas)

    def notice(self, request: InferRequest, served: ServedModel) -> ContractNotice | None:
        """What the answer to this request tells its device; None where there is nothing to tell, or no device."""
        device = _device(request)
        if device is None:
            return None
        model = served.key
        now_s = self._clock.monotonic_s()
        self._seen.setdefault(model, Seen()).see(device, now_s)
        variant = self._variants.get(model, {}).get(device)
        broken = self._alarms.get(model, ())
        alarm = variant in broken if variant is not None else bool(broken)
        quota = self.quota_per_device(model)
        # Said where there is no quota too: a device that has one learns that it was taken back.
        told = alarm or quota is not None or self._promises(served)
        return ContractNotice(alarm, quota, self._devices_auditing(model, variant)) if told else None

    def quota_per_device(self, model: ModelKey) -> float | None:
        """What each device may escalate in an hour: of the operator's quota, or of what the gateway has for alarms."""
        now_s = self._clock.monotonic_s()
        own = self._quotas.get(model)
        if own is not None:
            return share_per_hour(own, self._devices_of_the_hour([model], now_s))
        if model not in self._alarms:
            return None
        sharing = self._alarms.keys() - self._quotas.keys()
        return share_per_hour(self._settings.escalations_per_hour, self._devices_of_the_hour(sharing, now_s))

    def answered(self, request: InferRequest, served: ServedModel, probabilities: Array) -> None:
        """Takes up what an answered request says of its device's alarm, and has it counted where it is an audit.

        Args:
            request: as it was answered.
            served: what answered.
            probabilities: (1, classes) of the full model.
        """
        note, device, model = request.audit, _device(request), served.key
        if device is None:
            return
        if request.alarm or device != ANYBODY:  # of whom nobody knows whether it is the one that alarmed
            self._device_alarms.hear(model, device, request.alarm, self._clock.wall_s())
        if note is None or self._closed:
            return
        key = promise_of(served.manifest, note)
        if key is not None:  # counted or not, it audits
            self._note_auditing(model, device, key.edge_digest)
        if key is None:
            self._skip(Skipped.NOT_PROMISED, model, device, _OTHER_CERTIFICATE)
        elif not np.isfinite(probabilities).all():
            self._skip(Skipped.NO_ANSWER, model, device, _NO_PROBABILITY)
        elif not self._room.acquire(blocking=False):
            self._skip(Skipped.DISK, model, device, _BEHIND)
        else:
            disagrees = int(np.argmax(probabilities[0])) != note.predicted
            self._counting.submit(self._take, _Audit(device, request.request_id, model, key, note, disagrees))

    def end(self, model: ModelKey) -> Future[int]:
        """Gives up all pools of a version, alarms and all; what is audited from now on begins anew.

        Returns:
            How many there were; or CapacityError: the disk refuses, and nothing was given up.
        """
        return self._counting.submit(self._end, model)

    def set_quota(self, model: ModelKey, per_hour: float | None) -> Future[None]:
        """Bounds what all devices together escalate of a version; None takes the bound back.

        Returns:
            Nothing; or CapacityError: the disk refuses, and nothing was changed.
        """
        return self._counting.submit(self._set_quota, model, per_hour)

    # From here to `_note_alarms`: on the thread that counts.

    def _end(self, model: ModelKey) -> int:
        ended = [key for key in self._pools if _model(key) == model]
        if ended:
            self._store.give_up(ended)
            for key in ended:
                del self._pools[key]
            self._note_alarms()
        return len(ended)

    def _set_quota(self, model: ModelKey, per_hour: float | None) -> None:
        self._store.set_quota(model, per_hour)
        others = {key: quota for key, quota in self._quotas.items() if key != model}
        self._quotas = others if per_hour is None else others | {model: per_hour}

    def _take(self, one: _Audit) -> None:
        try:
            why, sentence = self._count(one), ""
        except CapacityError as error:
            why, sentence = Skipped.DISK, error.message
        except Exception:  # the outermost loop of a thread that must never end
            log.exception("an audit broke", device=one.device, request_id=one.request_id)
            return
        finally:
            self._room.release()
        if why is None:
            self._told.discard((one.model, Skipped.DISK))
        else:
            self._skip(why, one.model, one.device, sentence)

    def _count(self, one: _Audit) -> Skipped | None:
        now_s = self._clock.wall_s()
        if self._store.counted(one.device, one.request_id):
            return Skipped.REPEATED
        # Up to now: a clock that was ahead and set back must not use up a device's share for as long.
        if self._store.counted_between(one.device, now_s - HOUR_S, now_s) >= self._settings.audits_per_device_hour:
            return Skipped.DEVICE_LIMIT
        pool = self._pools.get(one.key)
        if pool is None:
            pool = opened(one.key, now_s)
        elif 0 <= now_s - pool.last_s < self._settings.audit_spacing_s:
            return Skipped.SPACING
        after = counted(pool, one.note, float(one.disagrees), now_s=now_s, delta=self._settings.delta)
        self._store.put(after, one.device, one.request_id, disagrees=one.disagrees)
        self._pools[one.key] = after
        self._metrics.audit(one.model, disagrees=one.disagrees)
        if after.alarmed_s is not None and pool.alarmed_s is None:
            self._note_alarms()
            _tell(after, self._store.devices(one.key))
        return None

    def _note_alarms(self) -> None:
        alarms: dict[ModelKey, set[str]] = {}
        for key, pool in self._pools.items():
            if pool.alarmed_s is not None:
                alarms.setdefault(_model(key), set()).add(key.edge_digest)
        self._alarms = alarms  # at once: the event loop reads it

    def _skip(self, why: Skipped, model: ModelKey, device: str, sentence: str) -> None:
        self._metrics.audit_skipped(why)
        # Somebody has to mend these. Once, for audits come for as long as nobody does.
        if why in (Skipped.DISK, Skipped.NOT_PROMISED) and (model, why) not in self._told:
            self._told.add((model, why))
            log.error("audit not counted", model=model.name, version=model.version, device=device, why=sentence)

    def _promises(self, served: ServedModel) -> bool:
        if served.key not in self._promising:
            self._promising[served.key] = promises(served.manifest)
        return self._promising[served.key]

    def _devices_auditing(self, model: ModelKey, variant: str | None) -> int:
        """How many share a device's promise; where its edge variant is not known, the most that share any."""
        by_variant = self._auditing.get(model, {})
        found = by_variant.values() if variant is None else (by_variant[variant],)
        return max(map(len, found), default=1)

    def _note_auditing(self, model: ModelKey, device: str, edge_digest: str) -> None:
        self._variants.setdefault(model, {})[device] = edge_digest
        self._auditing.setdefault(model, {}).setdefault(edge_digest, set()).add(device)

    def _devices_of_the_hour(self, models: Iterable[ModelKey], now_s: float) -> int:
        return sum(self._seen[model].count(now_s) for model in models if model in self._seen)

    def _remember(self) -> None:
        """Takes up who audited before this process began, so that a quota is not divided among too few."""
        wall_s, now_s = self._clock.wall_s(), self._clock.monotonic_s()
        latest: dict[ModelKey, dict[str, tuple[float, str]]] = {}
        for key in self._pools:
            devices = latest.setdefault(_model(key), {})
            for one in self._store.contributions(key):
                devices[one.device] = max(devices.get(one.device, (0.0, "")), (one.last_s, key.edge_digest))
                self._note_auditing(_model(key), one.device, key.edge_digest)
        for model, devices in latest.items():
            self._variants[model] = {device: digest for device, (_, digest) in devices.items()}
            seen = self._seen[model] = Seen()
            for device, (last_s, _) in sorted(devices.items(), key=lambda item: item[1]):
                seen.see(device, now_s - max(0.0, wall_s - last_s))
            seen.count(now_s)


def _device(request: InferRequest) -> str | None:
    """The device that asks; None for applications and operators, whose notes count nowhere."""
    if not request.principal:
        return ANYBODY
    return request.principal.removeprefix(_DEVICE) if request.principal.startswith(_DEVICE) else None


def _model(key: PoolKey) -> ModelKey:
    return ModelKey(key.bundle, key.version)


def _tell(pool: Pool, devices: int) -> None:
    log.error(
        "contract broken",
        model=pool.key.bundle,
        version=pool.key.version,
        edge_digest=pool.key.edge_digest,
        threshold=pool.key.threshold,
        epsilon=pool.key.epsilon,
        audits=pool.state.audits,
        disagreements=pool.disagreements,
        risk=round(pool.risk or 0.0, 4),
        e_value=round(audit.e_value(pool.state), 1),
        devices=devices,
    )
