"""One trace from an application to the full model: in the lines and spans of both tiers, whatever carries it."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.collector import Collector, collector
from support.digits import scans
from support.line import line

from firstline.client.sync_client import Client
from firstline.demo.site import LinkKind
from firstline_core.telemetry import decisions
from firstline_core.types import Answer, InferResponse, Status
from firstline_edge.state import StatePaths

JSON = {"FIRSTLINE_EDGE_LOG__FORMAT": "json", "FIRSTLINE_GATEWAY_LOG__FORMAT": "json"}
CALLER = "b7ad6b7169203331"
PATIENT_MS = 60_000.0
DEVICE, GATEWAY = "firstline-edge", "firstline-gateway"


def lines_of(log: Path) -> dict[str, list[dict[str, Any]]]:
    """What a process said of each of our traces, by the trace's id."""
    found: dict[str, list[dict[str, Any]]] = {}
    for text in log.read_text().splitlines():
        if text.startswith("{") and (trace_id := (record := json.loads(text)).get("trace_id")):
            found.setdefault(trace_id, []).append(record)
    return found


@pytest.mark.parametrize("transport", ["http", pytest.param("mqtt", marks=pytest.mark.mosquitto)])
def test_trace_is_logged_by_both_tiers(tmp_path: Path, transport: LinkKind) -> None:
    escalated, kept, private = (f"{number:032x}" for number in range(1, 4))
    contents = scans(150)
    with (
        collector() as exported,
        line(tmp_path, transport=transport, environ=JSON | _exporting_to(exported)) as running,
        Client(running.agent.url, timeout_s=60) as client,
        Client(running.gateway.url, token=running.gateway.token, timeout_s=60) as direct,
    ):

        def ask(trace_id: str, content: bytes = contents[0], to: Client = client, **wishes: Any) -> Answer:
            parent = f"00-{trace_id}-{CALLER}-01"
            return to.infer_file("digits", content, traceparent=parent, timeout_ms=PATIENT_MS, **wishes).answer

        request_id = ask(escalated, route="cloud", tracestate="vendor=1").request_id
        ask(kept, route="edge")
        ask(private, privacy="local_only")
        ask(escalated, to=direct)
        client.infer_file("digits", contents[0], route="cloud", timeout_ms=PATIENT_MS)
        running.cut()
        for number, content in enumerate(contents, start=100):  # until the small model is not sure of one
            promised = ask(deferred := f"{number:032x}", content, wait="first")
            if promised.status is Status.PROVISIONAL:
                break
        running.restore()
        final = client.wait_for_final(promised.request_id, timeout_s=60)
    agent, gateway = lines_of(running.agent.log), lines_of(running.gateway.log)

    assert {escalated, kept} < set(agent) and private not in agent
    assert [(record["event"], record["request_id"]) for record in agent[escalated]] == [("answered", request_id)]
    assert {record["request_id"] for record in gateway[escalated]} >= {request_id}
    spans = [record["span_id"] for record in agent[escalated] + gateway[escalated]]
    assert len({*spans, CALLER}) == 4, "the caller, the device and each request to the gateway are spans of their own"
    assert kept not in gateway and private not in gateway
    _check_deferred(agent.get(deferred, []), gateway.get(deferred, []), final)
    _check_spans(exported, escalated, kept, deferred)
    assert not exported.of_trace(private) and {span.trace_id for span in exported.spans} <= {
        f"{n:032x}" for n in range(1, 300)
    }

    log = StatePaths(tmp_path / f"state-agent-{transport}").decisions_path
    decision = decisions.find(log, request_id)
    assert [(each["trace_id"], each["span_id"]) for each in decision] == [(escalated, agent[escalated][0]["span_id"])]


def _exporting_to(spans: Collector) -> dict[str, str]:
    """Spans of the traces that the caller samples, and of no others."""
    settings = {"ENDPOINT": spans.endpoint, "SAMPLE": "0"}
    return {
        f"FIRSTLINE_{tier}_TRACING__{key}": value for tier in ("EDGE", "GATEWAY") for key, value in settings.items()
    }


def _check_spans(spans: Collector, escalated: str, kept: str, deferred: str) -> None:
    """Each tier's span is the parent of its other spans, and the device's of the gateway's."""
    answered = ["batch", "execute", "queue", "request"]
    assert spans.of_trace(kept) == {DEVICE: ["model", "request"]}
    assert spans.of_trace(escalated) == {DEVICE: ["escalation", "request"], GATEWAY: sorted(2 * answered)}
    request = spans.one(escalated, DEVICE, "request")
    assert request.parent_id == CALLER
    parents = [span.parent_id for span in spans.spans if (span.trace_id, span.service) == (escalated, GATEWAY)]
    assert {request.span_id, CALLER} < set(parents)  # the device asked once, and the test once itself
    found = spans.of_trace(deferred)
    assert set(found[DEVICE]) >= {"correction", "model", "outbox", "request"} and set(found[GATEWAY]) == set(answered)
    promised, corrected = spans.one(deferred, DEVICE, "request"), spans.one(deferred, DEVICE, "correction")
    assert corrected.parent_id == promised.span_id and corrected.ends_s >= promised.ends_s
    allowed = {"error", "executor", "model", "outcome", "reason", "request_id", "rows", "status", "tier", "version"}
    assert {key for span in spans.spans for key in span.attributes} <= allowed


def _check_deferred(agent: list[dict[str, Any]], gateway: list[dict[str, Any]], final: InferResponse) -> None:
    """Its promise was kept later, in the same trace."""
    assert final.answer.status is Status.FINAL
    assert {record["event"] for record in agent} == {"answered", "corrected"}
    assert len(agent) == 2, "answers are written down a moment later, so the order is either"
    assert len({record["span_id"] for record in agent}) == 1
    assert {record["request_id"] for record in agent + gateway} == {final.answer.request_id}
    assert gateway
