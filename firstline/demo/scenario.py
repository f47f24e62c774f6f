"""The demo's scenario: requests online, the link cut, requests offline, the link restored, corrections."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firstline.demo import processes
from firstline.demo.site import Device, open_site
from firstline.demo.summary import Promise, Record, summarise
from firstline.workbench.dataset import open_dataset
from firstline.workbench.evaluate import Variant, evaluate
from firstline_core.bundle.manifest import Manifest, valid_certificate
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import FirstlineError
from firstline_core.types import Status

SEED = 20
OFFLINE_SHARE = 0.25
"""Of the images, kept back until the link is cut, so that no cache knows them."""
REPEAT_SHARE = 0.5
"""Of the online images, sent a second time, as cameras do."""
CALLERS = 2
CORRECTIONS_TIMEOUT_S = 60.0

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
        show: told the phase and every record so far, after each answer.

    Returns:
        See `summarise`.

    Raises:
        ConfigError: a process did not start.
    """
    bundle, dataset = open_bundle(folder / "bundle"), open_dataset(folder / "heldout")
    labels = bundle.manifest.labels
    job = Job(bundle.manifest.name, labels, [Image(content, labels[label]) for content, label in dataset.read()])
    records: list[Record] = []
    bytes_sent = 0
    show("measuring both models alone", records)
    alone = await asyncio.to_thread(evaluate, bundle, dataset)
    with tempfile.TemporaryDirectory(prefix="firstline-demo-") as scratch:
        async with open_site(Path(scratch), bundle.path, mosquitto=processes.mosquitto() is not None) as running:
            for transport in running.transports:
                async with running.device(transport) as device:
                    await _visit(device, job, records, show)
                    bytes_sent += device.wire.bytes_sent
    edge = alone.variants[0]
    return summarise(
        records,
        edge_only=edge.edge.accuracy,
        cloud_only=alone.full.accuracy if alone.full is not None else 0.0,
        promise=_promise(bundle.manifest, edge),
        bytes_sent=bytes_sent,
    )


def _promise(manifest: Manifest, variant: Variant) -> Promise:
    """Returns the variant's certificate, and its result on the images."""
    model = next(model for model in manifest.edge if model.id == variant.edge.id)
    certificate, tiered = valid_certificate(manifest, model), variant.tiered
    if tiered is None:
        return Promise("", 0, 0)
    disagreeing = round((tiered.disagreement or 0) * tiered.kept)
    return Promise(certificate.promise if certificate is not None else "", tiered.kept, disagreeing)


async def _visit(device: Device, job: Job, records: list[Record], show: Show) -> None:
    """One device's day. Its records join `records` as they are made."""
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
    tell: Callable[[], None],
    *,
    offline: bool = False,
) -> None:
    """Sends every image once, `CALLERS` at a time, in order."""
    waiting = iter(images)

    async def caller() -> None:
        for image in waiting:
            record = Record(image.truth, offline)
            start_s = time.perf_counter()
            try:
                said = await device.client.infer_file(model, image.content)
            except FirstlineError:
                records.append(record)  # without an answer: lost, and counted
                continue
            record.ms = (time.perf_counter() - start_s) * 1000
            record.label, record.request_id = said.label, said.answer.request_id
            record.tier, record.status = said.answer.tier, said.answer.status
            record.settled = record.status is Status.FINAL
            record.certified = record.last_certified = said.answer.certified
            records.append(record)
            tell()

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
