"""The demo's scenario and summary: requests online, the link cut, requests offline, the link restored, corrections."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from firstline.client.results import Classification
from firstline.demo.site import Device, mosquitto, open_site
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.evaluate import Variant, evaluate
from firstline_core.bundle.manifest import Manifest, valid_certificate
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import FirstlineError
from firstline_core.tasks.arrays import LABEL
from firstline_core.types import Status, Tier

KINDS = ("edge", "cache", "cloud", "provisional")
SEED = 20
OFFLINE_SHARE = 0.25
"""Of the images, kept back until the link is cut, so that no cache knows them."""
REPEAT_SHARE = 0.5
"""Of the online images, sent a second time, as cameras do."""
CALLERS = 2
CORRECTIONS_TIMEOUT_S = 60.0


class CertifiedResult(NamedTuple):
    """The certificate of the device's model, and the result on the demo's images.

    Attributes:
        promise: the certificate in words; "" without one.
        accepted: number of images whose edge answer is accepted.
        disagreeing: number of these for which the full model gives another label.
    """

    promise: str
    accepted: int
    disagreeing: int


@dataclass(slots=True)
class Record:
    """One request, as its caller sees it.

    Attributes:
        truth: the label of the image.
        offline: it was sent while the link was cut.
        sent_s: when it was sent, on the caller's monotonic clock.
        label: of the first answer; None without an answer.
        ms: time to the first answer, measured at the caller.
        last_label: of the correction; None before it arrives.
        settled: whether the first answer was final, or its correction has arrived.
        certified: whether the first answer was certified.
        last_certified: whether the latest answer is certified.
    """

    truth: str
    offline: bool
    sent_s: float
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
    """Returns p50 and p99 in milliseconds; None without values."""
    times = np.fromiter(times_ms, dtype=np.float64)
    if not times.size:
        return {"p50": None, "p99": None}
    p50, p99 = np.percentile(times, [50, 99])
    return {"p50": round(float(p50), 3), "p99": round(float(p99), 3)}


def accuracy(records: Iterable[Record]) -> float:
    """Returns the share of requests whose latest answer is right; a missing answer counts as wrong."""
    right = [(record.last_label or record.label) == record.truth for record in records]
    return sum(right) / len(right) if right else 0.0


def summarise(
    records: list[Record], *, edge_only: float, cloud_only: float, certified: CertifiedResult, bytes_sent: int
) -> dict[str, Any]:
    """Returns the summary, which is also the demo's JSON.

    Args:
        records: every request.
        edge_only: accuracy of the edge model alone, measured on the same images.
        cloud_only: accuracy of the full model alone on the same images.
        certified: the certificate and its result.
        bytes_sent: bytes that the device sent over the link.

    Returns:
        `lost` counts requests without any answer, and promised corrections that did not come.
    """
    provisional = [record for record in records if record.kind == "provisional"]
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
            "promise": certified.promise,
            "images": {"kept": certified.accepted, "disagreeing": certified.disagreeing},
        },
        "bytes_sent": bytes_sent,
        "offline": {
            "answered": sum(record.offline and record.tier is not None for record in records),
            "corrected": sum(record.offline and record.settled for record in provisional),
        },
        "lost": sum(not record.settled for record in records),
    }


Show = Callable[[str, Sequence[Record]], None]


@dataclass(frozen=True, slots=True)
class Image:
    content: bytes
    truth: str


@dataclass(frozen=True, slots=True)
class Job:
    """A request to a device: labels for these images, from this model."""

    model: str
    labels: Sequence[str]
    images: Sequence[Image]


async def run(folder: Path, *, show: Show) -> dict[str, Any]:
    """Runs the whole demo.

    Args:
        folder: holds `bundle/` and `heldout/`.
        show: receives the phase and all records after each answer.

    Returns:
        See `summarise`.

    Raises:
        ConfigError: a process did not start.
    """
    bundle, dataset = open_bundle(folder / "bundle"), open_dataset(folder / "heldout")
    labels = bundle.manifest.labels
    truth = dataset.required_truth(bundle.manifest.task)[LABEL].tolist()
    images = [Image(content, labels[label]) for content, label in zip(dataset.contents(), truth, strict=True)]
    job = Job(bundle.manifest.name, labels, images)
    records: list[Record] = []
    bytes_sent = 0
    show("measuring both models alone", records)
    alone = await asyncio.to_thread(evaluate, bundle, dataset)
    with tempfile.TemporaryDirectory(prefix="firstline-demo-") as scratch:
        async with open_site(Path(scratch), bundle, mosquitto=mosquitto() is not None) as running:
            for transport in running.ports:
                async with running.device(transport) as device:
                    await _visit(device, job, records, show)
                    bytes_sent += device.wire.bytes_sent
    edge = alone.variants[0]
    return summarise(
        records,
        edge_only=edge.edge.quality[alone.quality],
        cloud_only=alone.full.quality[alone.quality] if alone.full is not None else 0.0,
        certified=_certified(bundle.manifest, edge),
        bytes_sent=bytes_sent,
    )


def _certified(manifest: Manifest, variant: Variant) -> CertifiedResult:
    """Returns the variant's certificate, and its result on the images."""
    model = next(model for model in manifest.edge if model.id == variant.edge.id)
    certificate, tiered = valid_certificate(manifest, model), variant.tiered
    if tiered is None:
        return CertifiedResult("", 0, 0)
    disagreeing = round((tiered.disagreement or 0) * tiered.kept)
    return CertifiedResult(certificate.promise if certificate is not None else "", tiered.kept, disagreeing)


