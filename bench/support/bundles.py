"""Bundles from model files, made on the fly."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from firstline_core.bundle.manifest import MANIFEST_NAME, Manifest, Model, encode_manifest
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.processing.steps import InputSpec, ModelInput, PreStep
from firstline_core.routing.certificate import Certificate
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks.classification import Classification


def artefact(path: Path, root: Path) -> Artefact:
    """Names a file under `root` as a manifest does."""
    content = path.read_bytes()
    return Artefact(str(path.relative_to(root)), hashlib.sha256(content).hexdigest(), len(content))


def model(path: Path, root: Path, *, preprocess: tuple[PreStep, ...] = (), tensor: str = "", **fields: Any) -> Model:
    """A model with one input, or with given `inputs`; `write_manifest` names the bundle's only input for it."""
    runtime = "tflite" if path.suffix == ".tflite" else "onnx"
    defaults: dict[str, Any] = {
        "id": path.stem,
        "artefact": artefact(path, root),
        "runtime": runtime,
        "precision": "fp32",
        "inputs": (ModelInput("image", tensor, preprocess),),
    }
    return Model(**defaults | fields)


def write_manifest(root: Path, edge: Sequence[Model], labels: Sequence[str], **fields: Any) -> Bundle:
    defaults: dict[str, Any] = {
        "name": "small",
        "version": 1,
        "task": fields.get("task") or Classification(tuple(labels)),
        "inputs": (InputSpec("image", "BYTES", (-1,), "image"),),
        "edge": tuple(edge),
    }
    defaults |= fields
    defaults["edge"] = tuple(fed_by(variant, defaults["inputs"]) for variant in defaults["edge"])
    if defaults.get("full") is not None:
        defaults["full"] = fed_by(defaults["full"], defaults["inputs"])
    manifest = Manifest(**defaults)
    (root / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    return open_bundle(root)


def fed_by(variant: Model, inputs: Sequence[InputSpec]) -> Model:
    """The model with one input, which takes the bundle's only one; others as they are."""
    if len(inputs) > 1 or len(variant.inputs) > 1:
        return variant
    return msgspec.structs.replace(variant, inputs=(msgspec.structs.replace(variant.inputs[0], name=inputs[0].name),))


def with_certificate(variant: Model, manifest: Manifest, threshold: float = 0.9, **fields: Any) -> Model:
    """The variant with a certificate for the manifest's full model and score."""
    variant = fed_by(variant, manifest.inputs)
    defaults: dict[str, Any] = {
        "contract": "disagreement",
        "epsilon": 0.05,
        "delta": 0.1,
        "threshold": threshold,
        "n": 300,
        "kept": 0.8,
        "risk_upper": 0.04,
        "edge_digest": variant.digest,
        "full_digest": manifest.full_digest or "0" * 64,
        "score_digest": manifest.score_digest(manifest.policy.score),
        "audit_epsilon": 0.05,
    }
    if fields.get("by") or fields.get("events"):
        defaults["labels_digest"] = manifest.labels_digest
    return msgspec.structs.replace(variant, certificate=Certificate(**defaults | fields))
