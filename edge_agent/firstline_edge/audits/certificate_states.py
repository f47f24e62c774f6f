"""The state of each certificate of this device in the field, and the moves between the states.

    state              begins with                                         edge answers are accepted from
    valid              a certificate without a record (`watch`)            the certificate's threshold, certified
    unknown            the loss of the records (`_doubt_all`, `watch`)     the certificate's threshold
    broken_on_device   audits of this device (`_test`)                     a raised threshold, or none is accepted
    broken_in_fleet    a notice of the gateway (`apply_notice`)            a raised threshold, or none is accepted

A certificate that is valid or unknown becomes broken by `_alarm`. A broken one stays so, over restarts too; each
further alarm of this device's tests raises the threshold again. Only another certificate is valid, with a new record.

`records.py` stores the state with its evidence, and `certificate_reports.py` shows it. Each answer looks up one
`CertificateState`; everything else here happens once per audit.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.clock import Clock
from firstline_core.routing import audit, drift, sampling
from firstline_core.routing.certificate import ALL_ROWS, Certificate
from firstline_core.routing.tightening import EVERYTHING, tightened
from firstline_core.runtime.threads import REFUSED
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import counted
from firstline_core.types import ContractAlarm, ContractNotice
from firstline_edge.audits import records
from firstline_edge.audits.records import VALID, CertificateRecord, CertificateState, RecordFile, new_record, record_key
from firstline_edge.audits.samples import Comparison, Sample, SampleLog
from firstline_edge.models.models import DeviceModel
from firstline_edge.settings.settings import AuditSection

log = logger(__name__)

_REMEMBERED_SCORES = 2_000.0
_MAX_WEIGHT = 1e12  # of a new score, before all are scaled down
_RETRY_S = 30.0  # after a disk error: findings that are not written would be lost at the next restart
_LOST_RECORD = "what the audits had found so far could not be read"
_FLEET = "the audits of all devices together show that the promise is broken"


class ScoreHistogram:
    """A histogram of the recent scores, with exponentially decaying weights.

    Args:
        inner_edges: (bins - 1,) rising; a value on an edge falls into the bin above it.
        memory: approximate number of values that count.
        counts: (bins,) initial counts, such as those persisted over a restart; None for zeros.
    """

    def __init__(self, inner_edges: Sequence[float], memory: float, counts: Sequence[float] | None = None) -> None:
        self._edges = tuple(inner_edges)
        bins = len(self._edges) + 1
        self._counts = list(counts) if counts is not None and len(counts) == bins else [0.0] * bins
        self._growth = 1 + 1 / memory
        self._weight = 1.0  # increases with each value, instead of decreasing all counts

    def add(self, value: float) -> None:
        """Adds a value; NaN counts as lowest, as in `drift.bins_of`."""
        self._counts[bisect_right(self._edges, value) if value == value else 0] += self._weight  # noqa: PLR0124 (NaN)
        self._weight *= self._growth
        if self._weight > _MAX_WEIGHT:
            self._counts, self._weight = self.counts, 1.0

    @property
    def counts(self) -> list[float]:
        """Returns the counts (bins,), scaled to a weight of 1 for the next value."""
        return [count / self._weight for count in self._counts]


def raised_threshold(state: CertificateState) -> float | None:
    """Returns the threshold of an alarm, infinite if no edge answer is accepted; None for the certificate's."""
    return EVERYTHING if state.escalates_all else state.tightened


@dataclass(slots=True, eq=False)
class MonitoredCertificate:
    """A certificate in the field.

    Args:
        key: of its record.
        bounds: the share that the audits test, by event; see `Certificate.audit_bounds`.
        record: the findings, stored across restarts.
        scores: the recent ones; None if the certificate has no histogram to compare them with.
        quota: escalations that the alarm may cause, as of `quota_at_s` (monotonic).
    """

    model: DeviceModel
    certificate: Certificate
    key: str
    bounds: dict[str, float]
    record: CertificateRecord
    scores: ScoreHistogram | None
    quota_at_s: float
    quota: float = 0.0

    @property
    def threshold(self) -> float:
        """The score from which answers are accepted: the certificate's, or that of an alarm."""
        raised = raised_threshold(self.record.state)
        return self.certificate.threshold if raised is None else raised

    def is_auditable(self, score: float, group: str | None) -> bool:
        """Returns whether audits test an answer: one above the threshold of the certificate or of an alarm.

        Its score alone decides, not which tier answered. A device that asks the full model more often than the
        certificate demands accepts a part that may be riskier than the whole, and the certificate covers the whole.

        Args:
            score: the edge model's; NaN if it has none.
            group: of the answer, see `DeviceModel.group`.
        """
        if score < self.threshold or score != score:  # noqa: PLR0124 (NaN)
            return False
        return not self.certificate.by or score >= self.certificate.threshold_for(group or "")

    def sample(self, wall_s: float, score: float, compared: Comparison, propensity: float, *, kept: bool) -> Sample:
        """Returns an answer that both models gave; see `Sample`."""
        events = {name: loss for name, loss in compared.events.items() if name in self.bounds}
        model, version, agree = self.record.model, self.record.version, 1 - compared.loss
        return Sample(self.key, model, version, wall_s, score, agree, propensity, kept, events)

    def stability_index(self) -> float | None:
        """Returns how far the scores have moved from the certificate's; None with too few scores."""
        histogram = self.certificate.histogram
        if histogram is None or self.scores is None:
            return None
        counts, n = self.scores.counts, self.certificate.n
        index = drift.population_stability_index([share * n for share in histogram.shares], counts)
        return drift.beyond_chance(index, len(counts), n, sum(counts))


