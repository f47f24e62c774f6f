"""Lets the full model check a random sample of the answers that a certificate covers, in the background.

Every answer that reaches the certificate's threshold can be drawn, even if the full model answered it. A device may
accept fewer edge answers than the certificate allows (`policy.min_threshold`, the policy `value`). Its audits still
test the same promise as those of every other device of the fleet.

A row is drawn with a probability that depends only on past traffic and the budget, before its loss is known. The caller
never waits for an audit. A drawn row is sent even if this device already knows the full model's answer: the gateway
pools the audits of all devices, and would otherwise receive only new inputs, whose risk differs from the promised one.
The result is cached like any other output of the full model.

An audit is tried once. A lost audit (offline, refused, too late, the process ended) is counted and not retried: with
retries, the audits that succeed would depend on the link, and the link may depend on the input.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, LinkDownError, ModelMismatchError
from firstline_core.ids import new_request_id
from firstline_core.routing import sampling
from firstline_core.routing.certificate import Contract
from firstline_core.routing.policy import CERTIFIED
from firstline_core.routing.sampling import Allowance, AuditBudget
from firstline_core.telemetry.logs import logger
from firstline_core.types import Attempt, AuditNote, InferRequest, Privacy, Reason, Tensor
from firstline_edge.audits.certificate_states import CertificateStates, MonitoredCertificate
from firstline_edge.audits.samples import Sample, SampleLog
from firstline_edge.cache.results import ResultCache
from firstline_edge.cloud.client import LiveTraffic
from firstline_edge.cloud.link import Uplink
from firstline_edge.models.models import DeviceModel
from firstline_edge.requests.context import ModelOutput, Row, result_key
from firstline_edge.requests.full_answers import checked, escalation_of
from firstline_edge.settings.settings import AuditSection

log = logger(__name__)

_BY_SCORE = (Reason.CONFIDENT, Reason.UNCERTAIN, Reason.VALUABLE)
_WAITING = 64
_WAITING_BYTES = 16 << 20
_TIMEOUT_S = 30.0
_SHARE_S = 0.1  # a propensity is used for so long, or until an answer is drawn: finding a new one takes a microsecond


@dataclass(frozen=True, slots=True)
class Audit:
    """An answer that was drawn.

    Args:
        request_id: of the request that it answers.
        position: of the row in that request.
        sent: the request to the gateway, under its own id.
        content: sha256 of the row.
        score: the edge model's.
        predicted: the class that it gave.
        propensity: the probability with which it was drawn.
        threshold: in use at that time.
        covered: whether that threshold covers it, so that its audit tests the certificate.
    """

    monitored: MonitoredCertificate
    request_id: str
    position: int
    sent: InferRequest
    content: bytes
    score: float
    predicted: int
    propensity: float
    threshold: float
    covered: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """How an audit ended.

    Args:
        outcome: agreed, disagreed or lost.
        cause: why it was lost; "" where it was not.
    """

    audit: Audit
    outcome: str
    cause: str = ""

    @property
    def model(self) -> str:
        """The name of the audited model."""
        return self.audit.sent.model

    @property
    def version(self) -> str:
        """The version of the audited model."""
        return self.audit.sent.version

    def log_record(self) -> dict[str, object]:
        """Returns the fields of the decision log; JSON-able."""
        audit = self.audit
        record: dict[str, object] = {
            "request_id": audit.request_id,
            "audit_id": audit.sent.request_id,
            "model": audit.sent.model,
            "version": audit.sent.version,
            "row": audit.position,
            "score": audit.score,
            "propensity": audit.propensity,
            "outcome": self.outcome,
        }
        return record | {"cause": self.cause} if self.cause else record


class Auditor:
    """Draws answers, sends them to the full model, and reports the outcome.

    Args:
        cloud: asks the gateway; None on a device without links, which audits nothing.
        available: whether a link may be used now.
        cache: stores the full model's outputs.
        certificates: receives each result.
        samples: of escalated answers; those of audits go through `certificates`.
        traffic: the live escalations, which go first.
        settings: the limits of audits.
        clock: for the budget and for deadlines.
        rng: draws.
        certifies: the contracts on which this device's policy relies; only these are audited.
        ample: whether the device's budgets are ample; if not, only answers that test a promise are audited.
        on_drawn: called when an answer is drawn.
        on_finding: called with the outcome of each audit.
    """

    def __init__(
        self,
        *,
        cloud: Uplink | None,
        available: Callable[[], bool],
        cache: ResultCache,
        certificates: CertificateStates,
        samples: SampleLog,
        traffic: LiveTraffic,
        settings: AuditSection,
        clock: Clock,
        rng: random.Random,
        certifies: Collection[Contract] = CERTIFIED.certifies,
        ample: Callable[[], bool] = lambda: True,
        on_drawn: Callable[[], None] = lambda: None,
        on_finding: Callable[[Finding], None] = lambda _: None,
    ) -> None:
        self._cloud = cloud
        self._available = available
        self._cache = cache
        self._certificates = certificates
        self._samples = samples
        self._traffic = traffic
        self._allowance = Allowance(settings.per_hour, settings.bytes_per_hour, settings.max_share)
        self._clock = clock
        self._rng = rng
        self._certifies = certifies
        self._ample = ample
        self._on_drawn = on_drawn
        self._on_finding = on_finding
        self._budget = AuditBudget(clock.monotonic_s())
        self._share = 0.0
        self._share_until_s = -math.inf
        self._uncounted_rows = self._uncounted_bytes = 0
        self._queue: asyncio.Queue[Audit] = asyncio.Queue(_WAITING)
        self._waiting_bytes = 0

    def adopt(self, settings: AuditSection, certifies: Collection[Contract]) -> None:
        """Applies a new audit budget and policy."""
        self._allowance = Allowance(settings.per_hour, settings.bytes_per_hour, settings.max_share)
        self._certifies = certifies
        self._share_until_s = -math.inf

    def observe_decisions(self, request: InferRequest, model: DeviceModel, rows: Sequence[Row]) -> None:
        """Counts the scores of rows that the policy decided by score, and draws audits and samples.

        Called before any of the rows is escalated. Covered answers are drawn for an audit at random. Others with a
        cached answer of the full model become samples. An answer is covered if it reaches the certificate's threshold,
        or the threshold to which an alarm has raised it.
        Rows whose escalation the budget denied are drawn too while the budgets are ample. They test nothing, but
        without them answers just below a raised threshold would be missing from the next certification.
        """
        monitored = self._certificates.find(model)
        if monitored is None or request.privacy is Privacy.LOCAL_ONLY:
            return
        may_draw = self._may_draw(monitored)
        recalled: list[Row] = []
        for row in rows:
            if row.reason not in _BY_SCORE:
                continue
            if monitored.scores is not None:
                monitored.scores.add(row.score)
            if row.edge is None:
                continue
            covered = monitored.covers(row.score, model.group(row.edge))
            if covered or (row.answer is not None and row.answer.reason is Reason.BUDGET):
                if may_draw and (covered or self._ample()):
                    share = self._share_and_count(_row_bytes(request.inputs[0], row.position))
                    if self._rng.random() < share:
                        self._draw(monitored, request, row, row.edge, share, covered=covered)
            elif row.answer is not None:
                recalled.append(row)
        if recalled:
            self.observe_escalations(model, recalled)

    def observe_escalations(self, model: DeviceModel, rows: Sequence[Row]) -> None:
        """Samples answers that the full model gave, with the propensity of audits, so that both can be joined.

        Args:
            model: of both answers.
            rows: answered by the full model; the edge model may have answered them too.
        """
        monitored = self._certificates.find(model)
        if monitored is None or not self._may_draw(monitored):
            return
        for row in rows:
            if row.edge is None or row.output is None or row.answer is None or not row.answer.certified:
                continue
            if monitored.covers(row.score, model.group(row.edge)):  # already drawn, or not, as an audit
                continue
            share = self._share_now()
            if self._rng.random() < share:
                agree = int(np.argmax(row.edge.probabilities) == np.argmax(row.output.probabilities))
                self._samples.add(self._sample(monitored, row.score, agree, share, kept=False))

    async def run(self) -> None:
        """Audits the drawn answers, one at a time, until it is cancelled."""
        while True:
            audit = await self._queue.get()
            self._waiting_bytes -= audit.sent.size_bytes
            try:
                await self._traffic.wait_quiet()
                await self._ask(audit)
            except FirstlineError as error:
                self._lose(audit, error)
            except Exception as error:  # the outermost loop of a task that must never end
                log.exception("audit failed", request_id=audit.request_id)
                self._lose(audit, FirstlineError(f"The audit failed unexpectedly: {error!r}."))

    def _may_draw(self, monitored: MonitoredCertificate) -> bool:
        """Returns whether its answers may be drawn now: under a raised threshold only while the budgets are ample."""
        relied = monitored.certificate.contract in self._certifies
        return relied and (monitored.certificate_state.threshold is None or self._ample())

    def _share_and_count(self, size_bytes: int) -> float:
        """Returns the propensity of an answer, and counts the answer for those that follow."""
        share = self._share_now()
        self._uncounted_rows += 1
        self._uncounted_bytes += size_bytes
        return share

    def _share_now(self) -> float:
        """Returns the propensity of the next answer; 0 while there is no room for an audit."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._share_until_s:
            budget = sampling.add_answers(self._budget, self._uncounted_rows, self._uncounted_bytes)
            self._uncounted_rows = self._uncounted_bytes = 0
            self._budget = sampling.after_time(budget, now_s, self._allowance)
            room = self._cloud is not None and not self._queue.full() and self._waiting_bytes <= _WAITING_BYTES
            self._share = sampling.propensity(self._budget, self._allowance) if room else 0.0
            self._share_until_s = now_s + _SHARE_S
        return self._share

    def _draw(
        self,
        monitored: MonitoredCertificate,
        request: InferRequest,
        row: Row,
        edge: ModelOutput,
        share: float,
        *,
        covered: bool,
    ) -> None:
        self._budget = sampling.charge(self._budget, _row_bytes(request.inputs[0], row.position))
        self._share_until_s = -math.inf
        audit = _audit_of(monitored, request, row, edge, share, covered=covered)
        monitored.record.drawn += 1
        self._on_drawn()
        self._certificates.save()
        if self._available():
            self._waiting_bytes += audit.sent.size_bytes
            self._queue.put_nowait(audit)
        else:
            self._lose(audit, LinkDownError("No link to the gateway works at the moment."))

    async def _ask(self, audit: Audit) -> None:
        if self._cloud is None:
            raise LinkDownError("This device has no link to a gateway.")
        manifest, attempts = audit.monitored.model.manifest, list[Attempt]()
        sent = replace(audit.sent, alarm=self._certificates.alarm_of(audit.monitored.model))
        response = await self._cloud.infer(sent, self._clock.monotonic_s() + _TIMEOUT_S, attempts)
        full = checked(response, 1, len(manifest.labels), manifest.full_digest)
        if full.digest != manifest.full_digest:
            raise ModelMismatchError("The gateway does not say which model answered; let the link lead to a gateway.")
        self._cache.put(result_key(audit.content, full.digest), ModelOutput(full.probabilities[0]))
        agree = int(np.argmax(full.probabilities[0]) == audit.predicted)
        # Before its own result can raise an alarm, for what was sent with a note was kept under the certificate.
        self._on_finding(Finding(audit, "agreed" if agree else "disagreed"))
        sample = self._sample(audit.monitored, audit.score, agree, audit.propensity, kept=audit.covered)
        notice = response.answer.contract if response.answer is not None else None
        self._certificates.count_fleet(audit.monitored, notice)  # before its result, which is tested at that level
        self._certificates.audited(audit.monitored, sample, threshold=audit.threshold)
        # After its own result: what the gateway says may be due to it, and begins a test that must not count it.
        self._certificates.apply_notice(audit.monitored.model, notice)

    def _lose(self, audit: Audit, error: FirstlineError) -> None:
        audit.monitored.record.lost += 1
        self._certificates.save()
        self._on_finding(Finding(audit, "lost", error.message))

    def _sample(
        self, monitored: MonitoredCertificate, score: float, agree: int, propensity: float, *, kept: bool
    ) -> Sample:
        record = monitored.record
        return Sample(monitored.key, record.model, record.version, self._clock.wall_s(), score, agree, propensity, kept)


