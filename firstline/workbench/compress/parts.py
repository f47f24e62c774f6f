"""Three parts of a data set that have no image in common: one to make a candidate, one to judge it, one to certify it.

Calibration, sensitivity and training choose, and so does the judge. A certificate holds on rows that had no part in
either; which of several certified candidates goes first they do choose, for which `trial.proved` makes up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import numpy as np

from firstline.workbench.dataset import LABELS_NAME, Dataset
from firstline_core.errors import ConfigError

SHARES = (0.5, 0.2, 0.3)
LEAST_ROWS = 20


@dataclass(frozen=True, slots=True)
class Parts:
    """Each in the data set's order.

    Attributes:
        make: calibrates, finds what must not be quantised, trains; labels do not count.
        judge: accuracy is measured on it.
        certify: certificates are made on it.
    """

    make: Dataset
    judge: Dataset
    certify: Dataset


def parted(dataset: Dataset, seed: int = 0) -> Parts:
    """Draws the parts at random, the same ones for the same seed.

    Raises:
        ConfigError: fewer than 20 images for a part, or a file that is named twice.
    """
    count, lines = len(dataset), dict[PurePosixPath, int]()
    for sample in dataset.samples:
        if (first := lines.setdefault(PurePosixPath(sample.file), sample.line)) != sample.line:
            raise ConfigError(
                f"{dataset.folder / LABELS_NAME}:{sample.line} names '{sample.file}', as line {first} does; an image "
                "may be in one of the three parts only, so name each once."
            )
    cuts = np.cumsum([round(share * count) for share in SHARES[:-1]])
    parts = np.split(np.random.default_rng(seed).permutation(count), cuts)
    if min(map(len, parts)) < LEAST_ROWS:
        raise ConfigError(
            f"{dataset.folder} has {count} images; each of three parts needs {LEAST_ROWS} at least, so give "
            f"{int(LEAST_ROWS / min(SHARES))} or more."
        )
    make, judge, certify = (
        replace(dataset, samples=tuple(dataset.samples[position] for position in sorted(part))) for part in parts
    )
    return Parts(make, judge, certify)
