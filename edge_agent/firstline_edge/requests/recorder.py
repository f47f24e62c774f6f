"""Records the agent's answers: counters, log lines and the decision log. Never a local_only request.

The agent counts and writes answers shortly after it sent them, several at a time: no caller waits, and many lines cost
little more than one. Reading the numbers counts pending answers first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from msgspec import Struct, structs

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.telemetry import tracing
from firstline_core.telemetry.decisions import DecisionLog, about
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.telemetry.statistics import ModelStatistics
from firstline_core.types import Answer, InferRequest, InferResponse, ModelVersion, Privacy, Status, Tier, TraceContext
from firstline_edge.requests.context import RequestContext, Row

_NAME = "firstline_edge"
log = logger(_NAME)

# A killed process loses at most the last 0.05 s or 32 answers.
_DELAY_S, _BATCH_LIMIT = 0.05, 32
_LOCAL_ONLY = Privacy.LOCAL_ONLY
_EDGE, _CACHE = Tier.EDGE, Tier.CACHE
_SPANS = {Tier.CACHE: "cache", Tier.EDGE: "model", Tier.CLOUD: "escalation"}
_NO_WAIT_S = (0.0,)
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class _Answered(Struct, frozen=True, eq=False):
    """A response that is not yet counted and written; `answer` is its description."""

    request: InferRequest
    response: InferResponse
    answer: Answer
    at_s: float
    seconds: float
    facts: Mapping[str, Any]
    rows: Sequence[Row]

    @property
    def ms(self) -> float:
        return round(self.seconds * 1000, 3)

    def record(self) -> dict[str, object]:
        """Returns the record for the decision log."""
        record = about(self.response, wall_s=self.at_s, ms=self.ms) | {"event": "answered", **self.facts}
        if any(row.answer is not None and row.answer.reason is not row.policy_reason for row in self.rows):
            record["policy_reasons"] = [row.policy_reason.value for row in self.rows]
        return record | _traced(self.request.trace)

    def count(self, statistics: ModelStatistics) -> None:
        """Counts the answer in Triton's statistics, with the runs of the edge model and cache hits of its attempts."""
        statistics.answered(self.seconds, self.at_s)
        hit = ran = False
        for attempt in self.answer.attempts:
            if attempt.outcome != "ok":
                continue
            if attempt.tier is _CACHE:
                hit = True
                statistics.cache_hit.add(attempt.ms / 1000)
            elif attempt.tier is _EDGE:
                ran = True
                statistics.ran(self.request.rows, attempt.ms / 1000, _NO_WAIT_S)
        if not hit:
            statistics.cache_miss.count += 1
        if not ran:
            statistics.queue.count += 1  # Triton counts answers from its cache in this way

    def trace(self, ago_s: float) -> None:
        """Records the spans of the request and its attempts: they end one after the other, the last with the answer."""
        trace = self.request.trace
        if not tracing.is_sampled(trace):
            return
        facts = {"version": self.response.version, **self._facts()}
        tracing.record("request", trace, self.seconds, ago_s=ago_s, own=True, **facts)
        for attempt in reversed(self.answer.attempts):
            seconds = attempt.ms / 1000
            tracing.record(_SPANS[attempt.tier], trace, seconds, ago_s=ago_s, outcome=attempt.outcome)
            ago_s += seconds

    def log(self) -> None:
        """Writes the log line."""
        log.info("answered", **self._facts(), rows=self.request.rows, ms=self.ms, **_traced(self.request.trace))

    def _facts(self) -> dict[str, str]:
        """Returns the fields that the log line and the span of an answer share."""
        answer = self.answer
        return {
            "request_id": answer.request_id,
            "model": self.response.model,
            "tier": answer.tier.value,
            "reason": answer.reason.value,
            "status": answer.status.value,
        }


def _traced(trace: TraceContext | None) -> dict[str, str]:
    return {} if trace is None else trace.facts()


class EndedAudit(Struct, frozen=True, eq=False):
    """How an audit of an answer ended.

    Args:
        model, version: of the audited bundle.
        outcome: agreed, disagreed or lost.
        record: fields of the decision log; JSON-able.
        loss: of the answer, in [0, 1]; 0 if the audit was lost.
        events: losses of the events that can occur in the answer.
    """

    model: str
    version: str
    outcome: str
    record: Mapping[str, object]
    loss: float = 0.0
    events: Mapping[str, float] = {}


class AnswerObserver(Protocol):
    """Counts the same answers shortly after the agent sent them; never gets a local_only request."""

    def answered(self, request: InferRequest, response: InferResponse, seconds: float, rows: Sequence[Row]) -> None:
        """Counts an answer, given this many seconds after its request."""

    def refused(self, request: InferRequest, version: str, error: FirstlineError, seconds: float) -> None:
        """Counts an error for a request to a model of this device."""

    def audited(self, ended: EndedAudit) -> None:
        """Counts an audit that has ended."""


