"""Which way to the full model's answer wins, by link and device, and whether the plan says so.

What the plan reckons with is measured by `measure_splits`. Then every way that it does not expect to be three times
slower than the best is really gone, cell by cell of a grid: the head runs, its checkpoint crosses a link of the cell's
bandwidth and round trip to another process, and the tail answers there. A device that is k times slower does its share
k times. Made up are the links; the bytes of a protocol around body and answer are 12.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from figures import Figure
from pools import CACHE, CIFAR10, DATA, DIGITS, IMAGENET, Pair, bundle_of

from firstline.workbench.dataset import open_dataset
from firstline.workbench.splitting.measure import measure_splits
from firstline_core.bundle.store import Bundle
from firstline_core.planning.split import Splits, Surroundings, Way, best, stretches, ways
from hardware.cut_model import CutAt, CutModel
from hardware.far_side import FarSide, far_side

MBIT = 1e6 / 8
BANDWIDTHS_MBIT_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
ROUND_TRIPS_MS = (2.0, 20.0)
SLOWDOWNS = (1, 8, 32)
MOST_DISAGREEMENT = 0.02
_PROFILED = 100
_IMAGES = 5
_HOPELESS = 3.0
_CLOSE = 1.05
_AIM = 0.95


@dataclass(frozen=True, slots=True)
class Subject:
    """One full model to cut.

    Args:
        variant: id of an edge variant to take for the full model; "" takes the bundle's own.
    """

    name: str
    pair: Pair
    variant: str = ""


SUBJECTS = (
    Subject("digits full", DIGITS),
    Subject("cifar10 resnet56", CIFAR10),
    Subject("imagenet v2-224", IMAGENET),
    Subject("imagenet v1-160", IMAGENET, "v1-160"),
    Subject("imagenet v1-128", IMAGENET, "v1-128"),
)


class Cell(msgspec.Struct, frozen=True):
    """One cell of the grid.

    Attributes:
        reckoned_ms, measured_ms: of each way that was gone; the measured one is the median over images.
        planned, quickest: which way the plan takes, and which one was.
    """

    model: str
    bandwidth_mbit_s: float
    round_trip_ms: float
    slowdown: int
    reckoned_ms: dict[str, float]
    measured_ms: dict[str, float]
    planned: str
    quickest: str

    @property
    def regret(self) -> float:
        """How much longer the planned way took than the quickest, as a share of that one's."""
        return self.measured_ms[self.planned] / self.measured_ms[self.quickest] - 1


class Record(msgspec.Struct, frozen=True):
    """One model."""

    splits: Splits
    cells: tuple[Cell, ...]


def measure(subject: Subject, data: Path = DATA) -> Record:
    """All cells of one model; half a minute."""
    bundle = _bundle(subject, data)
    folder = data / subject.pair.images / "dev" if subject.pair.images else _heldout(subject.pair)
    splits = measure_splits(bundle, open_dataset(folder, _PROFILED))
    images = [encoded for encoded, _ in open_dataset(folder, _IMAGES).read()]
    cuts = tuple(
        CutAt(cut.tensor, min(allowed, key=lambda form: (form.sent_bytes, form.pack_ms)).name)
        for cut in splits.cuts
        if (allowed := [form for form in cut.forms if form.disagreement <= MOST_DISAGREEMENT])
    )
    make = partial(CutModel, bundle, cuts)
    with far_side(make) as far:
        return Record(splits, tuple(_cells(subject.name, splits, _Sides(make(), far, cuts), images)))


class _Sides(NamedTuple):
    """The device, the gateway behind its link, and where both cut the model."""

    near: CutModel
    far: FarSide
    cuts: tuple[CutAt, ...]

    def go(self, way: Way, encoded: bytes, slowdown: int) -> float:
        """Goes one way with one image; seconds."""
        began_s = time.perf_counter()
        if way.kind == "device":
            for _ in range(slowdown):
                self.near.whole(encoded)
        elif way.kind == "input":
            self.far.ask(-1, encoded)
        else:
            cut, checkpoint = self.cuts.index(CutAt(way.tensor, way.form)), b""
            for _ in range(slowdown):
                checkpoint = self.near.begin(cut, encoded)
            self.far.ask(cut, checkpoint)
        return time.perf_counter() - began_s


