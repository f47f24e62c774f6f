"""The registry's metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from firstline_core.telemetry.metrics import RequestMetrics


def register(metrics: RequestMetrics, expiries: Callable[[], Mapping[str, float]]) -> None:
    """Adds the time at which each role's metadata, or the devices' authority, expires.

    Args:
        metrics: the gateway's.
        expiries: returns these times by role; empty if the gateway has no registry.
    """
    metrics.readings(
        "expiry_timestamp_seconds",
        "When the signed metadata of a role, or the devices' certificate authority, ends (Unix time).",
        ("role",),
        lambda: {(role,): end_s for role, end_s in expiries().items()},
    )
