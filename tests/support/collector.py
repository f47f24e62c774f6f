"""An OpenTelemetry collector that keeps the spans which it receives by OTLP over HTTP."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.http_answers import answering


@dataclass(frozen=True)
class Span:
    """A span, with ids in hexadecimal; `parent_id` is "" for a span without a parent."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    begins_s: float
    ends_s: float
    attributes: dict[str, str]


@dataclass
class Collector:
    """What has arrived, and the address of the collector."""

    endpoint: str
    spans: list[Span] = field(default_factory=list)

    def of_trace(self, trace_id: str) -> dict[str, list[str]]:
        """The names of a trace's spans by service, sorted."""
        found: dict[str, list[str]] = {}
        for span in self.spans:
            if span.trace_id == trace_id:
                found.setdefault(span.service, []).append(span.name)
        return {service: sorted(names) for service, names in found.items()}

    def one(self, trace_id: str, service: str, name: str) -> Span:
        (found,) = (
            span for span in self.spans if (span.trace_id, span.service, span.name) == (trace_id, service, name)
        )
        return found

    def receive(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            (service,) = (
                each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
            )
            for scope in resource.scope_spans:
                self.spans += [
                    Span(
                        service,
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.start_time_unix_nano / 1e9,
                        span.end_time_unix_nano / 1e9,
                        {each.key: each.value.string_value for each in span.attributes},
                    )
                    for span in scope.spans
                ]


@contextmanager
def collector() -> Iterator[Collector]:
    """Runs one on a free loopback port."""

    def answer(path: str, headers: Message, body: bytes) -> tuple[int, dict[str, str], bytes]:
        assert path == "/v1/traces"
        found.receive(gzip.decompress(body) if headers["Content-Encoding"] == "gzip" else body)
        return 200, {}, b""

    with answering(answer) as url:
        found = Collector(url)
        yield found
