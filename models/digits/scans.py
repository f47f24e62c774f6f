"""The handwritten digits: 1,797 real 8x8 scans, how they are split, and the folders `firstline evaluate` reads."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
HELD_OUT_ROWS = 599  # a third
CALIBRATION_ROWS = 300
SEED = 0

# The oldest time a zip member can carry: the archive does not say when it was made.
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


class Part(NamedTuple):
    """Some of the scans.

    Attributes:
        rows: (n,) their rows in scikit-learn's data set.
        pixels: (n, 8, 8) uint8 grey, 0 = paper, 255 = ink; the very bytes of the PNG files.
        digits: (n,) int64, 0 to 9.
    """

    rows: NDArray[np.int64]
    pixels: NDArray[np.uint8]
    digits: NDArray[np.int64]

    @property
    def images(self) -> NDArray[np.float32]:
        """(n, 8, 8, 1) float32 in 0..1: what the models take, after `scale` by 255."""
        return (self.pixels[..., None] / np.float32(255)).astype(np.float32)


class Split(NamedTuple):
    train: Part
    calibration: Part  # certifies, and nothing else
    heldout: Part  # measures, and nothing else


def load_split() -> Split:
    """Every scan in exactly one part, each part with the digits in equal shares, the same on every call."""
    bunch: Any = load_digits()
    pixels = np.floor(bunch.images * 255 / 16 + 0.5).astype(np.uint8)  # the scanner's 0..16 as 8-bit grey
    digits = bunch.target.astype(np.int64)

    def part(rows: NDArray[np.int64]) -> Part:
        rows = np.sort(rows)
        return Part(rows, pixels[rows], digits[rows])

    rest, heldout = train_test_split(
        np.arange(len(digits)), test_size=HELD_OUT_ROWS, stratify=digits, random_state=SEED
    )
    train, calibration = train_test_split(rest, test_size=CALIBRATION_ROWS, stratify=digits[rest], random_state=SEED)
    return Split(part(train), part(calibration), part(heldout))


def write_dataset(part: Part, folder: Path) -> None:
    """Writes `labels.csv` (columns file, label, name) and `images.zip` (one PNG a scan).

    A file is named by its row in scikit-learn's data set. The PNG bytes depend on Pillow's zlib; the pixels do not.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"digit_{row:04d}.png" for row in part.rows]
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as text:
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(["file", "label", "name"])
        lines.writerows([name, d, LABELS[d]] for name, d in zip(names, part.digits, strict=True))
    with zipfile.ZipFile(folder / "images.zip", "w", zipfile.ZIP_STORED) as archive:
        for name, pixels in zip(names, part.pixels, strict=True):
            archive.writestr(zipfile.ZipInfo(name, _ZIP_EPOCH), _png(pixels))


def write_examples(part: Part, folder: Path) -> list[Path]:
    """Writes the first scan of each digit as a PNG; where they are, in the digits' order."""
    files = []
    for digit, name in enumerate(LABELS):
        file = folder / f"{name}.png"
        file.write_bytes(_png(part.pixels[np.flatnonzero(part.digits == digit)[0]]))
        files.append(file)
    return files


def _png(pixels: NDArray[np.uint8]) -> bytes:
    png = io.BytesIO()
    Image.fromarray(pixels).save(png, format="PNG")
    return png.getvalue()
