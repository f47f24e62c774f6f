"""The content of reports to the fleet: models and hardware for the twin, and counts of answers for telemetry."""

from __future__ import annotations

import platform
import shutil
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, ModelMismatchError, RequestError, UnknownModelError
from firstline_core.fleet.target import Hardware
from firstline_core.fleet.telemetry import (
    GROUP_CHARACTERS,
    GROUPS_LIMIT,
    LATENCY_BOUNDS_MS,
    DeviceHealth,
    EndedPromise,
    ModelCounts,
    Telemetry,
    latency_bin,
)
from firstline_core.fleet.twin import (
    LIMIT_BYTES,
    SENTENCE_CHARACTERS,
    Profiling,
    Reported,
    RunningModel,
    Update,
)
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import Snapshot, measured
from firstline_core.hardware.sensors import total_memory
from firstline_core.runtime.select import RUNTIMES
from firstline_core.tasks.base import Task
from firstline_core.tasks.field import field_occurrences
from firstline_core.types import Answer, InferRequest, InferResponse, ModelVersion, RowAnswer, Status, Tier
from firstline_core.units import MIB
from firstline_edge.audits.auditor import Auditor
from firstline_edge.audits.certificate_states import CertificateStates
from firstline_edge.cloud.chain import LinkChain
from firstline_edge.cloud.link import LinkStatus
from firstline_edge.fleet.fleet_state import FleetState
from firstline_edge.fleet.updates.trial import RowCounts
from firstline_edge.hardware.surveyor import Surveyor
from firstline_edge.identity.credentials import Credentials
from firstline_edge.models.models import DeviceModel, Models
from firstline_edge.outbox.outbox import Outbox
from firstline_edge.requests.context import Row
from firstline_edge.requests.recorder import EndedAudit, Recorder
from firstline_edge.telemetry.version import VERSION

_LIMIT = 64
# The rest of a report is for the condition of the device, and for promises that have ended.
_COUNTS_BYTES = LIMIT_BYTES - 24 * 1024
_LINK_FAULTS = (LinkStatus.DOWN, LinkStatus.PROBING, LinkStatus.REFUSED)


def running_models(models: Models) -> tuple[RunningModel, ...]:
    """Returns each bundle that answers, with the digests of the loaded files."""
    return tuple(_running(device_model) for device_model in models.all[:_LIMIT])


def _running(device_model: DeviceModel) -> RunningModel:
    edge = device_model.edge
    return RunningModel(
        device_model.manifest.name,
        device_model.manifest.version,
        variant=edge.loaded.model.id if edge is not None else "",
        edge_digest=edge.loaded.digest if edge is not None else "",
        full_digest=device_model.manifest.full_digest,
        certified=edge is not None and edge.certificate is not None,
    )


def within_limit(reported: Reported) -> Reported:
    """Returns a report of at most `LIMIT_BYTES`: if necessary, shortens the sentences about its updates."""
    characters = SENTENCE_CHARACTERS
    while characters and len(msgspec.json.encode(reported)) > LIMIT_BYTES:
        characters //= 2
        updates = tuple(replace(each, message=each.message[:characters]) for each in reported.updates)
        reported = replace(reported, updates=updates)
    return reported


def device_hardware(state_dir: Path, *, several: bool = False, tree: Tree | None = None) -> Hardware:
    """Returns the runtimes and the capacity of this device, which a bundle needs; blocks for milliseconds.

    Args:
        state_dir: on the disk that bundles are stored on.
        several: see `Hardware`.
        tree: the kernel's files; None for those of this machine.
    """
    runtimes = frozenset(name for name, kind in RUNTIMES.items() if any(map(find_spec, kind.modules)))
    try:
        free_bytes: int | None = shutil.disk_usage(state_dir).free
    except OSError:
        free_bytes = None
    memory_bytes = measured(total_memory(tree or Tree()))
    memory_mb = None if memory_bytes is None else int(memory_bytes) // MIB
    return Hardware(runtimes, platform.machine(), memory_mb, free_bytes, several)


