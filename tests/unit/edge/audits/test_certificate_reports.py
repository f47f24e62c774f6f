"""What the metrics show of the certificates."""

from types import SimpleNamespace
from typing import Any

from firstline_core.routing import audit
from firstline_core.routing.certificate import ALL_ROWS
from firstline_edge.audits.certificate_reports import register_metrics
from firstline_edge.audits.records import CertificateRecord, EventRecord


def monitored(**losses: int) -> SimpleNamespace:
    """A variant's certificate with the given number of losses of each event, one of them about all rows."""
    events = {ALL_ROWS: EventRecord(audit.begin(0.05), counted=99)}
    for name, count in losses.items():
        test = audit.begin(0.05)
        for _ in range(count):
            test = audit.update(test, 1.0)
        events[name] = EventRecord(test, counted=count)
    return SimpleNamespace(record=CertificateRecord(model="m", version="1", events=events))


def test_metrics_show_the_events_of_most_evidence() -> None:
    registered: dict[str, Any] = {}
    metrics: Any = SimpleNamespace(readings=lambda name, _description, _labels, read: registered.update({name: read}))
    variants: Any = [
        monitored(**{f"e{n}": n for n in range(1, 31)}),
        monitored(e1=40, **{f"f{n}": n for n in range(4)}),
    ]
    register_metrics(metrics, variants)
    found = registered["contract_event_audits"]()
    assert len(found) == 32
    assert found["m", "1", "e1"] == 40  # the variant with most evidence about it
    assert {("m", "1", name) for name in ("f0", "f1", ALL_ROWS)}.isdisjoint(found)
