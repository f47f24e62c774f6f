"""Spans for OpenTelemetry, exported by OTLP over HTTP; off by default.

A span is recorded when it ends, with its duration. Nothing is allocated before, so a process that exports nothing, or a
request that is not sampled, costs a comparison. The caller's decision is respected (W3C Trace Context); a request
without a trace begins one with the configured probability. Spans have names, times and short attributes, no payload.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from firstline_core.errors import ConfigError
from firstline_core.telemetry.logs import logger
from firstline_core.types import TraceContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import SpanContext

_SAMPLED, _RANDOM = 0x01, 0x02
_TIMEOUT_S = 2.0
_CLOSE_S = 5.0  # a batch may end after `_TIMEOUT_S`, and the collector's answer may take any time
_ANSWER_BYTES = 65_536
_SCHEDULE_MS = 1000.0

log = logger(__name__)

active = False
"""Whether this process exports spans."""
_exporter: _Exporter | None = None


class _Sender:
    """Sends spans to the collector, for OpenTelemetry's processor. A failure is logged once until it sends again.

    Args:
        exporter: OpenTelemetry's.
        failure: its result of a failure.

    Attributes:
        until_s: monotonic time after which it drops spans.
    """

    def __init__(self, exporter: Any, failure: object) -> None:
        self._exporter = exporter
        self._failure = failure
        self._fails = False
        self.until_s = math.inf

    def export(self, spans: Sequence[Any]) -> object:
        """Sends spans, and returns the exporter's result; a collector that does not answer costs these spans."""
        if time.monotonic() > self.until_s:
            return self._failure
        result = self._exporter.export(spans)
        fails = result is self._failure
        if fails and not self._fails:
            log.warning("spans not exported; see tracing.endpoint")
        elif self._fails and not fails:
            log.info("spans exported again")
        self._fails = fails
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _leave_long_answer(response: Any, **_: object) -> None:
    """Closes the connection of a collector whose answer has no length or is long; its status is enough."""
    length = response.headers.get("Content-Length", "")
    if not length.isdecimal() or int(length) > _ANSWER_BYTES:
        response.close()


class _Exporter:
    """Converts spans for OpenTelemetry's SDK, and hands them to its thread.

    Args:
        service: name of the service.
        instance: name of this process among those of the service; "" for none.
        endpoint: URL of the collector, without `/v1/traces`.
        sample: share of requests without a trace that begin one.
    """

    def __init__(self, service: str, instance: str, endpoint: str, sample: float) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import ReadableSpan
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
            from opentelemetry.trace import SpanContext, TraceFlags
            from requests import Session  # OpenTelemetry's exporter needs it
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"tracing.endpoint is set, but the package '{error.name}' is not installed; install firstline[otel]."
            ) from error
        self.sample = sample
        self._span, self._context, self._flags = ReadableSpan, SpanContext, TraceFlags(TraceFlags.SAMPLED)
        self._resource = Resource({"service.name": service, **({"service.instance.id": instance} if instance else {})})
        url = f"{endpoint.rstrip('/')}/v1/traces"
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it logs each try; `_Sender` logs changes
        session = Session()
        session.stream = True  # the hook decides whether the answer's body is read
        session.hooks["response"].append(_leave_long_answer)
        self._sender = _Sender(OTLPSpanExporter(url, timeout=_TIMEOUT_S, session=session), SpanExportResult.FAILURE)
        self._processor: BatchSpanProcessor = BatchSpanProcessor(
            self._sender,  # type: ignore[arg-type]
            schedule_delay_millis=_SCHEDULE_MS,
        )

    def close(self) -> None:
        """Sends what is recorded; starts no further batch after `_TIMEOUT_S`, and ends after `_CLOSE_S`."""
        self._sender.until_s = time.monotonic() + _TIMEOUT_S
        ending = threading.Thread(target=self._processor.shutdown, daemon=True)
        ending.start()
        ending.join(_CLOSE_S)

    def export(
        self, name: str, trace: TraceContext, *, own: bool, end_s: float, seconds: float, attributes: Mapping[str, str]
    ) -> None:
        """Exports one span; see `record`."""
        span_id, parent_id = (trace.span_id, trace.parent_id) if own else (_new_id(64), trace.span_id)
        self._processor.on_end(
            self._span(
                name,
                context=self._place(trace, span_id),
                parent=self._place(trace, parent_id) if parent_id else None,
                resource=self._resource,
                attributes={key: value for key, value in attributes.items() if value},
                start_time=int((end_s - seconds) * 1e9),
                end_time=int(end_s * 1e9),
            )
        )

    def _place(self, trace: TraceContext, span_id: str) -> SpanContext:
        return self._context(int(trace.trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=self._flags)


def configure(service: str, endpoint: str, sample: float, *, instance: str = "") -> None:
    """Exports the spans of this process from now on; call it once, before the first request.

    Args:
        service: name of the service.
        endpoint: URL of an OTLP collector (HTTP), without `/v1/traces`; "" exports nothing.
        sample: share of requests without a trace that begin one, 0 to 1.
        instance: name of this process among those of the service; "" for none.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    global active, _exporter
    if endpoint:
        _exporter, active = _Exporter(service, instance, endpoint, sample), True


def close() -> None:
    """Exports what is recorded, for a few seconds at most, and ends the export."""
    global active, _exporter
    exporter, _exporter, active = _exporter, None, False
    if exporter is not None:
        exporter.close()


def begin() -> TraceContext | None:
    """Returns the first span of a new trace; None if it is not sampled, or nothing is exported."""
    if _exporter is None or random.random() >= _exporter.sample:  # noqa: S311 (to guess it gains nothing)
        return None
    return TraceContext(_new_id(128), _new_id(64), "", _SAMPLED | _RANDOM)


def is_sampled(trace: TraceContext | None) -> bool:
    """Returns whether the spans of a trace are exported."""
    return _exporter is not None and trace is not None and bool(trace.flags & _SAMPLED)


def record(
    name: str, trace: TraceContext | None, seconds: float, *, ago_s: float = 0.0, own: bool = False, **attributes: str
) -> None:
    """Records a span that has ended; without effect if its trace is not exported.

    Args:
        name: of the span.
        trace: of the request on this tier.
        seconds: duration of the span.
        ago_s: seconds since its end.
        own: whether it is this tier's span of the request; otherwise it is a child of that span.
        attributes: short facts, without payload; empty ones are left out.
    """
    if _exporter is None or trace is None or not trace.flags & _SAMPLED:
        return
    end_s = time.time() - ago_s
    _exporter.export(name, trace, own=own, end_s=end_s, seconds=seconds, attributes=attributes)


def _new_id(bits: int) -> str:
    return f"{random.getrandbits(bits) or 1:0{bits // 4}x}"
