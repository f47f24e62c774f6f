"""Shows the states of the certificates in `status` and in metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from firstline_core.routing import audit, drift
from firstline_core.routing.certificate import ALL_ROWS
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.telemetry.wording import iso_time
from firstline_edge.audits.certificate_states import CertificateStates, MonitoredCertificate
from firstline_edge.audits.records import EventRecord
from firstline_edge.models.models import DeviceModel

_EVENTS_SHOWN = 32


def describe(certificates: CertificateStates, model: DeviceModel) -> dict[str, object] | None:
    """Returns the state of the model's certificate for `status`; None if audits can test none."""
    monitored = certificates.find(model)
    if monitored is None:
        return None
    record, state, index = monitored.record, monitored.record.state, monitored.stability_index()
    return {
        "alarm": state.is_void,
        "cause": state.cause or None,
        "since": iso_time(state.void_since_wall_s).replace("+00:00", "Z") if state.is_void else None,
        "tightened": state.tightened,
        "escalates_all": state.escalates_all,
        "escalations_per_hour": certificates.quota_per_hour(monitored) if state.is_void else None,
        "epsilon": max(monitored.bounds.values()),
        "e_value": record.e_value,
        "alarm_at": 1 / certificates.level(monitored),
        "events": {
            name: {
                "epsilon": monitored.bounds[name],
                "counted": each.counted,
                "lost": each.occurred,
                "e_value": audit.e_value(each.test),
            }
            for name, each in record.events.items()
            if name != ALL_ROWS
        },
        "audits": {
            "drawn": record.drawn,
            "agreed": record.agreed,
            "disagreed": record.disagreed,
            "lost": record.unanswered,
        },
        "drift": None if index is None else {"index": round(index, 4), "word": drift.size_word(index)},
    }


def register_metrics(metrics: RequestMetrics, certificates: CertificateStates) -> None:
    """Registers alarms, evidence and drift by model and version."""
    by_contract: Mapping[str, tuple[str, Callable[[MonitoredCertificate], float | None]]] = {
        "contract_alarm": ("1 where a certificate is void.", lambda each: float(each.record.state.is_void)),
        "contract_e_value": (
            "Evidence of the audits against a certificate, 1 at the beginning.",
            lambda each: each.record.e_value,
        ),
        "score_drift": (
            "Population stability index of the latest scores against the certificate's, beyond chance.",
            MonitoredCertificate.stability_index,
        ),
    }
    for name, (description, of) in by_contract.items():
        metrics.readings(name, description, ("model", "version"), partial(_by_contract, certificates, of))
    by_event: Mapping[str, tuple[str, Callable[[EventRecord], float]]] = {
        "contract_event_audits": ("Audits in which the event can occur.", lambda each: each.counted),
        "contract_event_e_value": (
            "Evidence of the audits against the promise about an event.",
            lambda each: audit.e_value(each.test),
        ),
    }
    for name, (description, read) in by_event.items():
        metrics.readings(name, description, ("model", "version", "event"), partial(_by_event, certificates, read))


def _by_contract(
    certificates: CertificateStates, of: Callable[[MonitoredCertificate], float | None]
) -> dict[tuple[str, ...], float]:
    """Returns the worst value of each model's variants."""
    found: dict[tuple[str, ...], float] = {}
    for monitored in certificates:
        labels, value = (monitored.record.model, monitored.record.version), of(monitored)
        if value is not None:
            found[labels] = max(value, found.get(labels, value))
    return found


def _by_event(certificates: CertificateStates, read: Callable[[EventRecord], float]) -> dict[tuple[str, ...], float]:
    """Returns the values of each model's events; of a model with many events, of those with most evidence."""
    found: dict[tuple[str, ...], float] = {}
    shown = Counter[tuple[str, str]]()
    tested = [(each.record, *event) for each in certificates for event in each.record.events.items()]
    for record, event, tests in sorted(tested, key=lambda one: audit.e_value(one[2].test), reverse=True):
        labels = (record.model, record.version, event)
        if event != ALL_ROWS and labels not in found and shown[record.model, record.version] < _EVENTS_SHOWN:
            found[labels] = read(tests)
            shown[record.model, record.version] += 1
    return found
