"""The fields of certificates about events."""

from collections.abc import Mapping
from typing import Any

from firstline_core.routing.certificate import EventPromise


def about_events(bounds: Mapping[str, float]) -> dict[str, Any]:
    """Returns the fields of a certificate about events, by the promised share of each."""
    promises = {name: EventPromise(bound, 0.1, 300, 0.8, bound) for name, bound in bounds.items()}
    epsilon = max(bounds.values())
    return {"contract": "events", "epsilon": epsilon, "risk_upper": epsilon, "audit_epsilon": None, "events": promises}
