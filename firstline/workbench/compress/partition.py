"""Splits a data set into three disjoint parts: to make candidates, to judge them, and to certify them.

Calibration, sensitivity, training and the judge choose by their rows. A certificate is valid only on rows that chose
nothing; they do choose which certified candidate is first, for which `trial.proved` compensates.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import numpy as np

from firstline.workbench.dataset import LABELS_NAME, Dataset, Sample
from firstline_core.errors import ConfigError

SHARES = (0.5, 0.2, 0.3)
LEAST_ROWS = 20


@dataclass(frozen=True, slots=True)
class Parts:
    """Each in the data set's order.

    Attributes:
        make: for calibration, sensitivity and training; its labels are not used.
        judge: for accuracy.
        certify: for certificates.
    """

    make: Dataset
    judge: Dataset
    certify: Dataset


def split_data(dataset: Dataset, seed: int = 0) -> Parts:
    """Splits at random, reproducibly for a seed.

    Raises:
        ConfigError: a part has fewer than 20 images; an image occurs twice, by name or content, or cannot be read.
    """
    count = len(dataset)
    cuts = np.cumsum([round(share * count) for share in SHARES[:-1]])
    parts = np.split(np.random.default_rng(seed).permutation(count), cuts)
    if min(map(len, parts)) < LEAST_ROWS:
        raise ConfigError(
            f"{dataset.folder} has {count} images; each of three parts needs {LEAST_ROWS} at least, so give "
            f"{int(LEAST_ROWS / min(SHARES))} or more."
        )
    _refuse_copies(dataset)
    make, judge, certify = (
        replace(dataset, samples=tuple(dataset.samples[position] for position in sorted(part))) for part in parts
    )
    return Parts(make, judge, certify)


def _refuse_copies(dataset: Dataset) -> None:
    """A copy in another part would judge or certify its own effect; in the same part it would count twice."""
    once = "an image may be in one of the three parts only, so name each once"
    lines = dict[PurePosixPath, int]()
    for sample in dataset.samples:
        if (first := lines.setdefault(PurePosixPath(sample.file), sample.line)) != sample.line:
            raise ConfigError(f"{_named(dataset, sample)}, as line {first} does; {once}.")
    seen = dict[bytes, Sample]()
    for sample, (encoded, _) in zip(dataset.samples, dataset.read(), strict=True):
        known = seen.setdefault(hashlib.sha256(encoded).digest(), sample)
        if known is not sample:
            raise ConfigError(
                f"{_named(dataset, sample)}, which is byte for byte '{known.file}' of line {known.line}; {once}."
            )


def _named(dataset: Dataset, sample: Sample) -> str:
    return f"{dataset.folder / LABELS_NAME}:{sample.line} names '{sample.file}'"
