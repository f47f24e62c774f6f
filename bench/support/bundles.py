"""Bundles from model files, made on the fly."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.support.onnx_models import average_colours, laborious, linear
from firstline_core.bundle.manifest import MANIFEST_NAME, Manifest, Model, Policy, Score, encode_manifest
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.processing.steps import Decode, InputSpec, Layout, Resize, Scale, Softmax
from firstline_core.routing.certificate import Certificate
from firstline_core.storage.artefact import Artefact

IMAGES = InputSpec("image", "BYTES", (-1,))
COLOURS = ("red", "green", "blue")
NUMBERS = InputSpec("x", "FP32", (-1, 2))


def artefact(path: Path, root: Path) -> Artefact:
    """Names a file under `root` as a manifest does."""
    content = path.read_bytes()
    return Artefact(str(path.relative_to(root)), hashlib.sha256(content).hexdigest(), len(content))


def model(path: Path, root: Path, **fields: Any) -> Model:
    runtime = "tflite" if path.suffix == ".tflite" else "onnx"
    known: dict[str, Any] = {
        "id": path.stem,
        "artefact": artefact(path, root),
        "runtime": runtime,
        "precision": "fp32",
    }
    return Model(**known | fields)


def write_manifest(root: Path, edge: Sequence[Model], labels: Sequence[str], **fields: Any) -> Bundle:
    known: dict[str, Any] = {
        "name": "small",
        "version": 1,
        "labels": tuple(labels),
        "input": IMAGES,
        "edge": tuple(edge),
    }
    manifest = Manifest(**known | fields)
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


def solid(channel: int, size: int = 6) -> NDArray[np.uint8]:
    """Pixels of one colour, (size, size, 3)."""
    pixels = np.zeros((size, size, 3), np.uint8)
    pixels[:, :, channel] = 255
    return pixels


def colour_bundle(root: Path, *, size: int | str = 4, labels: tuple[str, ...] = COLOURS, resize: bool = True) -> Bundle:
    """Images in, how much of each colour they have as probabilities out."""
    path = average_colours(root / "colours.onnx", size=size)
    steps = (Decode(), *((Resize(4, 4),) if resize else ()), Scale(), Layout("NCHW"))
    return write_manifest(root, [model(path, root, preprocess=steps, postprocess=(Softmax(),))], labels)


def number_bundle(root: Path, **fields: Any) -> Bundle:
    """Two numbers in, their softmax out."""
    path = linear(root / "m.onnx", np.eye(2, dtype=np.float32))
    return write_manifest(root, [model(path, root, postprocess=(Softmax(),))], ["a", "b"], input=NUMBERS, **fields)


class Labour(NamedTuple):
    """So many products of `width` x `width`, and the share of rows that its certificate keeps."""

    rounds: int
    kept: float
    width: int = 256


VARIANTS = {"large": Labour(400, 0.9), "medium": Labour(60, 0.8), "small": Labour(0, 0.6)}
"""Of `variant_bundle`: slow and quick ones."""

HEAVY = {"large": Labour(1, 0.9, 6144), "medium": Labour(1, 0.8, 3072), "small": Labour(0, 0.6)}
"""Large and small ones: 144, 36 and less than 1 MiB of weights."""


def variant_bundle(
    root: Path, *names: str, labours: Mapping[str, Labour] = VARIANTS, certified: bool = True, **fields: Any
) -> Bundle:
    """Two numbers in, their softmax out, by edge variants that say the same and take ever less time; all by default."""
    full = model(laborious(root / "full.onnx", rounds=1), root, output="probabilities")
    edge = [
        model(
            laborious(root / f"{name}.onnx", rounds=labours[name].rounds, width=labours[name].width),
            root,
            output="probabilities",
        )
        for name in names or labours
    ]
    known: dict[str, Any] = {"full": full, "input": NUMBERS, "policy": Policy(Score("max_probability"), 0.9)} | fields
    bundle = write_manifest(root, edge, ["a", "b"], **known)
    if not certified:
        return bundle
    edge = [
        with_certificate(variant, bundle.manifest, 0.9, kept=labours[variant.id].kept)
        for variant in bundle.manifest.edge
    ]
    return write_manifest(root, edge, ["a", "b"], **known)
