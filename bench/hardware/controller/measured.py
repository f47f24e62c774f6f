"""What the three CIFAR-10 variants say of real images, how long they take here, and what each is certified to keep.

Half of the images certify, the other half is what arrives at the simulated device: each row is one image, and what a
variant says of it, surely or not, rightly or not, is what the real one said.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from bench.hardware.controller.scenario import DELTA, EPSILON, VARIANTS, Variant
from bench.hardware.controller.variants import Rows, cifar_variants, observed
from bench.pools import CACHE, CIFAR10, DATA

_IMAGES = 2500
_REPEATS = 5
_SEED = 20261123


class Measured(Struct, frozen=True):
    """What the simulated hour is made of, told beside its figures.

    Attributes:
        row_ms: by variant, of one row on one core of the machine that measured, processing included; the median of all
            repeats.
        kept: by variant, share of the arriving rows that its certificate keeps.
        risk: by variant, of those, the share for which the full model says otherwise.
        rows: that arrive, again and again.
    """

    row_ms: dict[str, float]
    kept: dict[str, float]
    risk: dict[str, float]
    rows: int


def rows_of_variants() -> dict[str, Rows]:
    """A minute: what they say is the same each time, and how long they take is not."""
    told = [observed(cifar_variants(DATA, CACHE), CIFAR10, DATA, _IMAGES, and_full=True) for _ in range(_REPEATS)]
    return {name: replace(rows, ms=median(again[name].ms for again in told)) for name, rows in told[0].items()}


def variants(said: Mapping[str, Rows], largest_ms: float) -> list[Variant]:
    """The three, at the speed of a board on which the largest takes so long."""
    order = np.random.default_rng(_SEED).permutation(len(said[VARIANTS[0]].scores))
    calibration, arriving = np.array_split(order, 2)
    found = []
    for name in VARIANTS:
        rows = said[name]
        threshold = rows.take(calibration).threshold(EPSILON, DELTA)
        of = rows.take(arriving)
        found.append(
            Variant(
                name,
                largest_ms * rows.ms / said[VARIANTS[0]].ms,
                float((rows.take(calibration).scores >= threshold).mean()),
                of.scores >= threshold,
                of.losses,
            )
        )
    return found


def measured(said: Mapping[str, Rows], found: list[Variant]) -> Measured:
    """For the record."""
    return Measured(
        {name: round(said[name].ms, 4) for name in VARIANTS},
        {each.name: round(float(each.keeps.mean()), 4) for each in found},
        {each.name: round(float(each.disagrees[each.keeps].mean()), 4) for each in found},
        len(found[0].keeps),
    )
