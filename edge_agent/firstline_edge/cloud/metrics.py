"""Metrics of the links to the gateway."""

from __future__ import annotations

from firstline_core.telemetry.metrics import RequestMetrics
from firstline_edge.cloud.client import CloudClient
from firstline_edge.cloud.links import Links


def register_metrics(metrics: RequestMetrics, links: Links, client: CloudClient) -> None:
    """Registers availability and times of the links, retries, and requests that were held back."""
    metrics.gauge("link_available", "1 while a link to a gateway may be used.", lambda: float(links.available))
    metrics.readings(
        "link_seconds",
        "How long a link's calls take of late, for payloads of the usual size.",
        ("link", "part", "quantile"),
        lambda: _link_seconds(links),
    )
    metrics.readings(
        "retries_total",
        "What was asked again after a failure, and what the budget did not allow to be.",
        ("outcome",),
        lambda: _retries(links),
        counts=True,
    )
    metrics.readings(
        "held_back_total",
        "Requests that would hardly have been answered in time: held back, or asked all the same to learn.",
        ("outcome",),
        lambda: {("held_back",): client.punctuality.held_back, ("explored",): client.punctuality.explored},
        counts=True,
    )


def _link_seconds(links: Links) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for link, timing in links.timings().items():
        for part in ("total", "network", "service"):
            for quantile, field in (("0.5", f"{part}_p50_ms"), ("0.95", f"{part}_p95_ms")):
                ms = getattr(timing, field, None)
                if ms is not None:
                    found[link, part, quantile] = ms / 1000
    return found


def _retries(links: Links) -> dict[tuple[str, ...], float]:
    chain = links.chain
    return {("allowed",): chain.retries.retries, ("denied",): chain.retries.denied} if chain is not None else {}