def capabilities(hardware: Hardware) -> dict[str, Any]:
    """Returns the hardware for `Reported`, without what is unknown."""
    reported = {
        "runtimes": tuple(sorted(hardware.runtimes)),
        "architecture": hardware.architecture,
        "memory_mb": hardware.memory_mb,
        "free_gib": None if hardware.free_bytes is None else hardware.free_bytes >> 30,
    }
    return {name: value for name, value in reported.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """Describes the device to its fleet from the state of its parts.

    Args:
        state: configuration, limits and starts.
        hardware: of the device when the process started, for its capabilities.
        counts: answers by model.
        credentials: of a device that has joined; else None.
        readings: returns the latest snapshot of the sensors.
        clock: for the time since the start.
        started_s: the time of the start (monotonic).
    """

    state: FleetState
    hardware: Hardware
    models: Models
    auditor: Auditor
    surveyor: Surveyor
    counts: FleetCounts
    recorder: Recorder
    outbox: Outbox
    chain: LinkChain
    credentials: Credentials | None
    readings: Callable[[], Snapshot]
    clock: Clock
    started_s: float

    def reported(self, updates: tuple[Update, ...], profiles: tuple[Profiling, ...]) -> Reported:
        """Returns the device's actual state; `FleetMember` fills in session, sequence and revision."""
        running = self.state.configuration.state.running
        return Reported(
            "-",
            0,
            models=running_models(self.models),
            updates=updates,
            configuration=running.version if running is not None else 0,
            configuration_name=running.name if running is not None else "",
            configuration_sha256=running.sha256 if running is not None else "",
            braked=self.state.limiter.active_brake is not None,
            audits_off=self.auditor.rate.switched_off_by,
            agent_version=VERSION,
            capabilities=capabilities(self.hardware),
            hardware=self.surveyor.catalogue,
            profiles=profiles,
        )

    def telemetry(self) -> Telemetry:
        """Returns counts and condition; `FleetMember` fills in session and sequence."""
        self.recorder.flush()
        starts = self.state.starts
        return Telemetry(
            "-",
            0,
            uptime_s=self.clock.monotonic_s() - self.started_s,
            models=self.counts.counts(),
            starts=starts.starts,
            unclean=starts.unclean,
            outbox_items=self.outbox.depth,
            payload_bytes=self.chain.payload_bytes,
            health=health_of(self.outbox, self.chain, self.credentials, self.readings(), self.state.folder.parent),
        )


def health_of(
    outbox: Outbox, chain: LinkChain, credentials: Credentials | None, snapshot: Snapshot, folder: Path
) -> DeviceHealth:
    """Returns the device's condition; blocks for microseconds.

    Args:
        outbox: the age of its oldest promise is reported.
        chain: its broken links are counted.
        credentials: of a device that has joined; else None.
        snapshot: the latest one of the sensors.
        folder: the state directory, whose disk is reported.
    """
    try:
        disk = shutil.disk_usage(folder)
        free_share = disk.free / disk.total if disk.total else None
    except OSError:
        free_share = None
    return DeviceHealth(
        outbox_oldest_s=outbox.oldest_s,
        links_down=sum(report.state in _LINK_FAULTS for report in chain.reports().values()),
        disk_free_share=free_share,
        hottest_c=measured(snapshot.hottest_c),
        throttled=bool(measured(snapshot.throttled)),
        certificate_ends_s=credentials.identity.not_after_s if credentials is not None else None,
    )


def ended_promises(answers: Sequence[InferResponse]) -> tuple[EndedPromise, ...]:
    """Describes the promises that these answers ended, without their content."""
    return tuple(
        EndedPromise(
            response.answer.request_id,
            response.model,
            response.version,
            expired=response.answer.status is Status.EXPIRED,
            changed=response.answer.changed,
        )
        for response in answers
        if response.answer is not None
    )


class _Sums(msgspec.Struct, eq=False):
    """The counts of one version of a model, with the names of `ModelCounts`."""

    rows: int = 0
    kept: int = 0
    escalated: int = 0
    errors: int = 0
    latency: list[int] = []
    latency_sum_ms: float = 0.0
    scores: list[int] = []
    audited: int = 0
    audited_empty: int = 0
    disagreed: int = 0
    losses: float = 0.0
    objects: Counter[str] = msgspec.field(default_factory=Counter)
    event_audits: Counter[str] = msgspec.field(default_factory=Counter)
    event_losses: Counter[str] = msgspec.field(default_factory=Counter)
    saved_bytes: int = 0
    saved_mj: float = 0.0


@dataclass(eq=False)
class FleetCounts:
    """Counts the answers of each model since the process started; an `AnswerObserver`, without local_only requests.

    Args:
        models: of the agent.
        certificates: their states in the field.
        escalation_mj: returns the stated energy of sending a row, by its bytes.
    """

    models: Models
    certificates: CertificateStates
    escalation_mj: Callable[[float], float]
    _sums: dict[ModelVersion, _Sums] = field(default_factory=dict, init=False)

    def answered(self, request: InferRequest, response: InferResponse, seconds: float, rows: Sequence[Row]) -> None:
        """See `AnswerObserver`."""
        device_model = self.models.find(response.model, response.version)
        answer = response.answer
        if device_model is None or answer is None:
            return
        sums = self._sums_of(device_model.key)
        _add_latency(sums, seconds)
        edges = _score_edges(device_model)
        answers = answer.rows or (answer,)
        row_bytes = request.size_bytes // len(answers)
        for row in answers:
            sums.rows += 1
            if _is_accepted(row, device_model.manifest.full_digest):
                sums.kept += 1
                sums.saved_bytes += row_bytes
                sums.saved_mj += self.escalation_mj(row_bytes)
            else:
                sums.escalated += 1
            if edges is not None and row.confidence is not None and len(sums.scores) == len(edges) + 1:
                sums.scores[bisect_right(edges, row.confidence)] += 1
        _add_objects(sums, device_model.manifest.task, rows)

    def refused(self, request: InferRequest, version: str, error: FirstlineError, seconds: float) -> None:
        """See `AnswerObserver`; an error that the caller made says nothing about a model and is not counted."""
        if _is_client_error(error):
            return
        sums = self._sums_of((request.model, version))
        _add_latency(sums, seconds)
        rows = next((tensor.array.shape[0] for tensor in request.inputs if tensor.array.shape), 1)
        sums.rows += rows
        sums.errors += rows

    def audited(self, ended: EndedAudit) -> None:
        """See `AnswerObserver`."""
        if ended.outcome != "lost":
            sums = self._sums_of((ended.model, ended.version))
            sums.audited += 1
            sums.disagreed += ended.outcome == "disagreed"
            sums.losses += ended.loss
            device_model = self.models.find(ended.model, ended.version)
            task = device_model.manifest.task if device_model is not None else None
            if task is not None and task.events and not ended.events:
                sums.audited_empty += 1
            if task is None or len(task.event_classes) <= GROUPS_LIMIT:
                sums.event_audits.update(ended.events.keys())
                sums.event_losses.update(name for name, loss in ended.events.items() if loss > 0)

    def answered_of(self, *device_models: DeviceModel) -> RowCounts:
        """Counts the rows of these versions."""
        sums = [self._sums_of(model.key) for model in device_models]
        return RowCounts(sum(one.rows for one in sums), sum(one.errors for one in sums))

    def counts(self) -> tuple[ModelCounts, ...]:
        """Returns the counts of the versions that received requests, within the size of a report.

        Loaded versions come first, then the latest. Others without room are forgotten: one that answers again counts
        from zero, as the gateway expects of a version that the latest report did not have.
        """
        loaded = {model.key: model for model in self.models.all}
        latest_first = list(reversed(self._sums))
        found: list[ModelCounts] = []
        size_bytes = 0
        for key in sorted(latest_first, key=lambda key: key not in loaded):
            counts = self._counts_of(key, self._sums[key], loaded.get(key))
            size_bytes += len(msgspec.json.encode(counts))
            if len(found) < _LIMIT and size_bytes <= _COUNTS_BYTES:
                found.append(counts)
            elif key not in loaded:
                del self._sums[key]
        return tuple(found)

    def _counts_of(self, key: ModelVersion, sums: _Sums, device_model: DeviceModel | None) -> ModelCounts:
        found = {**msgspec.structs.asdict(sums), "name": key[0], "version": int(key[1])}
        for name in ("objects", "event_audits", "event_losses"):  # labels of a bundle may be of any length
            groups = islice(found[name].items(), 2 * GROUPS_LIMIT)
            found[name] = {group[:GROUP_CHARACTERS]: count for group, count in groups}
        if device_model is not None:
            found["alarm"] = self.certificates.of(device_model).is_void
            found["device_alarm"] = self.certificates.alarm_of(device_model)
        return msgspec.convert(found, ModelCounts)

    def _sums_of(self, key: ModelVersion) -> _Sums:
        sums = self._sums.get(key)
        if sums is None:
            device_model = self.models.find(*key)
            edges = _score_edges(device_model) if device_model is not None else None
            sums = self._sums[key] = _Sums(
                latency=[0] * (len(LATENCY_BOUNDS_MS) + 1),
                scores=[0] * (len(edges) + 1) if edges is not None and len(edges) < _LIMIT else [],
            )
        return sums


def _add_objects(sums: _Sums, task: Task, rows: Sequence[Row]) -> None:
    """Counts what the edge model reported, also in rows that the full model answers."""
    if len(task.event_classes) > GROUPS_LIMIT:
        return
    for row in rows:
        if row.edge is not None:
            sums.objects.update(field_occurrences(task, row.edge.outputs))


def _add_latency(sums: _Sums, seconds: float) -> None:
    ms = max(0.0, seconds * 1000)
    sums.latency[latency_bin(ms)] += 1
    sums.latency_sum_ms += ms


def _is_client_error(error: FirstlineError) -> bool:
    """Returns whether the caller made the error; a mismatch of models may be the tiers' fault."""
    return isinstance(error, RequestError) and not isinstance(error, ModelMismatchError | UnknownModelError)


def _score_edges(device_model: DeviceModel) -> tuple[float, ...] | None:
    """Returns the upper ends of the bins for scores; None without a histogram, or if several variants answer."""
    if device_model.variants is not None:
        return None
    certificate = device_model.edge.certificate if device_model.edge is not None else None
    histogram = certificate.histogram if certificate is not None else None
    return tuple(histogram.edges) if histogram is not None else None


def _is_accepted(row: RowAnswer | Answer, full_digest: str) -> bool:
    """Returns whether an edge answer is final; the device's cache has answers of the full model too."""
    if row.status is not Status.FINAL or row.tier is Tier.CLOUD:
        return False
    return row.tier is Tier.EDGE or row.model_digest != full_digest