def _audit_of(
    monitored: MonitoredCertificate, request: InferRequest, row: Row, edge: ModelOutput, share: float, *, covered: bool
) -> Audit:
    """Returns the audit of a drawn row.

    Args:
        monitored: the certificate.
        request: of which it is a row.
        row: drawn.
        edge: the edge model's output.
        share: the probability with which it was drawn.
        covered: whether the threshold in use covers it.
    """
    certificate, predicted = monitored.certificate, int(np.argmax(edge.probabilities))
    # Only the certificate's threshold was promised anything: a stricter part may be riskier than the whole, and would
    # raise a false alarm for the whole fleet. A tightened one is this device's own affair.
    note = AuditNote(
        predicted=predicted,
        propensity=share,
        floor=share,
        epsilon=monitored.epsilon,
        threshold=certificate.threshold,
        edge_digest=certificate.edge_digest,
    )
    escalation = escalation_of(request.take([row.position]), monitored.model.version, certificate.full_digest)
    noted = covered and monitored.certificate_state.threshold is None
    return Audit(
        monitored=monitored,
        request_id=request.request_id,
        position=row.position,
        # The caller of the request does not wait for an audit, and its trace does not contain one.
        sent=replace(escalation, request_id=new_request_id(), audit=note if noted else None, trace=None),
        content=row.content,
        score=row.score,
        predicted=predicted,
        propensity=share,
        threshold=monitored.threshold,
        covered=covered,
    )


def _row_bytes(tensor: Tensor, position: int) -> int:
    """Size of one row's payload."""
    array = tensor.array
    if not array.dtype.hasobject:
        return array.nbytes // len(array)
    size_bytes: int = sum(map(len, array[position : position + 1].flat))
    return size_bytes
