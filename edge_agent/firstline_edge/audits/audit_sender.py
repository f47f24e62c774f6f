"""Sends drawn answers to the full model, one at a time in the background, and reports the outcome.

An audit is tried once. A lost audit (offline, refused, too late, the process ended) is counted and not retried: with
retries, the audits that succeed would depend on the link, and the link may depend on the input.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from msgspec.structs import replace

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, LinkDownError
from firstline_core.telemetry import tracing
from firstline_core.telemetry.logs import logger
from firstline_core.types import Arrays, Attempt, InferRequest
from firstline_edge.audits.certificate_states import CertificateStates, MonitoredCertificate
from firstline_edge.audits.samples import Comparison
from firstline_edge.cache.results import ResultCache
from firstline_edge.cloud.chain import LinkChain
from firstline_edge.cloud.client import LiveTraffic
from firstline_edge.models.models import DeviceModel
from firstline_edge.requests.context import ModelOutput, Row, result_key
from firstline_edge.requests.recorder import EndedAudit

log = logger(__name__)

_WAITING = 64
_WAITING_BYTES = 16 << 20
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Audit:
    """An answer that was drawn.

    Args:
        model: that gave the answer.
        monitored: the certificate that it tests; None if it is audited for a rollout alone.
        request_id: of the request that it answers.
        row: of that request.
        edge: the outputs of the edge model.
        sent: the request to the gateway, under its own id.
        propensity: the probability with which it was drawn; see `AuditNote`.
        threshold: in use at that time.
        covered: whether that threshold covers it, so that its audit tests the certificate.
    """

    model: DeviceModel
    monitored: MonitoredCertificate | None
    request_id: str
    row: Row
    edge: Arrays
    sent: InferRequest
    propensity: float
    threshold: float
    covered: bool

    def ended(self, outcome: str, cause: str = "", compared: Comparison | None = None) -> EndedAudit:
        """Describes how the audit ended: agreed, disagreed, or lost for a cause."""
        record: dict[str, object] = {
            "request_id": self.request_id,
            "audit_id": self.sent.request_id,
            "model": self.sent.model,
            "version": self.sent.version,
            "row": self.row.position,
            "score": self.row.score,
            "propensity": self.propensity,
            "outcome": outcome,
        }
        loss, losses = compared or Comparison(0.0)
        promised = self.monitored.certificate.events if self.monitored is not None else ()
        if events := {name: lost for name, lost in losses.items() if name in promised}:
            record["events"] = events
        if cause:
            record["cause"] = cause
        return EndedAudit(self.sent.model, self.sent.version, outcome, record, loss, losses)


@dataclass(eq=False)
class AuditSender:
    """The drawn answers that wait for the full model, and their outcomes.

    Args:
        chain: the links to the gateway; a device without links audits nothing.
        cache: stores the full model's outputs.
        certificates: receives each result.
        traffic: the live escalations, which go first.
        clock: for deadlines.
        on_drawn: called when an answer is drawn.
        on_ended: called with the outcome of each audit.
    """

    chain: LinkChain
    cache: ResultCache
    certificates: CertificateStates
    traffic: LiveTraffic
    clock: Clock
    _: KW_ONLY
    on_drawn: Callable[[], None] = lambda: None
    on_ended: Callable[[EndedAudit], None] = lambda _: None
    _queue: asyncio.Queue[Audit] = field(default_factory=lambda: asyncio.Queue(_WAITING), init=False)
    _waiting_bytes: int = field(default=0, init=False)

    def has_room(self) -> bool:
        """Returns whether one more audit may wait."""
        return self.chain.linked and not self._queue.full() and self._waiting_bytes <= _WAITING_BYTES

    def add(self, audit: Audit) -> None:
        """Adds an answer that was just drawn; call it only if there is room."""
        self.on_drawn()
        if audit.monitored is not None:
            audit.monitored.record.drawn += 1
            self.certificates.save()
        if self.chain.available:
            self._waiting_bytes += audit.sent.size_bytes
            self._queue.put_nowait(audit)
        else:
            self._lose(audit, LinkDownError("No link to the gateway works at the moment."))

    async def run(self) -> None:
        """Audits the drawn answers, one at a time, until it is cancelled."""
        while True:
            audit = await self._queue.get()
            self._waiting_bytes -= audit.sent.size_bytes
            try:
                await self.traffic.wait_quiet()
                await self._ask(audit)
            except FirstlineError as error:
                self._lose(audit, error)
            except Exception as error:  # the outermost loop of a task that must never end
                log.exception("audit failed", request_id=audit.request_id)
                self._lose(audit, FirstlineError(f"The audit failed unexpectedly: {error!r}."))

    async def _ask(self, audit: Audit) -> None:
        manifest, attempts = audit.model.manifest, list[Attempt]()
        trace, started_s = tracing.begin(), self.clock.monotonic_s()
        sent = replace(audit.sent, alarm=self.certificates.alarm_of(audit.model), trace=trace)
        declared = manifest.outputs_of(manifest.full)
        response = await self.chain.infer(sent, self.clock.monotonic_s() + _TIMEOUT_S, attempts, declared)
        full = response.arrays_of(manifest.task.outputs)
        self.cache.put(result_key(audit.row.content, manifest.full_digest), ModelOutput(full))
        compared = Comparison.of(audit.model, audit.edge, full)
        # Reported before its result can raise an alarm: the certificate was valid when the note was sent.
        outcome = "agreed" if compared.agree else "disagreed"
        tracing.record("audit", trace, self.clock.monotonic_s() - started_s, own=True, outcome=outcome)
        self.on_ended(audit.ended(outcome, compared=compared))
        if audit.monitored is None:
            return
        sample = audit.monitored.sample(
            self.clock.wall_s(), audit.row.score, compared, audit.propensity, kept=audit.covered
        )
        notice = response.answer.contract if response.answer is not None else None
        self.certificates.count_fleet(audit.monitored, notice)  # before its result, which is tested at that level
        self.certificates.audited(audit.monitored, sample, threshold=audit.threshold)
        # After the audit's result: the notice may be due to this audit, and begins a test that must not count it.
        self.certificates.apply_notice(audit.monitored.model, notice)

    def _lose(self, audit: Audit, error: FirstlineError) -> None:
        if audit.monitored is not None:
            audit.monitored.record.unanswered += 1
            self.certificates.save()
        self.on_ended(audit.ended("lost", error.message))
