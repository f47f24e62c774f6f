"""Bundles from model files, made on the fly."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from firstline_core.bundle.artefact import Artefact
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


def encode(pixels: NDArray[Any], kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def images(*encoded: bytes, name: str = "image") -> Tensor:
    array = np.empty(len(encoded), object)
    array[:] = encoded
    return Tensor(name, array)
