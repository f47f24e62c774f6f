"""Metrics of the certificates in the field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from firstline_core.routing import audit
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_edge.audits.certificate_states import CertificateStates
from firstline_edge.audits.watched import Watched


def register_metrics(metrics: RequestMetrics, certificates: CertificateStates) -> None:
    """Registers alarms, evidence and drift by model and version."""
    by_contract: Mapping[str, tuple[str, Callable[[Watched], float | None]]] = {
        "contract_alarm": ("1 where the audits broke a certificate.", lambda watched: float(watched.record.alarmed)),
        "contract_e_value": (
            "Evidence of the audits against a certificate, 1 at the beginning.",
            lambda watched: audit.e_value(watched.record.test),
        ),
        "score_drift": (
            "Population stability index of the latest scores against the certificate's, beyond chance.",
            lambda watched: watched.stability_index(),
        ),
    }
    for name, (description, of) in by_contract.items():
        metrics.readings(name, description, ("model", "version"), partial(_by_contract, certificates, of))


def _by_contract(
    certificates: CertificateStates, of: Callable[[Watched], float | None]
) -> dict[tuple[str, ...], float]:
    """Returns the worst value of each model's variants."""
    found: dict[tuple[str, ...], float] = {}
    for watched in certificates:
        labels, value = (watched.record.model, watched.record.version), of(watched)
        if value is not None:
            found[labels] = max(value, found.get(labels, value))
    return found