async def _visit(device: Device, job: Job, records: list[Record], show: Show) -> None:
    """Runs the scenario for one device, and appends its records to `records`."""
    rng = random.Random(SEED)  # noqa: S311 (order of traffic, nothing secret)
    shuffled = rng.sample(job.images, len(job.images))
    cut = round(len(job.images) * OFFLINE_SHARE)
    offline, online = shuffled[:cut], shuffled[cut:]
    traffic = online + rng.sample(online, round(len(online) * REPEAT_SHARE))
    name = device.transport.upper()

    first = len(records)
    await _send(device, traffic, job.model, records, lambda: show(f"{name}: online", records))
    await device.wire.cut()
    await _send(device, offline, job.model, records, lambda: show(f"{name}: the link is cut", records), offline=True)
    await device.wire.restore()
    for record in records[first:]:
        if record.status is Status.PROVISIONAL:
            await _correct(device, record, job.labels)
            show(f"{name}: the link is back, corrections arrive", records)


async def _send(
    device: Device,
    images: Sequence[Image],
    model: str,
    records: list[Record],
    report: Callable[[], None],
    *,
    offline: bool = False,
) -> None:
    """Sends every image once, `CALLERS` at a time, in order."""
    waiting = iter(images)

    async def caller() -> None:
        for image in waiting:
            record = Record(image.truth, offline, time.perf_counter())
            try:
                prediction = await device.client.infer_file(model, image.content)
            except FirstlineError:
                records.append(record)  # without an answer: lost, and counted
                continue
            record.ms = (time.perf_counter() - record.sent_s) * 1000
            record.label = prediction.label if isinstance(prediction, Classification) else ""
            record.request_id = prediction.answer.request_id
            record.tier, record.status = prediction.answer.tier, prediction.answer.status
            record.settled = record.status is Status.FINAL
            record.certified = record.last_certified = prediction.answer.certified
            records.append(record)
            report()

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


async def _correct(device: Device, record: Record, labels: Sequence[str]) -> None:
    """Waits for the promised correction of one answer."""
    try:
        corrected = await device.client.wait_for_final(record.request_id, timeout_s=CORRECTIONS_TIMEOUT_S)
    except FirstlineError:
        return
    if corrected.answer is not None and corrected.answer.status is Status.FINAL:
        record.last_label = labels[int(corrected.output("probabilities")[0].argmax())]
        record.last_certified = corrected.answer.certified
        record.settled = True
