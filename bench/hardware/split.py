"""Measures for which links and devices each way to the full model's answer is the quickest, and whether plans find it.

`measure_splits` measures what the plan needs. Then each cell of a grid runs the ways: always the whole model on either
side, the split that the plan prefers, and all splits that the plan does not expect to be three times slower than
the best way. The head of a split runs here, its checkpoint crosses a simulated link of the cell's bandwidth and round
trip, and the tail runs here too. A device that is k times slower runs its share k times.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from bench.figures import Figure
from bench.hardware.cut_model import CutAt, CutModel, Link
from bench.pools import CACHE, CIFAR10, DATA, DIGITS, IMAGENET, Pair, bundle_of
from firstline.workbench.data.dataset import open_dataset
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
        predicted_ms, measured_ms: latency of each way that ran; the measured one is the median over images.
        planned, quickest: the way that the plan takes, and the quickest way.
    """

    model: str
    bandwidth_mbit_s: float
    round_trip_ms: float
    slowdown: int
    predicted_ms: dict[str, float]
    measured_ms: dict[str, float]
    planned: str
    quickest: str

    @property
    def is_contested(self) -> bool:
        """Whether another way took at most three times as long as the quickest; in other cells the choice is easy."""
        first, *others = sorted(self.measured_ms.values())
        return bool(others) and others[0] <= _HOPELESS * first

    @property
    def kept_ms(self) -> tuple[float, float]:
        """Latencies of the device and of the quickest split, which send no raw input; infinity if a way did not run."""
        splits = [ms for way, ms in self.measured_ms.items() if way.startswith("split")]
        return self.measured_ms.get("device", np.inf), min(splits, default=np.inf)

    @property
    def regret(self) -> float:
        """Additional time of the planned way, as a share of the quickest way's time."""
        return self.measured_ms[self.planned] / self.measured_ms[self.quickest] - 1


class Record(msgspec.Struct, frozen=True):
    """The measurements of one model."""

    splits: Splits
    cells: tuple[Cell, ...]


Grid = tuple[Sequence[int], Sequence[float], Sequence[float]]
"""Slowdowns of the device, round trips in ms and bandwidths in Mbit/s."""


def measure(name: str, quick: bool, data: Path = DATA) -> Record:
    """Measures all cells of one model; takes one or two minutes."""
    subject = next(subject for subject in SUBJECTS if subject.name == name)
    grid: Grid = (SLOWDOWNS, ROUND_TRIPS_MS, BANDWIDTHS_MBIT_S)
    if quick:
        grid = (SLOWDOWNS[1:2], ROUND_TRIPS_MS[:1], BANDWIDTHS_MBIT_S[-2:])
    bundle = _bundle(subject, data)
    folder = data / subject.pair.images / "dev" if subject.pair.images else _heldout(subject.pair)
    splits = measure_splits(bundle, open_dataset(folder, _PROFILED))
    images = list(open_dataset(folder, _IMAGES).contents())
    cuts = tuple(
        CutAt(cut.tensor, min(allowed, key=lambda form: (form.sent_bytes, form.pack_ms)).name)
        for cut in splits.cuts
        if (allowed := [form for form in cut.forms if form.disagreement <= MOST_DISAGREEMENT])
    )
    return Record(splits, tuple(_cells(name, splits, _Sides(CutModel(bundle, cuts), cuts), images, product(*grid))))


class _Sides(NamedTuple):
    """The model of the device and of the gateway, and where both cut it."""

    model: CutModel
    cuts: tuple[CutAt, ...]

    def go(self, way: Way, encoded: bytes, slowdown: int, link: Link) -> float:
        """Runs one way with one image, and returns its seconds."""
        began_s = time.perf_counter()
        if way.kind == "device":
            for _ in range(slowdown):
                self.model.whole(encoded)
        elif way.kind == "input":
            link.send(len(encoded))
            self.model.whole(encoded)
        else:
            cut, checkpoint = self.cuts.index(CutAt(way.tensor, way.form)), b""
            for _ in range(slowdown):
                checkpoint = self.model.begin(cut, encoded)
            link.send(len(checkpoint))
            self.model.finish(cut, checkpoint)
        return time.perf_counter() - began_s


def _cells(
    name: str, splits: Splits, sides: _Sides, images: Sequence[bytes], grid: Iterable[tuple[int, float, float]]
) -> Iterator[Cell]:
    for slowdown, round_trip_ms, bandwidth in grid:
        speed = bandwidth * MBIT
        link, around = Link(speed, round_trip_ms), Surroundings(round_trip_ms, slowdown, 1.0, MOST_DISAGREEMENT)
        of = [way for way in ways(splits, around) if way.kind != "split" or CutAt(way.tensor, way.form) in sides.cuts]
        planned = best(of, speed)
        likely = [best((way for way in of if way.kind == "split"), speed)] if sides.cuts else []
        tried = [
            way
            for way in of
            if way.kind != "split" or way in likely or way.latency_ms(speed) <= _HOPELESS * planned.latency_ms(speed)
        ]
        took: dict[str, list[float]] = {label(way): [] for way in tried}
        for encoded in (images[0], *images):  # the first pass fills caches
            for way in tried:
                took[label(way)].append(sides.go(way, encoded, slowdown, link))
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
    """Returns a short name of a way."""
    return way.kind if way.kind != "split" else f"split {way.tensor.rpartition('/')[2]} {way.form}"


def figures(records: Mapping[str, Record]) -> list[Figure]:
    """Returns how often the plan takes the quickest way, the cost of other choices, and the break-evens."""
    cells = [cell for record in records.values() for cell in record.cells]
    contested = [cell for cell in cells if cell.is_contested]
    close = [cell.regret <= _CLOSE - 1 for cell in cells]
    errors = [
        abs(cell.predicted_ms[way] / measured_ms - 1) for cell in cells for way, measured_ms in cell.measured_ms.items()
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
        Figure(
            "predicted compared with measured time, median error",
            round(float(np.median(errors)), 4),
            "of the measured time",
        ),
        Figure("a split was the quickest", len(won), "cells"),
        *(figure for name, record in records.items() for figure in _checkpoints(name, record.splits)),
        *(figure for name, record in records.items() for figure in _break_even(name, record.cells)),
    ]


def _checkpoints(name: str, splits: Splits) -> Iterator[Figure]:
    """Yields the value of the smallest form of each checkpoint that loses little enough."""
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
    """Yields the bandwidth up to which the device is the quickest, and the value of splits if no input may be sent."""
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
    """Returns the last bandwidth of the grid up to which the device wins; its unit says if that is outside the grid."""
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
