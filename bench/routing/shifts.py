"""Shifts made on real images: other classes than were certified on, a lens out of focus, a noisy sensor.

Blurred and noisy images go through the real models. The label shift takes rows of the pool as it is, of the groups of
classes that the edge model is worst on.
"""

from __future__ import annotations

import io
import zlib
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from bench.pools import Change, Pool

_GROUPS = 10  # of neighbouring classes; where there are ten, each is one


def blurred(radius: float, encoded: bytes) -> bytes:
    """A Gaussian blur of this radius, in shares of the image's shorter side."""
    image = Image.open(io.BytesIO(encoded))
    return _png(image.filter(ImageFilter.GaussianBlur(radius * min(image.size))))


def noisy(deviation: float, encoded: bytes) -> bytes:
    """Gaussian noise of this standard deviation, in steps of 256; the same for the same image."""
    pixels = np.asarray(Image.open(io.BytesIO(encoded)))
    noise = np.random.default_rng(zlib.crc32(encoded)).normal(0, deviation, pixels.shape)
    return _png(Image.fromarray(np.clip(np.round(pixels + noise), 0, 255).astype(np.uint8)))


CHANGES: dict[str, dict[str, tuple[str, Change]]] = {
    "digits": {"blur": ("blur-0.12", partial(blurred, 0.12)), "noise": ("noise-80", partial(noisy, 80.0))},
    "cifar10-cascade": {"blur": ("blur-0.03", partial(blurred, 0.03)), "noise": ("noise-8", partial(noisy, 8.0))},
    "imagenet-cascade": {"blur": ("blur-0.015", partial(blurred, 0.015)), "noise": ("noise-40", partial(noisy, 40.0))},
}
"""By recipe and shift: the name of the change, with its strength, and the change."""


def relabelled(pool: Pool, accepted: NDArray[np.bool_], losses: NDArray[np.bool_], risk: float) -> Pool:
    """Returns the images of the worst groups of classes: as many groups as still cause this risk of edge answers.

    Args:
        pool: as certified.
        accepted: which of its answers are accepted at the edge.
        losses: of its answers.
        risk: to be reached.
    """
    group = pool.labels * _GROUPS // (int(pool.labels.max()) + 1)
    of_group = [accepted & (group == one) for one in range(_GROUPS)]
    risks = np.array([losses[rows].mean() if rows.any() else 0.0 for rows in of_group])
    worst_first = np.argsort(-risks, kind="stable")
    taken = 1
    while taken < _GROUPS and losses[accepted & np.isin(group, worst_first[: taken + 1])].mean() >= risk:
        taken += 1
    return pool.take(np.flatnonzero(np.isin(group, worst_first[:taken])))


def _png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG", compress_level=1)
    return stream.getvalue()
