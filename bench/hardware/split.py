"""Which way to the full model's answer wins, by link and device, and whether the plan says so.

What the plan reckons with is measured by `measure_splits`. Then ways are really gone, cell by cell of a grid: the whole
model on either side, always; of the splits the one that the plan expects most of, and those that it does not expect to
be three times slower than the best way. The head runs, its checkpoint crosses a link of the cell's bandwidth and round
trip to another process, and the tail answers there. A device that is k times slower does its share k times. Made up are
the links; the bytes of a protocol around body and answer are 12.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product, takewhile
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from bench.figures import Figure
from bench.hardware.far_side import CutAt, CutModel, FarSide, far_side
from bench.pools import CACHE, CIFAR10, DATA, DIGITS, IMAGENET, Pair, bundle_of
from firstline.workbench.dataset import open_dataset
from firstline.workbench.splitting.measure import measure_splits
from firstline_core.bundle.store import Bundle
from firstline_core.planning.split import Splits, Surroundings, Way, best, ways

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
    def is_contested(self) -> bool:
        """Whether another way was within three times of the quickest: elsewhere a plan can hardly go wrong."""
        first, *others = sorted(self.measured_ms.values())
        return bool(others) and others[0] <= _HOPELESS * first

    @property
    def kept_ms(self) -> tuple[float, float]:
        """Of the ways on which no raw input leaves, the device's time and the quickest split's; endless: not gone."""
        splits = [ms for way, ms in self.measured_ms.items() if way.startswith("split")]
        return self.measured_ms.get("device", np.inf), min(splits, default=np.inf)

    @property
    def regret(self) -> float:
        """How much longer the planned way took than the quickest, as a share of that one's."""
        return self.measured_ms[self.planned] / self.measured_ms[self.quickest] - 1


class Record(msgspec.Struct, frozen=True):
    """One model."""

    splits: Splits
    cells: tuple[Cell, ...]


Grid = tuple[Sequence[int], Sequence[float], Sequence[float]]
"""Slowdowns of the device, round trips in ms and bandwidths in Mbit/s."""


def measure(name: str, quick: bool, data: Path = DATA) -> Record:
    """All cells of one model; a minute or two."""
    subject = next(subject for subject in SUBJECTS if subject.name == name)
    grid: Grid = (SLOWDOWNS, ROUND_TRIPS_MS, BANDWIDTHS_MBIT_S)
    if quick:
        grid = (SLOWDOWNS[1:2], ROUND_TRIPS_MS[:1], BANDWIDTHS_MBIT_S[-2:])
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
        return Record(splits, tuple(_cells(name, splits, _Sides(make(), far, cuts), images, product(*grid))))


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


def _cells(
    name: str, splits: Splits, sides: _Sides, images: Sequence[bytes], grid: Iterable[tuple[int, float, float]]
) -> Iterator[Cell]:
    for slowdown, round_trip_ms, bandwidth in grid:
        speed = bandwidth * MBIT
        around = Surroundings(sides.far.become(speed, round_trip_ms), slowdown, 1.0, MOST_DISAGREEMENT)
        of = [way for way in ways(splits, around) if way.kind != "split" or CutAt(way.tensor, way.form) in sides.cuts]
        planned = best(of, speed)
        likely = [best((way for way in of if way.kind == "split"), speed)] if sides.cuts else []
        tried = [
            way
            for way in of
            if way.kind != "split" or way in likely or way.latency_ms(speed) <= _HOPELESS * planned.latency_ms(speed)
        ]
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


