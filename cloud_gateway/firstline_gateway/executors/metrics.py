"""Metrics of the executors: their servers, batches and pace."""

from __future__ import annotations

from collections.abc import Callable

from firstline_core.telemetry.metrics import RequestMetrics
from firstline_gateway.executors.base import ExecutionReport


def register(metrics: RequestMetrics, report: Callable[[], ExecutionReport]) -> None:
    """Registers the metrics of the executors.

    Args:
        metrics: the registry of the gateway.
        report: returns the current report; called for each scrape.
    """
    metrics.readings(
        "server_up",
        "1 while a server that runs models gets batches; on a Ray cluster, the replicas.",
        ("server",),
        lambda: report().up,
    )
    metrics.readings(
        "server_batches_total",
        "Batches that a server had, by outcome.",
        ("server", "outcome"),
        lambda: report().batches,
    )
    metrics.readings(
        "server_repeats_total",
        "Batches that were sent to one more server, and why.",
        ("why",),
        lambda: report().repeats,
    )

    metrics.readings(
        "executor_up",
        "1 while an executor, of several, gets batches; 0 while it is away or ejected.",
        ("executor",),
        lambda: {(each.name,): float(each.up) for each in report().executors},
    )
    metrics.readings(
        "executor_batches_total",
        "Batches that an executor had, by outcome.",
        ("executor", "outcome"),
        lambda: {
            (each.name, outcome): float(count) for each in report().executors for outcome, count in each.batches.items()
        },
    )
    metrics.readings(
        "executor_under_way",
        "Batches that an executor has.",
        ("executor",),
        lambda: {(each.name,): float(each.under_way) for each in report().executors},
    )
    metrics.readings(
        "executor_pace",
        "Present batch times as a multiple of the usual ones there: 1 as usual, 3 three times as long.",
        ("executor", "model", "version"),
        lambda: {(each.name, one.model, one.version): one.pace for each in report().executors for one in each.paces},
    )
