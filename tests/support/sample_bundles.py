"""Bundles that tests use, made from small models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from support.laborious import laborious
from support.sample_models import average_colours, one_box

from bench.support.bundles import model, with_certificate, write_manifest
from bench.support.onnx_models import linear
from firstline_core.bundle.manifest import Policy, Score
from firstline_core.bundle.store import Bundle
from firstline_core.processing.steps import (
    BoxRows,
    Decode,
    InputSpec,
    Layout,
    PostStep,
    Resize,
    Scale,
    Softmax,
    Suppress,
)
from firstline_core.tasks.detection import Detection

IMAGES = InputSpec("image", "BYTES", (-1,), "image")


COLOURS = ("red", "green", "blue")


NUMBERS = InputSpec("x", "FP32", (-1, 2))


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


def detector_bundle(
    root: Path, *post: PostStep, size: tuple[Any, Any] = (8, 16), background: Any = msgspec.UNSET, **fields: Any
) -> Bundle:
    """A bundle of a detector that always finds one dog, and is as sure of it as the image is bright."""
    path = one_box(root / "boxes.onnx", size=size)
    steps = (Decode("BGR", background), Resize(16, 8, letterbox="center"), Scale(), Layout("NCHW"))
    variant = model(path, root, id="edge", preprocess=steps, postprocess=post or (BoxRows(), Suppress(0.3)))
    defaults: dict[str, Any] = {
        "task": Detection(("cat", "dog"), k=2),
        "full": msgspec.structs.replace(variant, id="full"),
        "policy": Policy(Score("minimum_confidence"), 0.4),
    }
    return write_manifest(root, [variant], (), **defaults | fields)


def number_bundle(root: Path, **fields: Any) -> Bundle:
    """Two numbers in, their softmax out."""
    path = linear(root / "m.onnx", np.eye(2, dtype=np.float32))
    return write_manifest(root, [model(path, root, postprocess=(Softmax(),))], ["a", "b"], inputs=(NUMBERS,), **fields)


class Labour(NamedTuple):
    """The number of products of `width` x `width`, and the share of rows that its certificate keeps."""

    rounds: int
    kept: float
    width: int = 256


VARIANTS = {"large": Labour(400, 0.9), "medium": Labour(60, 0.8), "small": Labour(0, 0.6)}
"""Of `variant_bundle`: slow and quick ones."""


HEAVY = {"large": Labour(1, 0.9, 5376), "medium": Labour(1, 0.8, 3072), "small": Labour(0, 0.6)}
"""Large and small ones: 110, 36 and less than 1 MiB of weights."""


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
    defaults: dict[str, Any] = {
        "full": full,
        "inputs": (NUMBERS,),
        "policy": Policy(Score("max_probability"), 0.9),
    } | fields
    bundle = write_manifest(root, edge, ["a", "b"], **defaults)
    if not certified:
        return bundle
    edge = [
        with_certificate(variant, bundle.manifest, 0.9, kept=labours[variant.id].kept)
        for variant in bundle.manifest.edge
    ]
    return write_manifest(root, edge, ["a", "b"], **defaults)