def _cells(name: str, splits: Splits, sides: _Sides, images: Sequence[bytes]) -> Iterator[Cell]:
    for slowdown, round_trip_ms, bandwidth in product(SLOWDOWNS, ROUND_TRIPS_MS, BANDWIDTHS_MBIT_S):
        speed = bandwidth * MBIT
        around = Surroundings(sides.far.become(speed, round_trip_ms), slowdown, 1.0, MOST_DISAGREEMENT)
        of = [way for way in ways(splits, around) if way.kind != "split" or CutAt(way.tensor, way.form) in sides.cuts]
        planned = best(of, speed)
        tried = [way for way in of if way.latency_ms(speed) <= _HOPELESS * planned.latency_ms(speed)]
        took: dict[str, list[float]] = {label(way): [] for way in tried}
        for encoded in (images[0], *images):  # the first pass wakes caches
            for way in tried:
                took[label(way)].append(sides.go(way, encoded, slowdown))
        measured = {way: 1000 * float(np.median(seconds[1:])) for way, seconds in took.items()}
        yield Cell(
            name,
            bandwidth,
            round_trip_ms,
            slowdown,
            {label(way): round(way.latency_ms(speed), 3) for way in tried},
            {way: round(ms, 3) for way, ms in measured.items()},
            label(planned),
            min(measured, key=measured.__getitem__),
        )


def label(way: Way) -> str:
    """A way in a word, or two."""
    return way.kind if way.kind != "split" else f"split {way.tensor.rpartition('/')[2]} {way.form}"


def figures(records: Sequence[Record]) -> list[Figure]:
    """The share of cells in which the plan takes the winner, and what it costs where it does not."""
    cells = [cell for record in records for cell in record.cells]
    right = [cell.planned == cell.quickest for cell in cells]
    close = [cell.regret <= _CLOSE - 1 for cell in cells]
    errors = [
        abs(cell.reckoned_ms[way] / measured_ms - 1) for cell in cells for way, measured_ms in cell.measured_ms.items()
    ]
    won = [cell for cell in cells if cell.quickest.startswith("split")]
    share = float(np.mean(right))
    return [
        Figure("cells of the grid", len(cells), "cells"),
        Figure("planned way is the quickest", share, "of cells", f">= {_AIM}", share >= _AIM),
        Figure(f"planned way within {_CLOSE - 1:.0%} of the quickest", float(np.mean(close)), "of cells"),
        Figure("longest detour of a planned way", max(cell.regret for cell in cells), "of the quickest way's time"),
        Figure("reckoned beside measured, median error", float(np.median(errors)), "of the measured time"),
        Figure("a split was the quickest", len(won), "cells"),
    ]


def break_even(splits: Splits, round_trip_ms: float, slowdown: float) -> list[tuple[str, float, float]]:
    """Ways with the bandwidths between which they win, Mbit/s."""
    around = Surroundings(round_trip_ms, slowdown, 1.0, MOST_DISAGREEMENT)
    return [
        (label(one.way), one.from_bytes_per_s / MBIT, one.to_bytes_per_s / MBIT)
        for one in stretches(ways(splits, around))
    ]


def _bundle(subject: Subject, data: Path) -> Bundle:
    bundle = bundle_of(subject.pair, data, CACHE)
    if not subject.variant:
        return bundle
    model = next(model for model in bundle.manifest.edge if model.id == subject.variant)
    return Bundle(bundle.path, msgspec.structs.replace(bundle.manifest, edge=(), full=model))


def _heldout(pair: Pair) -> Path:
    return Path(__file__).parents[2] / "models" / pair.recipe / "heldout"
