"""Bundles from model files, made on the fly."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from firstline_core.bundle.artefact import Artefact
from firstline_core.bundle.certificate import Certificate
from firstline_core.bundle.manifest import MANIFEST_NAME, InputSpec, Manifest, Model, encode_manifest
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.types import Tensor

IMAGES = InputSpec("image", "BYTES", (-1,))


def artefact(path: Path, root: Path) -> Artefact:
    """Names a file under `root` as a manifest does."""
    content = path.read_bytes()
    return Artefact(str(path.relative_to(root)), hashlib.sha256(content).hexdigest(), len(content))


def model(path: Path, root: Path, **fields: Any) -> Model:
    runtime = "tflite" if path.suffix == ".tflite" else "onnx"
    return Model(
        **{"id": path.stem, "artefact": artefact(path, root), "runtime": runtime, "precision": "fp32"} | fields
    )


def write_manifest(root: Path, edge: Sequence[Model], labels: Sequence[str], **fields: Any) -> Bundle:
    manifest = Manifest(
        **{"name": "small", "version": 1, "labels": tuple(labels), "input": IMAGES, "edge": tuple(edge)} | fields
    )
    (root / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    return open_bundle(root)


def with_certificate(variant: Model, manifest: Manifest, threshold: float = 0.9, **fields: Any) -> Model:
    """The variant with a certificate for the manifest's full model and score."""
    known: dict[str, Any] = {
        "contract": "disagreement",
        "epsilon": 0.05,
        "delta": 0.1,
        "threshold": threshold,
        "n": 300,
        "kept": 0.8,
        "risk_upper": 0.04,
        "edge_digest": variant.digest,
        "full_digest": manifest.full_digest or "0" * 64,
        "score_digest": manifest.policy.score.digest,
        "audit_epsilon": 0.05,
    }
    return msgspec.structs.replace(variant, certificate=Certificate(**known | fields))


def encode(pixels: NDArray[Any], kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def images(*encoded: bytes, name: str = "image") -> Tensor:
    array = np.empty(len(encoded), object)
    array[:] = encoded
    return Tensor(name, array)