def figures(records: Mapping[str, Record]) -> list[Figure]:
    """The share of cells in which the plan takes the winner, what it costs where it does not, and the break-even."""
    cells = [cell for record in records.values() for cell in record.cells]
    contested = [cell for cell in cells if cell.is_contested]
    close = [cell.regret <= _CLOSE - 1 for cell in cells]
    errors = [
        abs(cell.reckoned_ms[way] / measured_ms - 1) for cell in cells for way, measured_ms in cell.measured_ms.items()
    ]
    won = [cell for cell in cells if cell.quickest.startswith("split")]
    right = round(float(np.mean([cell.planned == cell.quickest for cell in cells])), 4)
    return [
        Figure("cells of the grid", len(cells), "cells"),
        Figure("planned way is the quickest", right, "of cells", f">= {_AIM}", right >= _AIM),
        Figure(f"cells with another way within {_HOPELESS:g} times of the quickest", len(contested), "cells"),
        Figure(
            "planned way is the quickest, in those",
            _share(cell.planned == cell.quickest for cell in contested),
            "of these cells",
        ),
        *(
            Figure(f"without a plan, {what}: the quickest", _share(cell.quickest == way for cell in cells), "of cells")
            for way, what in (("device", "always the device"), ("input", "always the input"))
        ),
        Figure(f"planned way within {_CLOSE - 1:.0%} of the quickest", _share(close), "of cells"),
        Figure(
            "longest detour of a planned way",
            round(max(cell.regret for cell in cells), 4),
            "of the quickest way's time",
        ),
        Figure("reckoned beside measured, median error", round(float(np.median(errors)), 4), "of the measured time"),
        Figure("a split was the quickest", len(won), "cells"),
        *(figure for name, record in records.items() for figure in _checkpoints(name, record.splits)),
        *(figure for name, record in records.items() for figure in _break_even(name, record.cells)),
    ]


def _checkpoints(name: str, splits: Splits) -> Iterator[Figure]:
    """What the smallest form of each that loses little enough is worth."""
    smallest = [
        (cut, min(allowed, key=lambda form: form.sent_bytes))
        for cut in splits.cuts
        if (allowed := [form for form in cut.forms if form.disagreement <= MOST_DISAGREEMENT])
    ]
    lost = max((form.disagreement for _, form in smallest), default=None)
    small = min(
        (cut.head_ms / splits.model_ms for cut, form in smallest if form.sent_bytes < splits.input_bytes), default=None
    )
    yield Figure(f"{name}: rows that a checkpoint answers otherwise, at most", lost, "of rows")
    label = f"{name}: the device's share before a checkpoint is smaller than the input"
    yield Figure(label, None if small is None else round(small, 4), "of the model's time")


def _break_even(name: str, cells: Sequence[Cell]) -> Iterator[Figure]:
    """Up to which bandwidth the device alone was the quickest, and what a split is worth where no input may leave."""
    for slowdown, round_trip_ms in product(SLOWDOWNS, ROUND_TRIPS_MS):
        row = sorted(
            (cell for cell in cells if (cell.slowdown, cell.round_trip_ms) == (slowdown, round_trip_ms)),
            key=lambda cell: cell.bandwidth_mbit_s,
        )
        if not row:
            continue
        label = f"break-even, {name}, {slowdown} times slower, {round_trip_ms:g} ms"
        yield _up_to(f"{label}: device up to", row, [cell.quickest == "device" for cell in row])
        if gone := [cell for cell in row if np.isfinite(cell.kept_ms).all()]:
            kept = [device_ms <= split_ms for device_ms, split_ms in (cell.kept_ms for cell in gone)]
            yield _up_to(f"{label}: device up to, where the input stays", gone, kept)
            sooner = max(1 - split_ms / device_ms for device_ms, split_ms in (cell.kept_ms for cell in gone))
            yield Figure(
                f"{label}: a split sooner, where the input stays",
                round(max(0.0, float(sooner)), 4),
                "of the device's time",
            )


def _up_to(label: str, row: Sequence[Cell], wins: Sequence[bool]) -> Figure:
    """The last bandwidth of the grid up to which the device wins; what lies outside the grid is told as such."""
    upto = len(list(takewhile(bool, wins)))
    if upto == 0:
        return Figure(label, row[0].bandwidth_mbit_s, "Mbit/s is too much already")
    beyond = " and beyond" if upto == len(row) else f", no more at {row[upto].bandwidth_mbit_s:g}"
    return Figure(label, row[upto - 1].bandwidth_mbit_s, f"Mbit/s{beyond}")


def _share(of: Iterable[bool]) -> float | None:
    found = list(of)
    return round(float(np.mean(found)), 4) if found else None


def _bundle(subject: Subject, data: Path) -> Bundle:
    bundle = bundle_of(subject.pair, data, CACHE)
    if not subject.variant:
        return bundle
    model = next(model for model in bundle.manifest.edge if model.id == subject.variant)
    return Bundle(bundle.path, msgspec.structs.replace(bundle.manifest, edge=(), full=model))


def _heldout(pair: Pair) -> Path:
    return Path(__file__).parents[2] / "models" / pair.recipe / "heldout"
