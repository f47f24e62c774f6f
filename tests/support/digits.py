"""Scans of the digits data set, and what both models of its bundle answer."""

import shutil
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from support.gateway import DIGITS
from support.images import by_name, images

from firstline.workbench.data.dataset import open_dataset
from firstline_core.bundle.loading import load_edge, load_model, load_scorer
from firstline_core.bundle.manifest import MANIFEST_NAME, encode_manifest
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import PROBABILITIES, Array

HELDOUT = DIGITS.parent / "heldout"


@cache
def scans(count: int) -> tuple[bytes, ...]:
    """Returns `count` held-out scans, as PNG."""
    return tuple(open_dataset(HELDOUT, count).contents())


def scan() -> bytes:
    return scans(1)[0]


def few_scans(folder: Path, count: int) -> Path:
    """Writes a data set of the first held-out scans into a folder."""
    folder.mkdir()
    (folder / "images.zip").symlink_to(HELDOUT / "images.zip")
    labels = (HELDOUT / "labels.csv").read_text().splitlines(keepends=True)
    (folder / "labels.csv").write_text("".join(labels[: count + 1]))
    return folder


class Predictions(NamedTuple):
    """Answers to scans, row by row.

    Attributes:
        contents: the scans.
        edge: probabilities of the edge model, (rows, 10).
        full: probabilities of the full model, (rows, 10).
        scores: of the edge model's answers, (rows,).
        sure: whether the bundle's threshold accepts the edge model's answer, (rows,).
    """

    contents: tuple[bytes, ...]
    edge: Array
    full: Array
    scores: Array
    sure: Array

    @property
    def surest(self) -> bytes:
        return self.contents[int(self.scores.argmax())]

    @property
    def least_sure(self) -> bytes:
        return self.contents[int(self.scores.argmin())]


@cache
def predictions(count: int) -> Predictions:
    bundle, options, contents = open_bundle(DIGITS), RuntimeOptions(), scans(count)
    edge, full = load_edge(bundle, options), load_model(bundle, bundle.manifest.full, options)
    rows = images(*contents)
    on_edge, in_full = edge.predict(by_name(rows)), full.predict(by_name(rows))
    scores = np.asarray(load_scorer(bundle, options)(on_edge.outputs, on_edge.evidence))
    edge.close()
    full.close()
    return Predictions(
        contents,
        on_edge.outputs[PROBABILITIES],
        in_full.outputs[PROBABILITIES],
        scores,
        scores >= bundle.manifest.policy.threshold,
    )


def digits_bundle(folder: Path, version: int) -> Bundle:
    """Copies the bundle under another version."""
    shutil.copytree(DIGITS, folder)
    manifest = msgspec.structs.replace(open_bundle(folder).manifest, version=version)
    (folder / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    return open_bundle(folder)
