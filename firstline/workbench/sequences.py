"""Signs that the samples of a data set depend on each other: names, times in names, copies, near-identical images."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.data.dataset import IMAGES, Dataset
from firstline.workbench.data.sample import Sample
from firstline_core.errors import RequestError
from firstline_core.processing.images import decode
from firstline_core.processing.steps import Decode

_FRAME = re.compile(r"(?i)^(.*?(?:^|[^a-z])(?:frames?|frm|clip|video|cam(?:era)?))[-_. ]?\d+\.\w+$")
_TIME = re.compile(r"(?<!\d)((?:19|20)\d{6})[-_T ]?(\d{6})(?!\d)")
_CLOSE_S = 10.0
_MOST = 0.5  # share of the names that must look like it
_SIDE = 16
_BLOCK, _BLOCKS = 25, 8
_NEAR = 0.25  # of the usual difference of two images
_NEAR_SHARE = 0.2
_COPIED_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Sequences:
    """The reason to believe that samples depend on each other.

    Attributes:
        sign: as the subject of a sentence, in the plural.
        effective: the number of samples that are probably independent.
    """

    sign: str
    effective: int


def find_sequences(dataset: Dataset) -> Sequences | None:
    """Returns the strongest sign of dependent samples; None for data that names its clusters, and without a sign.

    All files are compared for copies, at most 200 images for their looks, in eight blocks of neighbours by name.

    Raises:
        ConfigError: a file cannot be read.
    """
    if dataset.clusters or len(dataset) < 2 or dataset.media is None:
        return None
    samples = sorted(dataset.samples, key=lambda sample: _natural(sample.file))
    found = (_by_name(samples), _by_time(samples), _by_copy(dataset), _by_image(dataset, samples))
    return min((sign for sign in found if sign is not None), key=lambda sign: sign.effective, default=None)


def _natural(name: str) -> list[tuple[int, str]]:
    """Returns a key that sorts "frame 9" before "frame 10"."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _by_name(samples: Sequence[Sample]) -> Sequences | None:
    prefixes = [match[1] for sample in samples if (match := _FRAME.match(sample.file))]
    if len(prefixes) <= _MOST * len(samples) or len(set(prefixes)) == len(prefixes):
        return None
    others = len(samples) - len(prefixes)
    return Sequences(f"names such as '{samples[0].file}'", len(set(prefixes)) + others)


def _by_time(samples: Sequence[Sample]) -> Sequences | None:
    times_s = sorted(_times(samples))
    if len(times_s) <= _MOST * len(samples):
        return None
    close = int((np.diff(times_s) <= _CLOSE_S).sum())
    if close <= _MOST * len(times_s):
        return None
    return Sequences(f"times in names, often within {_CLOSE_S:.0f} seconds,", len(samples) - close)


def _times(samples: Sequence[Sample]) -> Iterator[float]:
    for sample in samples:
        if match := _TIME.search(sample.file):
            try:
                yield datetime.strptime(f"{match[1]} {match[2]} +0000", "%Y%m%d %H%M%S %z").timestamp()
            except ValueError:  # digits that are no time
                continue


def _by_copy(dataset: Dataset) -> Sequences | None:
    different = len({hashlib.sha256(content).digest() for content in dataset.contents()})
    if different > (1 - _COPIED_SHARE) * len(dataset):
        return None
    return Sequences("files that are copies of others", different)


def _by_image(dataset: Dataset, samples: Sequence[Sample]) -> Sequences | None:
    """Compares neighbours by name: in independent data they are as different as any two images."""
    if not samples[0].file.lower().endswith(IMAGES):
        return None
    starts = np.unique(np.linspace(0, max(len(samples) - _BLOCK, 0), _BLOCKS).astype(int))
    places = np.unique(np.concatenate([np.arange(start, min(start + _BLOCK, len(samples))) for start in starts]))
    some = replace(dataset, samples=tuple(samples[place] for place in places.tolist()))
    found = [_thumbnail(content) for content in some.contents()]
    readable = np.array([thumbnail is not None for thumbnail in found])
    if readable.sum() < 3:
        return None
    places, pictures = places[readable], np.stack([picture for picture in found if picture is not None])
    beside = np.diff(places) == 1
    usual = np.median(_difference(pictures, pictures[np.random.default_rng(0).permutation(len(pictures))]))
    near = (_difference(pictures[:-1], pictures[1:]) <= _NEAR * usual) & beside
    share = near.sum() / max(beside.sum(), 1)
    if usual == 0 or share < _NEAR_SHARE:
        return None
    return Sequences("neighbours by name that are nearly identical", max(round(len(samples) * (1 - share)), 1))


def _thumbnail(content: bytes) -> NDArray[np.float32] | None:
    """Returns the brightness of a small image, (256,); None for an image that cannot be decoded."""
    try:
        image = decode(content, Decode("L"), "image")
    except RequestError:
        return None
    return np.asarray(image.resize((_SIDE, _SIDE)), np.float32).ravel()


def _difference(some: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float32]:
    mean: NDArray[np.float32] = np.abs(some - others).mean(axis=1)
    return mean
