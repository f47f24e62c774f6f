"""A bundle that promises something, and devices that audit it."""

import dataclasses
import shutil
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from support.event_certificates import about_events
from support.gateway import DIGITS

from bench.support.bundles import with_certificate
from firstline_core.bundle.manifest import MANIFEST_NAME, Score, encode_manifest, parse_manifest
from firstline_core.ids import new_request_id
from firstline_core.routing.certificate import Certificate
from firstline_core.tasks.detection import BOXES, CLASSES, COUNT, SCORES, Detection
from firstline_core.types import DATATYPES, PROBABILITIES, Array, AuditNote, InferRequest, Tensor
from firstline_gateway.contracts.monitor import ContractMonitor
from firstline_gateway.models.repository import ServedModel

DETECTOR = Detection(("person", "car"), k=2)
EVENTS = {"missed person": 0.05, "invented person": 0.1, "missed car": 0.2}
"""What a certified detector promises."""
THRESHOLD = 0.9
EPSILON = 0.05
"""What audits test; the certificates bound another loss by another number."""
EVERY_ANSWER: dict[str, Any] = {
    "audit__per_hour": 1e7,
    "audit__bytes_per_hour": 1e12,
    "audit__max_share": 1.0,
    "audit__spacing_s": 0,
}
"""Settings of a device that audits every answer of its own."""


def settled(monitor: ContractMonitor) -> Future[None]:
    """Completes when earlier answers are counted; fails with CapacityError if the store refuses."""
    return monitor.store.submit_then(lambda _: None, lambda _: None, writes=False)


def certified_digits(folder: Path, version: int = 1) -> Path:
    """The digits bundle with another certificate for its first two edge variants, and none for the third."""
    return certify_digits(folder / f"digits-{version}", variants=2, version=version)


def uncertified_digits(folder: Path) -> Path:
    """The digits bundle without its certificates."""
    return certify_digits(folder / "uncertified", variants=0)


def certify_digits(target: Path, *, variants: int, **fields: Any) -> Path:
    """Copies the digits bundle, with these fields and with a certificate for its first edge variants only."""
    shutil.copytree(DIGITS, target)
    manifest = msgspec.structs.replace(parse_manifest((target / MANIFEST_NAME).read_bytes()), **fields)
    promise = {"contract": "harm", "epsilon": 0.045, "audit_epsilon": EPSILON}
    edge = [with_certificate(variant, manifest, THRESHOLD, **promise) for variant in manifest.edge[:variants]]
    bare = (msgspec.structs.replace(variant, certificate=None) for variant in manifest.edge[variants:])
    manifest = msgspec.structs.replace(manifest, edge=(*edge, *bare))
    (target / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    return target


def certified_detector(served: ServedModel, events: Mapping[str, float] = EVENTS) -> ServedModel:
    """A served model whose manifest is that of a detector with promises about events."""
    manifest = served.manifest
    policy = msgspec.structs.replace(manifest.policy, score=Score("product"))
    manifest = msgspec.structs.replace(manifest, task=DETECTOR, policy=policy)
    edge = (with_certificate(manifest.edge[0], manifest, THRESHOLD, **about_events(events)),)
    return dataclasses.replace(served, manifest=msgspec.structs.replace(manifest, edge=edge))


def objects(*labels: str) -> dict[str, Array]:
    """Outputs of a detector that finds these objects side by side in one row."""
    found = {spec.name: np.zeros((1, *spec.shape[1:]), DATATYPES[spec.datatype]) for spec in DETECTOR.outputs}
    found[CLASSES][:] = -1
    for place, label in enumerate(labels):
        found[BOXES][0, place] = (100 * place, 0, 100 * place + 50, 90)
        found[SCORES][0, place] = 0.9
        found[CLASSES][0, place] = DETECTOR.labels.index(label)
    found[COUNT][:] = len(labels)
    return found


def certificate_of(served: ServedModel, variant: int = 0) -> Certificate:
    return served.manifest.edge[variant].certificate


def note_of(served: ServedModel, variant: int = 0, **changes: object) -> AuditNote:
    """What a device says that accepted an edge answer, and audits one in ten."""
    certificate = certificate_of(served, variant)
    note = AuditNote(
        propensity=0.1,
        epsilon=max(certificate.audit_bounds.values(), default=EPSILON),
        threshold=certificate.threshold,
        edge_digest=certificate.edge_digest,
        events=certificate.audit_bounds if certificate.events else {},
    )
    return msgspec.structs.replace(note, **changes)


def request_from(device: str, note: AuditNote | None = None, label: int = 3, **changes: object) -> InferRequest:
    """One 8x8 picture from a device, as an audit of this edge answer where there is a note."""
    image = Tensor("image", np.zeros((1, 8, 8, 1), np.uint8))
    request = InferRequest("digits", (image,), new_request_id(), principal=device and f"device:{device}")
    if note is not None:
        outputs = {PROBABILITIES: np.eye(10, dtype=np.float32)[[label]]}
        request = msgspec.structs.replace(request, audit=note, edge_outputs=outputs)
    return msgspec.structs.replace(request, **changes)
