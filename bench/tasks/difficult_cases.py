"""Objects found when half of the bytes are sent: the score "product", difficult cases (DCSB), and random images.

DCSB (Cao et al., "Edge-Cloud Collaborated Object Detection via Difficult-Case Discriminator", arXiv 2108.12858) sends
an image if the edge model is sure of fewer objects than it sees at a low score, sees more objects than a number, or one
that takes a smaller part of the image than a share. This is a re-implementation: a grid search on one half of the
images chooses the three limits, as its authors do, and the other half is measured. The score needs no such search.

The images that a rule sends, the most difficult first, take half of the bytes. Rules differ in the objects that they
invent, so every rule is read at the operating score at which it invents as many objects as random images do.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.figures import Figure, plain
from bench.tasks.detection import images, labels_of, run
from firstline_core.processing.boxes import BOXES, CANDIDATE, CLASSES, COUNT, SCORES
from firstline_core.processing.images import checked_header
from firstline_core.protocol.limits import DEFAULT_DECODING_LIMITS
from firstline_core.tasks.detection import Detection
from firstline_core.types import Arrays

Floats = NDArray[np.float64]

_SENT = 0.5  # of the bytes
_HALVES = 100
_ORDERS = 100  # of random images in each half
_OPERATING = {"fastestdet": 0.6, "ssd": 0.5, "dynamic-range": 0.3}
"""The operating scores of the recipe."""
_SCORES = np.round(np.arange(0.05, 0.95, 0.05), 2)
_COUNTS = (1, 2, 3, 4, 5, 8, 12)
_SHARES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.31)


class Table(NamedTuple):
    """One edge model's answers to n images, relative to the full model's.

    Attributes:
        found, missed, invented: objects at each of the operating scores, (scores, n).
        scores: of all boxes, (n, boxes).
        shares: of the image that each box takes, (n, boxes).
        product: the score "product", (n,).
        sizes: of the images in bytes, (n,).
    """

    found: Floats
    missed: Floats
    invented: Floats
    scores: Floats
    shares: Floats
    product: Floats
    sizes: Floats

    def take(self, rows: NDArray[np.intp]) -> Table:
        """Returns the table of these images."""
        return Table(*(values[:, rows] for values in self[:3]), *(values[rows] for values in self[3:]))


def figures(data: Path) -> Iterator[Figure]:
    """Yields the share of the full model's objects that each rule finds, in the halves that chose no limit."""
    full = run("yolox-nano", data)
    for name, operating in _OPERATING.items():
        table, at = _table(run(name, data), full, data), int(np.flatnonzero(np.isclose(operating, _SCORES))[0])
        random, count = np.random.default_rng(1), len(table.sizes)
        shares = []
        for _ in range(_HALVES):
            rows = random.permutation(count)
            fit, rest = table.take(rows[: count // 2]), table.take(rows[count // 2 :])
            shares.append(_compare(fit, rest, at, random))
        by_chance, difficult, ours = np.mean(shares, axis=0)
        yield plain(f"{name}: objects found, random images", by_chance, "share")
        yield plain(f"{name}: objects found, difficult cases", difficult, "share")
        yield plain(f"{name}: objects found, score", ours, "share")._replace(
            aim="more than either", holds=bool(ours > max(by_chance, difficult))
        )


def _table(edge: Arrays, full: Arrays, data: Path) -> Table:
    task = Detection(labels=labels_of(data))
    boxes, scores, classes = (np.concatenate((edge[name], edge[CANDIDATE + name]), axis=1) for name in _BOX_ARRAYS)
    counted = [
        task.objects({BOXES: boxes, SCORES: scores, CLASSES: classes, COUNT: (scores >= least).sum(axis=1)}, full)
        for least in _SCORES
    ]
    found, missed, invented = (np.array([one[column].sum(axis=1) for one in counted], float) for column in range(3))
    files = [(file.name, file.read_bytes()) for file in images(data)]
    areas = [np.prod(checked_header(content, DEFAULT_DECODING_LIMITS, name).upright_size) for name, content in files]
    taken = np.prod(boxes[..., 2:] - boxes[..., :2], axis=-1) / np.array(areas, float)[:, None]
    certain = task.score("product", edge, edge).astype(float)
    sizes = np.array([len(content) for _, content in files], float)
    return Table(found, missed, invented, scores.astype(float), taken, certain, sizes)


_BOX_ARRAYS = (BOXES, SCORES, CLASSES)


def _compare(fit: Table, rest: Table, at: int, random: np.random.Generator) -> tuple[float, float, float]:
    """Returns the shares of the objects that random images, difficult cases and the score find."""
    curves = [_curve(rest, random.permutation(len(rest.sizes))) for _ in range(_ORDERS)]
    found, invented = np.mean(curves, axis=0)
    limit = invented[at]
    chosen = max(
        product(_SCORES[_SCORES[at] > _SCORES], _COUNTS, _SHARES), key=lambda limits: _of_rule(fit, at, limits)
    )
    difficult = _read(_curve(rest, _difficult_first(rest, at, chosen, random)), limit)
    return float(found[at]), difficult, _read(_curve(rest, np.argsort(rest.product, kind="stable")), limit)


def _of_rule(fit: Table, at: int, limits: tuple[float, int, float]) -> float:
    """Returns the objects found at the recipe's operating score, less those invented: both count alike."""
    found, invented = _curve(fit, _difficult_first(fit, at, limits, np.random.default_rng(0)))
    objects = (fit.found[0] + fit.missed[0]).sum()
    return float(found[at] - invented[at] * len(fit.sizes) / objects)


def _difficult_first(
    table: Table, at: int, limits: tuple[float, int, float], random: np.random.Generator
) -> NDArray[np.intp]:
    """Returns the images in the order in which they are sent: difficult ones first, otherwise at random."""
    low, count, share = limits
    sure, seen = (table.scores >= _SCORES[at]).sum(axis=1), (table.scores >= low).sum(axis=1)
    smallest = table.shares.min(axis=1, where=table.scores >= low, initial=np.inf)
    difficult = (sure < seen) | (seen > count) | (smallest < share)
    return np.lexsort((random.random(len(difficult)), ~difficult))


def _curve(table: Table, order: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Returns the share of objects found and the objects invented per image, by operating score, (scores,)."""
    sent = np.zeros(len(order), np.bool_)
    sent[order[np.cumsum(table.sizes[order]) <= _SENT * table.sizes.sum()]] = True
    found = (table.found + table.missed * sent).sum(axis=1) / (table.found[0] + table.missed[0]).sum()
    return found, table.invented[:, ~sent].sum(axis=1) / len(order)


def _read(curve: tuple[Floats, Floats], invented: float) -> float:
    """Returns the objects found where as many are invented; a higher operating score invents fewer."""
    return float(np.interp(-invented, -curve[1], curve[0]))
