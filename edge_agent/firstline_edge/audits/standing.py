"""How each certificate of this device stands in the field, and what an alarm makes of it.

A device only ever tightens: an alarm stays, over restarts too, until a bundle or a certificate comes that the record
was not kept for. What is looked up for every answer is a `Standing`; all else here happens once an audit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from firstline_core.bundle.certificate import Certificate
from firstline_core.clock import Clock
from firstline_core.errors import IntegrityError
from firstline_core.routing import audit, drift, sampling
from firstline_core.routing.drift import RecentCounts
from firstline_core.routing.tightening import EVERYTHING, tightened
from firstline_core.telemetry.logs import logger
from firstline_core.types import ContractNotice
from firstline_edge.audits import records
from firstline_edge.audits.records import Record, key_of
from firstline_edge.audits.samples import Sample, SampleLog
from firstline_edge.models import HeldModel
from firstline_edge.settings import AuditSection

log = logger(__name__)

_SCORES_REMEMBERED = 2_000.0
_LOST_RECORD = "what the audits had found so far could not be read"
_NO_EVIDENCE = ("", _LOST_RECORD)  # causes of an alarm that no audit raised: the first that one raises still tightens


class Standing(NamedTuple):
    """What the router must know of a certificate.

    Attributes:
        alarmed: it is not to be relied on any more.
        threshold: from which answers are still kept; None for the certificate's, infinite where none is.
    """

    alarmed: bool = False
    threshold: float | None = None


CLEAR = Standing()


@dataclass(slots=True, eq=False)
class Watched:
    """A certificate in the field.

    Args:
        key: of its record.
        epsilon: what the audits test.
        record: what outlives the process.
        scores: the latest ones; None where the certificate has no histogram to compare them with.
        quota: escalations that the alarm may cause now.
        quota_at_s: when that was true.
    """

    model: HeldModel
    certificate: Certificate
    key: str
    epsilon: float
    record: Record
    scores: RecentCounts | None
    quota_at_s: float
    quota: float = 0.0
    standing: Standing = CLEAR

    @property
    def threshold(self) -> float:
        """The score from which answers are kept, as far as the audits have a say."""
        tightened_to = self.record.threshold
        return self.certificate.threshold if tightened_to is None else tightened_to

    def stability_index(self) -> float | None:
        """How far the scores have moved from the certificate's; None while there are too few to tell."""
        histogram = self.certificate.histogram
        if histogram is None or self.scores is None:
            return None
        counts, n = self.scores.counts, self.certificate.n
        index = drift.population_stability_index([share * n for share in histogram.shares], counts)
        return drift.beyond_chance(index, len(counts), n, sum(counts))


class Standings:
    """All certificates of this device that audits can test.

    Args:
        path: the file of records.
        models: those held.
        samples: answers whose truth is known.
        settings: how careful to be.
        on_alarm: told of each certificate that has just been alarmed, or tightened once more.

    A file that cannot be read is put aside. Whether there was an alarm in it is not known then, so that the
    certificates of this moment are not relied on any more; they keep their thresholds, and their tests begin anew.
    """

    def __init__(
        self,
        path: Path,
        models: Iterable[HeldModel],
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
        self._disk_refuses = False
        self.problem = ""
        self._records = self._read()
        self._watched: dict[HeldModel, Watched] = {}
        for model in models:
            self._watch(model)

    def __iter__(self) -> Iterator[Watched]:
        return iter(self._watched.values())

    def find(self, model: HeldModel) -> Watched | None:
        """The model's certificate; None where it has none that audits can test."""
        return self._watched.get(model)

    def of(self, model: HeldModel) -> Standing:
        """How the model's certificate stands."""
        watched = self._watched.get(model)
        return CLEAR if watched is None else watched.standing

    def grants(self, model: HeldModel, score: float, group: str | None = None) -> bool:
        """Whether an answer of this score may be escalated: what only an alarm escalates has a quota, and uses it up.

        Args:
            model: whose answer is not kept.
            score: the edge model's; NaN where there is none.
            group: of the answer, see `HeldModel.group`.
        """
        watched = self.find(model)
        if watched is None or not watched.standing.alarmed:
            return True
        if not score >= watched.certificate.threshold_for(group or ""):  # the certificate itself escalates it
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

    def heed(self, model: HeldModel, notice: ContractNotice | None) -> None:
        """Takes up what the gateway says of the model's contract; its alarm is as good as this device's own."""
        watched = self.find(model)
        if watched is None or notice is None:
            return
        if notice.escalations_per_hour not in (None, watched.record.escalations_per_hour):
            watched.record.escalations_per_hour = notice.escalations_per_hour
            self.save()
        if notice.alarm and watched.record.cause in _NO_EVIDENCE:
            self._alarm(watched, "the audits of all devices together show that the promise is broken")

    def audited(self, watched: Watched, sample: Sample) -> None:
        """Counts the result of one audit, of an answer that was kept at the threshold in use."""
        if sample.agree:
            watched.record.agreed += 1
        else:
            watched.record.disagreed += 1
        self._samples.add(sample)
        # Its threshold may have been tightened while the audit was under way.
        if sample.score >= watched.threshold:
            record = watched.record
            record.test = audit.update(record.test, sample.loss, propensity=sample.propensity, floor=sample.propensity)
            if audit.alarm(record.test, watched.certificate.delta / self._settings.fleet_devices):
                answered = record.agreed + record.disagreed
                self._alarm(watched, f"{record.disagreed} of {answered} audits on this device disagreed")
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
            await asyncio.shield(self._writing)

    async def close(self) -> None:
        """Writes what is known, after `keep_saving` has ended."""
        if self._writing is not None:
            await self._writing
        if self._watched:
            self._write(self._encoded())

    def _watch(self, model: HeldModel) -> None:
        certificate = model.edge.certificate if model.edge is not None else None
        if certificate is None or certificate.audit_epsilon is None:
            return
        name, epsilon = model.manifest.name, certificate.audit_epsilon
        key = key_of(name, model.version, certificate, epsilon)
        record = self._records.pop(key, None) or Record(model=name, version=model.version, test=audit.begin(epsilon))
        self._records[key] = record  # the last ones are the newest
        if self.problem and not record.alarmed:
            record.alarmed, record.cause, record.alarmed_wall_s = True, _LOST_RECORD, self._clock.wall_s()
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
            standing=Standing(record.alarmed, record.threshold),
        )
        self._watched[model] = watched

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
        watched.standing = Standing(True, after)
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
            aside = self._path.with_name(self._path.name + ".unreadable")
            self.problem = (
                f"{error.message} Put aside as {aside.name}; whether there was an alarm is not known, so answers are "
                "not certified until a newly certified bundle comes."
            )
            log.error("the audits' records are lost", error=self.problem)
            try:
                self._path.replace(aside)
            except OSError as refusal:
                log.error("cannot put a file aside", path=str(self._path), error=str(refusal))
        except OSError as error:
            self.problem = f"{self._path} cannot be read: {error.strerror}; answers are not certified."
            log.error("the audits' records cannot be read", error=self.problem)
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
            if not self._disk_refuses:
                log.error("cannot keep what the audits found", path=str(self._path), error=str(error))
            self._disk_refuses = True
        else:
            self._disk_refuses = False
