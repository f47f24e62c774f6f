"""The state of each certificate of this device in the field, and the effect of an alarm.

A device only ever tightens: an alarm stays, over restarts too, until a bundle or a certificate comes that the record
was not kept for. Each answer looks up one `CertificateState`; everything else here happens once per audit.

Each device of a fleet tests the promise by itself, at delta over the number of those that do, so that the false alarms
of all of them together stay rare. The number is the largest that was ever set or heard, for two reasons. A test whose
level falls while it runs is valid: while the promise holds, its e-value ever reaches 1 / a with a probability of at
most a (Ville 1939), and what reaches the higher bound of later has passed the lower one of now. A level that rose again
would undo that, for the level that counts is the highest ever used: a test that peaked at 300 of the 400 that it needed
would alarm, in hindsight, with the first device that is switched off.

So a device that began when n audited alarms falsely with a probability of at most delta / n, whatever it hears later.
From any moment on at which all N know N, all of them together do with at most delta, as the e-values that they have
by then are 1 on average. Over the whole life of a fleet that grows one by one from n to N it is delta * (1 + 1/(n + 1)
+ ... + 1/N), about delta * (1 + ln(N / n)): `audit.fleet_devices` set to the planned size from the beginning avoids the
second term. A gateway that says too much delays this device's own alarm by little, for the evidence grows
exponentially once the promise is broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from firstline_core.clock import Clock
from firstline_core.errors import IntegrityError
from firstline_core.routing import audit, drift, sampling
from firstline_core.routing.drift import RecentCounts
from firstline_core.routing.tightening import EVERYTHING, tightened
from firstline_core.runtime.threads import REFUSED
from firstline_core.storage.files import set_aside
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import counted
from firstline_core.types import ContractNotice
from firstline_edge.audits import records
from firstline_edge.audits.records import Record, begun, key_of
from firstline_edge.audits.samples import Sample, SampleLog
from firstline_edge.audits.watched import CLEAR, CertificateState, Watched
from firstline_edge.models.models import DeviceModel
from firstline_edge.settings.settings import AuditSection

log = logger(__name__)

_SCORES_REMEMBERED = 2_000.0
_RETRY_S = 30.0  # after a disk refused: what is not written would be forgotten at the next restart
_LOST_RECORD = "what the audits had found so far could not be read"
_FLEET = "the audits of all devices together show that the promise is broken"
_UNKNOWN = "Whether there was an alarm is not known, so answers are not certified until a newly certified bundle comes."
_NO_EVIDENCE = ("", _LOST_RECORD)  # causes of an alarm that no audit raised: the first that one raises still tightens


class CertificateStates:
    """All certificates of this device that audits can test.

    Args:
        path: the file of records.
        models: those held.
        samples: answers whose truth is known.
        settings: how careful to be.
        on_alarm: receives each certificate that was just alarmed, or tightened again.

    A file that cannot be read is set aside. It may have held an alarm, so the current certificates are not relied on
    any more; they keep their thresholds, and their tests restart.
    """

    def __init__(
        self,
        path: Path,
        models: Iterable[DeviceModel],
        samples: SampleLog,
        settings: AuditSection,
        clock: Clock,
        *,
        on_alarm: Callable[[Watched], None] = lambda _: None,
    ) -> None:
        self._path = path
        self._samples = samples
        self._settings = settings
        self._clock = clock
        self._on_alarm = on_alarm
        self._changed = asyncio.Event()
        self._writing: asyncio.Future[None] | None = None
        self._lost = ""
        self._refusal = ""
        self._records = self._read()
        self._watched: dict[DeviceModel, Watched] = {}
        for model in models:
            self.watch(model)

    def __iter__(self) -> Iterator[Watched]:
        return iter(self._watched.values())

    @property
    def problem(self) -> str:
        """The problem with the file, in one or two sentences; "" if there is none."""
        return " ".join(filter(None, (self._lost, self._refusal)))

    def adopt(self, settings: AuditSection) -> None:
        """Exchanges the settings: the effect of the next alarm, and at once the quota of the current one."""
        self._settings = settings

    def find(self, model: DeviceModel) -> Watched | None:
        """Returns the model's certificate; None if audits can test none."""
        return self._watched.get(model)

    def describe(self, model: DeviceModel) -> dict[str, object] | None:
        """Returns the state of the model's certificate for `status`; None if audits can test none."""
        watched = self.find(model)
        if watched is None:
            return None
        record, index = watched.record, watched.stability_index()
        return {
            "alarm": record.alarmed,
            "cause": record.cause or None,
            "since": _shown(record.alarmed_wall_s) if record.alarmed else None,
            "tightened": record.tightened,
            "escalates_all": record.escalates_all,
            "escalations_per_hour": self.quota_per_hour(watched) if record.alarmed else None,
            "epsilon": watched.epsilon,
            "e_value": audit.e_value(record.test),
            "alarm_at": 1 / self.level(watched),
            "audits": {
                "drawn": record.drawn,
                "agreed": record.agreed,
                "disagreed": record.disagreed,
                "lost": record.lost,
            },
            "drift": None if index is None else {"index": round(index, 4), "word": drift.word(index)},
        }

    def of(self, model: DeviceModel) -> CertificateState:
        """Returns the state of the model's certificate."""
        watched = self._watched.get(model)
        return CLEAR if watched is None else watched.certificate_state

    def grants(self, model: DeviceModel) -> bool:
        """Whether one more answer may be escalated that only an alarm escalates; uses up a bit of the quota."""
        watched = self.find(model)
        if watched is None or not watched.certificate_state.alarmed:
            return True
        now_s, per_hour = self._clock.monotonic_s(), self.quota_per_hour(watched)
        watched.quota = sampling.filled(watched.quota, now_s - watched.quota_at_s, per_hour)
        watched.quota_at_s = now_s
        if watched.quota < 1:
            return False
        watched.quota -= 1
        return True

    def quota_per_hour(self, watched: Watched) -> float:
        """The gateway's quota, or this device's own where the gateway set none."""
        quota = watched.record.escalations_per_hour
        return self._settings.escalations_per_hour if quota is None else quota

    def level(self, watched: Watched) -> float:
        """The level of this device's own test; it never rises."""
        return watched.certificate.delta / max(self._settings.fleet_devices, watched.record.fleet_devices)

    def alarm_of(self, model: DeviceModel) -> str:
        """The edge variant whose promise this device's own audits broke; "" for none, or where it was only told so."""
        watched = self.find(model)
        own = watched is not None and watched.record.alarmed and watched.record.cause not in (*_NO_EVIDENCE, _FLEET)
        return watched.certificate.edge_digest if watched is not None and own else ""

    def count_fleet(self, watched: Watched, notice: ContractNotice | None) -> None:
        """Raises the number of devices that audit the promise; it never falls."""
        if notice is not None and notice.devices > watched.record.fleet_devices:
            watched.record.fleet_devices = notice.devices
            self.save()

    def heed(self, model: DeviceModel, notice: ContractNotice | None) -> None:
        """Takes up the gateway's notice about the model's contract; its alarm counts like this device's own.

        A notice without a quota takes an earlier one back. No notice at all says nothing: it may come from a gateway
        that only speaks when there is something to tell.
        """
        watched = self.find(model)
        if watched is None or notice is None:
            return
        self.count_fleet(watched, notice)
        if notice.escalations_per_hour != watched.record.escalations_per_hour:
            watched.record.escalations_per_hour = notice.escalations_per_hour
            self.save()
        if notice.alarm and watched.record.cause in _NO_EVIDENCE:
            self._alarm(watched, _FLEET)

    def audited(self, watched: Watched, sample: Sample, *, threshold: float) -> None:
        """Counts the result of one audit.

        Args:
            watched: the certificate that speaks of the answer.
            sample: what was found.
            threshold: in use when the answer was drawn. Where it was tightened since, the new test leaves the audit
                out, for its loss may be what began that test.
        """
        if sample.agree:
            watched.record.agreed += 1
        else:
            watched.record.disagreed += 1
        self._samples.add(sample)
        if sample.kept and threshold == watched.threshold:
            record = watched.record
            record.test = audit.update(record.test, sample.loss, propensity=sample.propensity, floor=sample.propensity)
            if audit.alarm(record.test, self.level(watched)):
                answered = record.agreed + record.disagreed
                self._alarm(watched, f"{record.disagreed} of {counted(answered, 'audit')} on this device disagreed")
        self.save()

    def save(self) -> None:
        """Has the records written soon."""
        self._changed.set()

    async def keep_saving(self) -> None:
        """Writes what changed, off the event loop, until it is cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, self._encoded()))
            try:
                await asyncio.shield(self._writing)
            except REFUSED as error:  # no thread, no memory
                self._writing = None
                self._refused(str(error) or type(error).__name__)
            if self._refusal:  # what is written next may be an alarm, after which there are no audits
                self.save()
                await self._clock.sleep(_RETRY_S)

    async def close(self) -> None:
        """Writes what is known, after `keep_saving` has ended."""
        if self._writing is not None:
            await self._writing
        if self._watched:
            self._write(self._encoded())

    def watch(self, model: DeviceModel) -> None:
        """Starts or resumes testing the certificate of each loaded variant of a model."""
        for variant in model.every:
            self.watch_one(variant)

    def watch_one(self, model: DeviceModel) -> None:
        """Of this very variant, if it has one that audits can test."""
        certificate = model.edge.certificate if model.edge is not None else None
        if certificate is None or certificate.audit_epsilon is None:
            return
        name, epsilon = model.manifest.name, certificate.audit_epsilon
        key = key_of(name, model.version, certificate, epsilon)
        record = self._records.pop(key, None) or begun(self._records, name, model.version, certificate, epsilon)
        self._records[key] = record  # the last ones are the newest
        if self._lost and not record.alarmed:
            record.alarmed, record.cause, record.alarmed_wall_s = True, _LOST_RECORD, self._clock.wall_s()
            self.save()
        if record.alarmed:
            log.warning("an alarm voids a certificate", model=name, version=model.version, cause=record.cause)
        histogram = certificate.histogram
        watched = Watched(
            model=model,
            certificate=certificate,
            key=key,
            epsilon=epsilon,
            record=record,
            scores=RecentCounts(histogram.edges, _SCORES_REMEMBERED, record.scores) if histogram is not None else None,
            quota_at_s=self._clock.monotonic_s(),
            certificate_state=CertificateState(record.alarmed, record.threshold),
        )
        self._watched[model] = watched

    def unwatch(self, model: DeviceModel) -> None:
        """Stops testing a model's certificates; the findings stay for when the model comes back."""
        for variant in {model, *model.every}:
            self.unwatch_one(variant)

    def unwatch_one(self, model: DeviceModel) -> None:
        """Of this very variant."""
        watched = self._watched.pop(model, None)
        if watched is not None and watched.scores is not None:
            watched.record.scores = tuple(watched.scores.counts)
            self.save()

    def _alarm(self, watched: Watched, cause: str) -> None:
        """Tightens: never below the threshold in use, and with a test that begins anew at the new one."""
        record, before = watched.record, watched.threshold
        after = EVERYTHING
        if self._settings.on_alarm == "tighten":
            known = [sample for sample in self._samples.recent(watched.key) if sample.score >= before]
            after = tightened(
                [sample.score for sample in known],
                [sample.loss for sample in known],
                [sample.propensity for sample in known],
                watched.epsilon,
                before,
            )
        if record.cause in _NO_EVIDENCE:
            record.cause, record.alarmed_wall_s = cause, self._clock.wall_s()
        record.alarmed = True
        record.escalates_all = after == EVERYTHING
        record.tightened = None if record.escalates_all else after
        record.test = audit.begin(watched.epsilon)
        watched.quota, watched.quota_at_s = 0.0, self._clock.monotonic_s()
        watched.certificate_state = CertificateState(True, after)
        log.error(
            "the contract is broken: answers are not certified any more, and fewer are kept",
            model=record.model,
            version=record.version,
            cause=cause,
            threshold="none is kept" if record.escalates_all else after,
            quota_per_hour=self.quota_per_hour(watched),
        )
        self.save()
        self._on_alarm(watched)

    def _read(self) -> dict[str, Record]:
        try:
            return records.read(self._path)
        except IntegrityError as error:
            self._lost = f"{error.message} {_UNKNOWN}"
            log.error("the audits' records are lost", error=self._lost)
            try:
                if self._path.exists():
                    set_aside(self._path)
            except OSError as refusal:
                log.error("cannot put a file aside", path=str(self._path), error=str(refusal))
        except OSError as error:
            self._lost = f"{self._path} cannot be read: {error.strerror}. {_UNKNOWN}"
            log.error("the audits' records cannot be read", error=self._lost)
        return {}

    def _encoded(self) -> bytes:
        for watched in self._watched.values():
            if watched.scores is not None:
                watched.record.scores = tuple(watched.scores.counts)
        return records.encode(self._records)

    def _write(self, content: bytes) -> None:
        try:
            records.write(self._path, content)
        except OSError as error:  # told once; the audits go on
            self._refused(str(error.strerror))
        else:
            self._refusal = ""

    def _refused(self, why: str) -> None:
        if not self._refusal:
            log.error("cannot keep what the audits found", path=str(self._path), error=why)
        self._refusal = f"{self._path} cannot be written: {why}. A restart would forget what audits found."


def _shown(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
