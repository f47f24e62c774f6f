"""Classifiers of sound and text: accuracy with the declared steps, next to what the data's README states."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import soundfile
import soxr

from bench.figures import Figure, near, plain
from firstline.workbench.bundle import create_bundle
from firstline.workbench.spec import read_recipe
from firstline_core.bundle.loading import load_model
from firstline_core.processing.trial import bytes_rows
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Arrays, join_rows

_WITHIN = 0.005
_RECIPES = Path(__file__).parents[2] / "models"


class References(NamedTuple):
    """Shares that the data's README states."""

    edge: float
    full: float
    agreement: float


def spoken_digits(data: Path) -> Iterator[Figure]:
    """Yields the accuracy on the spoken digits of `dev`, as they are and as FLAC at 44.1 kHz."""
    clips, labels = read_clips(data)
    yield from _figures("spoken-digits-cascade", data, clips, labels, References(0.917, 0.997, 0.920))
    again = [_as_flac(clip, 44_100) for clip in clips]
    for tier, answers in _answers("spoken-digits-cascade", data, again).items():
        yield plain(f"{tier}: accuracy on FLAC at 44.1 kHz", _accuracy(answers, labels), "share", 4)


def clinc(data: Path) -> Iterator[Figure]:
    """Yields the accuracy on the sentences of `dev` that have one of the intents."""
    with (data / "dev" / "labels.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    texts, labels = [row["text"].encode() for row in rows], [int(row["label"]) for row in rows]
    yield from _figures("clinc-cascade", data, texts, labels, References(0.870, 0.953, 0.845))


def read_clips(data: Path) -> tuple[list[bytes], list[int]]:
    """Returns the WAV files of `dev` and their labels."""
    with zipfile.ZipFile(data / "dev" / "audio.zip") as archive, (data / "dev" / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
        return [archive.read(row["file"]) for row in rows], [int(row["label"]) for row in rows]


def _figures(
    pair: str, data: Path, rows: Sequence[bytes], labels: Sequence[int], references: References
) -> Iterator[Figure]:
    answers = _answers(pair, data, rows)
    for tier, reference in (("edge", references.edge), ("full", references.full)):
        yield near(f"{tier}: accuracy", _accuracy(answers[tier], labels), reference, _WITHIN)
    same = _labels(answers["edge"]) == _labels(answers["full"])
    yield near("edge and full: same label", float(same.mean()), references.agreement, _WITHIN)


def _answers(pair: str, data: Path, rows: Sequence[bytes]) -> dict[str, Arrays]:
    """Returns the answers of both models of a recipe, by tier."""
    with TemporaryDirectory() as folder:
        bundle = create_bundle(read_recipe(_RECIPES / pair / "recipe.toml", data), Path(folder) / "bundle")
        found = {}
        for model in bundle.manifest.models:
            with closing(load_model(bundle, model, RuntimeOptions(threads=2))) as loaded:
                name = bundle.manifest.inputs[0].name
                parts = [loaded.predict({name: bytes_rows([row])}).outputs for row in rows]
            found["edge" if model in bundle.manifest.edge else "full"] = join_rows(parts)
    return found


def _labels(answers: Arrays) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.asarray(answers["probabilities"].argmax(axis=1))


def _accuracy(answers: Arrays, labels: Sequence[int]) -> float:
    known = np.asarray(labels) >= 0
    return float((_labels(answers) == labels)[known].mean())


def _as_flac(clip: bytes, rate_hz: int) -> bytes:
    samples, own_hz = soundfile.read(io.BytesIO(clip), dtype="float32")
    stream = io.BytesIO()
    soundfile.write(stream, soxr.resample(samples, own_hz, rate_hz), rate_hz, format="FLAC")
    return stream.getvalue()