@dataclass(eq=False, kw_only=True)
class Recorder:
    """Records each answer once.

    Args:
        decisions_path: the decision log.
        decisions_limit_bytes: of each of its two files.
        log_requests: whether to write a log line for each answer.
        observer: also counts the answers; None on a device that is not a member of a fleet.
    """

    metrics: RequestMetrics
    decisions_path: Path
    decisions_limit_bytes: int
    log_requests: bool
    clock: Clock
    observer: AnswerObserver | None = None
    _statistics: dict[ModelVersion, ModelStatistics] = field(default_factory=dict, init=False)
    _pending: list[_Answered | dict[str, object]] = field(default_factory=list, init=False)
    _disk_refuses: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._decisions = DecisionLog(self.decisions_path, self.decisions_limit_bytes)
        self._audits = self.metrics.counter(
            "audits_total", "Kept answers drawn for an audit, and how each of them ended.", ("outcome",)
        )

    def answered(
        self,
        request: InferRequest,
        response: InferResponse,
        seconds: float,
        facts: Mapping[str, Any] = _NOTHING,
        rows: Sequence[Row] = (),
    ) -> None:
        """Records an answer that the agent sent.

        Args:
            request: as the caller sent it.
            response: the answer.
            seconds: from arrival to answer.
            facts: further fields for the decision log; JSON-able.
            rows: of the request.
        """
        answer = response.answer
        if request.privacy is not _LOCAL_ONLY and answer is not None:
            self._add(_Answered(request, response, answer, self.clock.wall_s(), seconds, facts, rows))

    def refused(self, refused: RequestContext, version: str | None, error: FirstlineError, seconds: float) -> None:
        """Records a request that ended with an error.

        Args:
            refused: the request and its attempts.
            version: of its model; None if this device does not hold the model.
            error: the one that the caller gets.
            seconds: from arrival to error.
        """
        request = refused.request
        if request.privacy is _LOCAL_ONLY:
            return
        self.metrics.count_error(error)
        if version is not None:
            self._statistics_of(request.model, version).fail.add(seconds)
            if self.observer is not None:
                self.observer.refused(request, version, error, seconds)
        stage = {"tier": refused.tier and refused.tier.value, "reason": refused.reason and refused.reason.value}
        facts = {
            "request_id": request.request_id,
            "model": request.model,
            "code": error.code,
            **{key: value for key, value in stage.items() if value},
            "ms": round(seconds * 1000, 3),
            **_traced(request.trace),
        }
        tracing.record("request", request.trace, seconds, own=True, model=request.model, error=error.code)
        if self.log_requests:
            log.info("refused", **facts)
        self._add(
            {
                "at": self.clock.wall_s(),
                "event": "refused",
                "version": request.version,
                "error": error.message,
                "attempts": [structs.asdict(attempt) for attempt in refused.attempts],
                **facts,
            }
        )

    def corrected(self, response: InferResponse, cause: str = "", trace: TraceContext | None = None) -> None:
        """Records the end of a promise: corrected or expired; `cause` is why the gateway refuses the correction."""
        answer = response.answer
        if answer is None:
            return
        reason, traced = {"cause": cause} if cause else {}, _traced(trace)
        if answer.status is Status.EXPIRED:
            log.info("correction expired", request_id=answer.request_id, model=response.model, **reason, **traced)
        else:
            log.info("corrected", request_id=answer.request_id, model=response.model, changed=answer.changed, **traced)
        self._add(about(response, wall_s=self.clock.wall_s()) | {"event": "corrected"} | reason | traced)

    def damaged(self, request_id: str, model: str, version: str) -> None:
        """Records the end of a promise whose record in the outbox is damaged."""
        facts = {"request_id": request_id, "model": model, "version": version}
        self._add({"at": self.clock.wall_s(), "event": "damaged", **facts})

    def drawn(self) -> None:
        """Counts an edge answer that was drawn for an audit."""
        self._audits.labels("drawn").inc()

    def audited(self, ended: EndedAudit) -> None:
        """Records the end of an audit."""
        self._audits.labels(ended.outcome).inc()
        if self.observer is not None:
            self.observer.audited(ended)
        self._add({"at": self.clock.wall_s(), "event": "audited", **ended.record})

    def switched(self, facts: Mapping[str, object]) -> None:
        """Records the switch of a model's variant; `facts` name both variants and the reason."""
        self._add({"at": self.clock.wall_s(), "event": "switched", **facts})

    def close(self) -> None:
        """Writes pending records, and closes the decision log."""
        self.flush()
        self._decisions.close()

    def statistics(self, name: str, version: str) -> ModelStatistics:
        """Returns the statistics of one version of a model; zeros if it had no request yet."""
        self.flush()
        return self._statistics_of(name, version)

    def flush(self) -> None:
        """Counts and writes pending records."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        logs = self.log_requests and logging.getLogger(_NAME).isEnabledFor(logging.INFO)
        for entry in pending:
            if isinstance(entry, _Answered):
                self.metrics.observe(entry.response, entry.seconds, entry.request.trace)
                entry.count(self._statistics_of(entry.response.model, entry.response.version))
                if self.observer is not None:
                    self.observer.answered(entry.request, entry.response, entry.seconds, entry.rows)
                if logs:
                    entry.log()
                if tracing.active and entry.request.trace is not None:
                    entry.trace(max(0.0, self.clock.wall_s() - entry.at_s))
        try:
            self._decisions.append(*(entry.record() if isinstance(entry, _Answered) else entry for entry in pending))
        except OSError as error:  # a full disk must not stop answers; it is logged once
            if not self._disk_refuses:
                log.error("decision log not written", error=str(error))
            self._disk_refuses = True
        else:
            self._disk_refuses = False

    def _statistics_of(self, name: str, version: str) -> ModelStatistics:
        statistics = self._statistics.get((name, version))
        if statistics is None:
            statistics = self._statistics[name, version] = ModelStatistics(name, version)
        return statistics

    def _add(self, entry: _Answered | dict[str, object]) -> None:
        """Adds a pending record: the first starts the delay, and the one that fills the batch is written at once."""
        self._pending.append(entry)
        pending = len(self._pending)
        if pending == 1:
            asyncio.get_running_loop().call_later(_DELAY_S, self.flush)
        elif pending == _BATCH_LIMIT:
            self.flush()
