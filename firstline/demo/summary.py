"""Reduces the demo's requests to the printed summary. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from firstline_core.types import Status, Tier

KINDS = ("edge", "cache", "cloud", "provisional")


class Promise(NamedTuple):
    """The certificate of the device's model, and the result on the demo's images.

    Attributes:
        says: the certificate in words; "" without one.
        kept: of the images, each asked once, how many are kept.
        disagreeing: of these, for how many the full model says another label.
    """

    says: str
    kept: int
    disagreeing: int


@dataclass(slots=True)
class Record:
    """One request as its caller saw it.

    Attributes:
        truth: the label of the image.
        offline: it was sent while the link was cut.
        label: of the first answer, or None where none came.
        ms: time to the first answer, measured at the caller.
        last_label: of the correction, once it came.
        settled: nothing better will come: the first answer was final, or its correction arrived.
        certified: the first answer was.
        last_certified: the last one is.
    """

    truth: str
    offline: bool
    label: str | None = None
    tier: Tier | None = None
    status: Status | None = None
    request_id: str = ""
    ms: float = 0.0
    last_label: str | None = None
    settled: bool = False
    certified: bool = False
    last_certified: bool = False

    @property
    def kind(self) -> str:
        """The tier of the first answer: one of `KINDS`, or "lost"."""
        if self.tier is None:
            return "lost"
        return "provisional" if self.status is Status.PROVISIONAL else self.tier.value


def percentiles_ms(times_ms: Iterable[float]) -> dict[str, float | None]:
    """p50 and p99 in milliseconds; None where there is nothing to measure."""
    times = np.fromiter(times_ms, dtype=np.float64)
    if not times.size:
        return {"p50": None, "p99": None}
    p50, p99 = np.percentile(times, [50, 99])
    return {"p50": round(float(p50), 3), "p99": round(float(p99), 3)}


def accuracy(records: Iterable[Record]) -> float:
    """Share of requests whose last answer is the image's label; an unanswered one counts as wrong."""
    right = [(record.last_label or record.label) == record.truth for record in records]
    return sum(right) / len(right) if right else 0.0


def summarise(
    records: list[Record], *, edge_only: float, cloud_only: float, promise: Promise, bytes_sent: int
) -> dict[str, Any]:
    """The summary, also the demo's JSON.

    Args:
        records: every request.
        edge_only: accuracy of the edge model alone, measured on the same images.
        cloud_only: accuracy of the full model alone, likewise.
        promise: the certified variant.
        bytes_sent: bytes that the device sent over the link.

    Returns:
        `lost` counts requests without any answer, and promised corrections that did not come.
    """
    promised = [record for record in records if record.kind == "provisional"]
    return {
        "requests": len(records),
        "answers": {kind: sum(record.kind == kind for record in records) for kind in KINDS},
        "accuracy": {
            "edge_only": round(edge_only, 4),
            "cloud_only": round(cloud_only, 4),
            "tiered": round(accuracy(records), 4),
        },
        "latency_ms": {kind: percentiles_ms(record.ms for record in records if record.kind == kind) for kind in KINDS},
        "certified": {
            "at_first": sum(record.certified for record in records),
            "at_last": sum(record.last_certified for record in records),
            "promise": promise.says,
            "images": {"kept": promise.kept, "disagreeing": promise.disagreeing},
        },
        "bytes_sent": bytes_sent,
        "offline": {
            "answered": sum(record.offline and record.tier is not None for record in records),
            "corrected": sum(record.offline and record.settled for record in promised),
        },
        "lost": sum(not record.settled for record in records),
    }
