"""What the agent says of its answers: counters, log lines and the decision log. Never of a local_only request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import structs

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.telemetry.decisions import DecisionLog
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import InferRequest, InferResponse, Privacy, Status
from firstline_edge.audits.drawn import Finding
from firstline_edge.case import Trail

log = logger("firstline_edge")


class Recorder:
    """Tells each answer once, to everyone who may know.

    Args:
        decisions_path: the decision log.
        decisions_limit_bytes: of each of its two files.
        log_requests: one log line for each answer.
    """

    def __init__(
        self,
        *,
        metrics: RequestMetrics,
        decisions_path: Path,
        decisions_limit_bytes: int,
        log_requests: bool,
        clock: Clock,
    ) -> None:
        self._metrics = metrics
        self._decisions = DecisionLog(decisions_path, decisions_limit_bytes)
        self._log_requests = log_requests
        self._clock = clock
        self._disk_refuses = False
        self._audits = metrics.counter(
            "audits_total", "Kept answers drawn for an audit, and how each of them ended.", ("outcome",)
        )

    def answered(
        self,
        request: InferRequest,
        response: InferResponse,
        seconds: float,
        *,
        cause: str = "",
        wait: str = "",
        **routing: Any,
    ) -> None:
        """An answer went out.

        Args:
            request: what was asked.
            response: the answer.
            seconds: from arrival to answer.
            cause: why it stands in for the full model's.
            wait: what the caller asked for.
            **routing: JSON-able; what it was held against, for the decision log alone.
        """
        answer = response.answer
        if request.privacy is Privacy.LOCAL_ONLY or answer is None:
            return
        self._metrics.observe(response, seconds)
        ms = round(seconds * 1000, 3)
        if self._log_requests:
            log.info(
                "answered",
                request_id=answer.request_id,
                model=response.model,
                tier=answer.tier.value,
                reason=answer.reason.value,
                status=answer.status.value,
                rows=request.rows,
                ms=ms,
            )
        known = {"cause": cause, "wait": wait}
        told = {key: value for key, value in known.items() if value}
        self._decide("answered", response, ms=ms, **told, **routing)

    def refused(self, request: InferRequest, error: FirstlineError, trail: Trail, seconds: float) -> None:
        """A request got an error instead."""
        if request.privacy is Privacy.LOCAL_ONLY:
            return
        self._metrics.error(error)
        known = {"tier": trail.tier and trail.tier.value, "reason": trail.reason and trail.reason.value}
        facts = {
            "request_id": request.request_id,
            "model": request.model,
            "code": error.code,
            **{key: value for key, value in known.items() if value},
            "ms": round(seconds * 1000, 3),
        }
        if self._log_requests:
            log.info("refused", **facts)
        self._write(
            lambda: self._decisions.append(
                {
                    "at": self._clock.wall_s(),
                    "event": "refused",
                    "version": request.version,
                    "error": error.message,
                    "attempts": [structs.asdict(attempt) for attempt in trail.attempts],
                    **facts,
                }
            )
        )

    def corrected(self, response: InferResponse, cause: str = "") -> None:
        """A promise was kept, or ended as expired; `cause` is why the gateway will not keep it."""
        answer = response.answer
        if answer is None:
            return
        told = {"cause": cause} if cause else {}
        if answer.status is Status.EXPIRED:
            log.info("correction expired", request_id=answer.request_id, model=response.model, **told)
        else:
            log.info("corrected", request_id=answer.request_id, model=response.model, changed=answer.changed)
        self._decide("corrected", response, **told)

    def drawn(self) -> None:
        """A kept answer is to be audited."""
        self._audits.labels("drawn").inc()

    def audited(self, finding: Finding) -> None:
        """An audit has ended."""
        audit = finding.audit
        self._audits.labels(finding.outcome).inc()
        told = {"cause": finding.cause} if finding.cause else {}
        self._write(
            lambda: self._decisions.append(
                {
                    "at": self._clock.wall_s(),
                    "event": "audited",
                    "request_id": audit.request_id,
                    "audit_id": audit.sent.request_id,
                    "model": audit.sent.model,
                    "version": audit.sent.version,
                    "row": audit.position,
                    "score": audit.score,
                    "propensity": audit.propensity,
                    "outcome": finding.outcome,
                    **told,
                }
            )
        )

    def clear(self) -> list[Path]:
        """Begins the decision log anew; returns the files that are still to be erased.

        Raises:
            OSError: the disk refuses.
        """
        return self._decisions.clear()

    def close(self) -> None:
        self._decisions.close()

    def _decide(self, event: str, response: InferResponse, **facts: Any) -> None:
        self._write(lambda: self._decisions.write(response, wall_s=self._clock.wall_s(), event=event, **facts))

    def _write(self, line: Callable[[], None]) -> None:
        try:
            line()
        except OSError as error:  # a full disk must not stop answers; it is told once
            if not self._disk_refuses:
                log.error("cannot write the decision log", error=str(error))
            self._disk_refuses = True
        else:
            self._disk_refuses = False