class CertificateStates:
    """All certificates of this device that audits can test.

    Args:
        path: the file of records.
        models: the loaded models.
        samples: answers that both models have given.
        settings: limits and the effect of an alarm.

    A file that cannot be read is set aside. It may have held an alarm, so the current certificates are not relied on
    any more; they keep their thresholds, and their tests restart. The same holds for a bundle that was on this device
    before and is loaded later, also after a restart.
    """

    def __init__(
        self, path: Path, models: Iterable[DeviceModel], samples: SampleLog, settings: AuditSection, clock: Clock
    ) -> None:
        self._file = RecordFile(path)
        self._samples = samples
        self._settings = settings
        self._clock = clock
        self._changed = asyncio.Event()
        self._writing: asyncio.Future[None] | None = None
        self._records = self._file.read()
        self._monitored: dict[DeviceModel, MonitoredCertificate] = {}
        for model in models:
            for variant in model.loaded_variants:
                self.watch(variant)
        if self._file.loss:
            self._doubt_all()

    def __iter__(self) -> Iterator[MonitoredCertificate]:
        return iter(self._monitored.values())

    @property
    def problem(self) -> str:
        """The problem with the file, in one or two sentences; "" if there is none."""
        return self._file.problem

    def adopt(self, settings: AuditSection) -> None:
        """Replaces the settings: the effect of the next alarm, and at once the quota of the current one."""
        self._settings = settings

    def find(self, model: DeviceModel) -> MonitoredCertificate | None:
        """Returns the model's certificate; None if audits can test none."""
        return self._monitored.get(model)

    def of(self, model: DeviceModel) -> CertificateState:
        """Returns the state of the model's certificate."""
        monitored = self._monitored.get(model)
        return VALID if monitored is None else monitored.record.state

    def take_escalation(self, model: DeviceModel) -> bool:
        """Returns whether one more answer may be escalated that only an alarm escalates; uses the quota."""
        monitored = self.find(model)
        if monitored is None or not monitored.record.state.is_void:
            return True
        now_s, per_hour = self._clock.monotonic_s(), self.quota_per_hour(monitored)
        monitored.quota = sampling.refill(monitored.quota, now_s - monitored.quota_at_s, per_hour)
        monitored.quota_at_s = now_s
        if monitored.quota < 1:
            return False
        monitored.quota -= 1
        return True

    def quota_per_hour(self, monitored: MonitoredCertificate) -> float:
        """Returns the gateway's quota, or this device's own if the gateway has set none."""
        quota = monitored.record.escalations_per_hour
        return self._settings.escalations_per_hour if quota is None else quota

    def level(self, monitored: MonitoredCertificate) -> float:
        """Returns the level of this device's own test of each event; it never rises.

        The events share delta, so that all of them together raise a false alarm with a probability of at most delta.

        Each device of a fleet tests the promise by itself, at delta over the number of those that do, so that the false
        alarms of all of them together stay rare. The number is the largest that was ever set or reported, for two
        reasons. A test whose level falls while it runs is valid: while the promise holds, its e-value ever reaches
        1 / a with a probability of at most a (Ville 1939), and an e-value that reaches the later, higher bound has
        passed the earlier, lower one. A level that rises again would not be valid. Example: an e-value has reached 300,
        and the alarm is at 400. If a device is switched off and the level rises, the alarm is at 300, and this past
        peak would raise it.

        So consider a device whose test began when n devices audited. It alarms falsely with a probability of at most
        delta / n, whatever number is reported later. Once all N devices know N, the probability that any of them alarms
        falsely is at most delta, because the e-values that they have by then are 1 on average. Over the whole life of a
        fleet that grows one by one from n to N it is delta * (1 + 1/(n + 1) + ... + 1/N), about delta * (1 + ln(N /
        n)): `audit.fleet_devices` set to the planned size from the beginning avoids the second term. A gateway that
        reports too many devices delays this device's own alarm by little, for the evidence grows exponentially once the
        promise is broken.
        """
        devices = max(self._settings.fleet_devices, monitored.record.fleet_devices)
        return monitored.certificate.delta / devices / len(monitored.bounds)

    def alarm_of(self, model: DeviceModel) -> ContractAlarm | None:
        """Returns the alarm that this device's own audits raised; None if they raised none."""
        monitored = self.find(model)
        if monitored is None or monitored.record.state.name != "broken_on_device":
            return None
        return ContractAlarm(monitored.certificate.edge_digest, monitored.record.state.event)

    def count_fleet(self, monitored: MonitoredCertificate, notice: ContractNotice | None) -> None:
        """Raises the number of devices that audit the promise; it never falls."""
        if notice is not None and notice.devices > monitored.record.fleet_devices:
            monitored.record.fleet_devices = notice.devices
            self.save()

    def apply_notice(self, model: DeviceModel, notice: ContractNotice | None) -> None:
        """Applies the gateway's notice about the model's contract; its alarm counts like this device's own.

        A notice without a quota removes an earlier quota. Without a notice nothing changes: some gateways send one only
        if there is an alarm or a quota.
        """
        monitored = self.find(model)
        if monitored is None or notice is None:
            return
        self.count_fleet(monitored, notice)
        if notice.escalations_per_hour != monitored.record.escalations_per_hour:
            monitored.record.escalations_per_hour = notice.escalations_per_hour
            self.save()
        if notice.alarm and not monitored.record.state.broken:
            is_monitored = notice.event in monitored.bounds
            state = CertificateState("broken_in_fleet", _FLEET)
            self._alarm(monitored, state, [notice.event] if is_monitored else list(monitored.bounds))

    def audited(self, monitored: MonitoredCertificate, sample: Sample, *, threshold: float) -> None:
        """Counts the result of one audit.

        Args:
            monitored: the certificate that covers the answer.
            sample: the result.
            threshold: in use when the answer was drawn. If it was tightened since, the new test leaves the audit out,
                because the audit's loss may have begun that test.
        """
        if sample.agree == 1:
            monitored.record.agreed += 1
        else:
            monitored.record.disagreed += 1
        self._samples.add(sample)
        if sample.kept and threshold == monitored.threshold:
            self._test(monitored, sample)
        self.save()

    def _test(self, monitored: MonitoredCertificate, sample: Sample) -> None:
        """Updates the tests of the events that can occur in an audit; alarms if any shows a broken promise."""
        record, broken = monitored.record, list[str]()
        for event, each in record.events.items():
            loss = sample.loss(event)
            if loss is None:
                continue
            each.test = audit.update(each.test, loss)
            each.counted += 1
            each.occurred += loss > 0
            if audit.alarm(each.test, self.level(monitored)):
                broken.append(event)
        if not broken:
            return
        if broken == [ALL_ROWS]:
            answered = record.agreed + record.disagreed
            audits = f"{counted(answered, 'audit')} on this device"
            cause = f"{record.disagreed} of {audits} disagreed"
            if monitored.certificate.graded:
                cause = f"{audits} show a mean loss above {100 * monitored.bounds[ALL_ROWS]:.4g} %"
        else:
            each = record.events[broken[0]]
            cause = f"in {each.occurred} of {counted(each.counted, 'audit')} on this device in which it can occur"
        self._alarm(monitored, CertificateState("broken_on_device", cause), broken)

    def add_sample(self, sample: Sample) -> None:
        """Stores an answer that both models gave and that tests no certificate."""
        self._samples.add(sample)

    def save(self) -> None:
        """Makes `keep_saving` write the records soon."""
        self._changed.set()

    async def keep_saving(self) -> None:
        """Writes what changed, off the event loop, until it is cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._writing = asyncio.ensure_future(asyncio.to_thread(self._file.write, self._encoded()))
            try:
                await asyncio.shield(self._writing)
            except REFUSED as error:  # no thread, no memory
                self._writing = None
                self._file.refused(str(error) or type(error).__name__)
            if self._file.refusal:  # the refused content may have an alarm, after which there are no audits
                self.save()
                await self._clock.sleep(_RETRY_S)

    async def close(self) -> None:
        """Writes the findings, after `keep_saving` has ended."""
        if self._writing is not None:
            await self._writing
        if self._monitored:
            self._file.write(self._encoded())

    def watch(self, model: DeviceModel) -> None:
        """Starts or resumes testing the certificate of a loaded variant, if it has one that audits can test."""
        certificate = model.edge.certificate if model.edge is not None else None
        if certificate is None or not certificate.audit_bounds:
            return
        name = model.manifest.name
        key = record_key(name, model.version, certificate)
        record = self._records.pop(key, None)
        if record is None:
            record = new_record(self._records, name, model.version, certificate)
            if not record.state.is_void and self._file.lost_after(model.bundle.path / MANIFEST_NAME):
                record.state = self._unknown()
                self.save()
        self._records[key] = record  # the last ones are the newest
        if record.state.is_void:
            log.warning("certificate is void", model=name, version=model.version, cause=record.state.cause)
        scores = None
        if (histogram := certificate.histogram) is not None:
            scores = ScoreHistogram(histogram.edges, _REMEMBERED_SCORES, record.scores)
        self._monitored[model] = MonitoredCertificate(
            model=model,
            certificate=certificate,
            key=key,
            bounds=certificate.audit_bounds,
            record=record,
            scores=scores,
            quota_at_s=self._clock.monotonic_s(),
        )

    def _doubt_all(self) -> None:
        """Makes all present certificates unknown: the file that was lost may have held an alarm of any of them."""
        state = self._unknown()
        for monitored in self:
            if monitored.record.state.is_void:  # `watch` did so, because the bundle was here before
                continue
            monitored.record.state = state
            name, version = monitored.record.model, monitored.record.version
            log.warning("certificate is void", model=name, version=version, cause=state.cause)
            self.save()  # not without a certificate: an empty file would end the doubt

    def _unknown(self) -> CertificateState:
        return CertificateState("unknown", _LOST_RECORD, void_since_wall_s=self._clock.wall_s())

    def unwatch(self, model: DeviceModel) -> None:
        """Stops testing the certificate of a variant; the findings stay for when the variant comes back."""
        monitored = self._monitored.pop(model, None)
        if monitored is not None and monitored.scores is not None:
            monitored.record.scores = tuple(monitored.scores.counts)
            self.save()

    def _alarm(self, monitored: MonitoredCertificate, state: CertificateState, broken: Sequence[str]) -> None:
        """Tightens the threshold, never below the one in use, and starts new tests at the new one.

        Args:
            monitored: the certificate.
            state: name and cause of the alarm; the broken events are put before the cause. A certificate that is
                already broken keeps those of its first alarm.
            broken: the events whose promise is broken, `ALL_ROWS` for a promise about all rows.
        """
        record, after, cause = monitored.record, EVERYTHING, state.cause
        if self._settings.on_alarm == "tighten":
            after = max(self._tightened(monitored, event) for event in broken)
        if events := ", ".join(filter(None, broken)):
            cause = f"{events}: {cause}"
        if record.state.broken:
            state = record.state
        else:
            state = replace(state, cause=cause, event=broken[0], void_since_wall_s=self._clock.wall_s())
        escalates_all = after == EVERYTHING
        record.state = replace(state, tightened=None if escalates_all else after, escalates_all=escalates_all)
        for event, each in record.events.items():
            each.test = audit.begin(monitored.bounds[event])
        monitored.quota, monitored.quota_at_s = 0.0, self._clock.monotonic_s()
        log.error(
            "the contract is broken: answers are not certified any more, and fewer edge answers are accepted",
            model=record.model,
            version=record.version,
            cause=cause,
            threshold="no edge answer is accepted" if escalates_all else after,
            quota_per_hour=self.quota_per_hour(monitored),
        )
        self.save()

    def _tightened(self, monitored: MonitoredCertificate, event: str) -> float:
        """Returns the threshold from which the audits in which an event can occur still satisfy its promise."""
        found = [
            (sample.score, loss, sample.propensity)
            for sample in self._samples.recent(monitored.key)
            if (loss := sample.loss(event)) is not None
        ]
        scores, losses, propensities = ([row[column] for row in found] for column in range(3))
        return tightened(scores, losses, propensities, monitored.bounds[event], monitored.threshold)

    def _encoded(self) -> bytes:
        for monitored in self:
            if monitored.scores is not None:
                monitored.record.scores = tuple(monitored.scores.counts)
        return records.encode(self._records, {monitored.key for monitored in self})
