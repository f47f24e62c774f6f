"""Certificates and quality of the pairs: 500 recalibrations of each, with the pool of its data as the population.

A recalibration draws rows of the pool, certifies a threshold from them, and reads the threshold's true risk and share
in the pool. With groups, it draws groups, and one row of each. The oracle knows the pool.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.figures import Figure, near, plain
from bench.routing.population import Population, at_most
from bench.tasks.forecast import windows
from firstline.workbench.bundle import create_bundle
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.evaluate import routed
from firstline.workbench.observe import observe_here
from firstline.workbench.spec import read_recipe
from firstline_core.bundle.loading import load_scorer
from firstline_core.routing.certificate import ALL_ROWS
from firstline_core.routing.certification import certify
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.arrays import LABEL
from firstline_core.tasks.base import Task
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.regression import VALUES
from firstline_core.types import Arrays

_RECIPES = Path(__file__).parents[2] / "models"
_RECALIBRATIONS = 500
_ROWS = 1000  # of a recalibration
_STEP = 10  # from one window of a series to the next
_DELTA = 0.1
_WITHIN = 0.005  # of a reference
_AGREEMENT = "edge and full: same label"


class Case(NamedTuple):
    """What is certified of a pair.

    Attributes:
        edge: id of the edge model.
        event: conditional loss of the task; `ALL_ROWS` for its plain loss.
        epsilon: the bound of the mean loss of the accepted rows in which the event can occur.
        prepare: writes the data of `dev` into a folder in a form that is read; None if it is in one.
        table: name of the file, if the data is a table.
        label: the table's column with the label.
        references: by figure, what the data's README states.
    """

    edge: str
    event: str
    epsilon: float
    prepare: Callable[[Path, Path], None] | None = None
    table: str = ""
    label: str = LABEL
    references: Mapping[str, float] = MappingProxyType({})


def _with_images(data: Path, folder: Path) -> None:
    """Copies the images of a segmentation next to its masks; they are the same as those of the detectors."""
    shutil.copytree(data.parent / "coco-cascade" / "dev" / "images", folder / "images")
    shutil.copytree(data / "dev" / "masks", folder / "masks")


def _windows(data: Path, folder: Path) -> None:
    """Writes a table of every tenth window of the series; each series is a group."""
    parts = [(file.stem, *windows(file)) for file in sorted((data / "dev" / "series").iterdir())]
    np.savez(
        folder / "windows.npz",
        window=np.concatenate([rows[::_STEP] for _, rows, _ in parts]),
        values=np.concatenate([truth[VALUES][::_STEP] for _, _, truth in parts]),
        group=np.concatenate([[name] * len(rows[::_STEP]) for name, rows, _ in parts]),
    )


CASES = {
    "coco-cascade": Case("dynamic-range", "missed person", 0.1),
    "pascal-segmentation-cascade": Case("half", ALL_ROWS, 0.3, _with_images),
    "spoken-digits-cascade": Case(
        "edge",
        ALL_ROWS,
        0.05,
        references={"accuracy: edge": 0.917, "accuracy: full": 0.997, _AGREEMENT: 0.92},
    ),
    "clinc-cascade": Case(
        "edge",
        ALL_ROWS,
        0.05,
        table="labels.csv",
        references={"accuracy: edge": 0.87, "accuracy: full": 0.953, _AGREEMENT: 0.845},
    ),
    "cifar10-cascade": Case("resnet8-int8", ALL_ROWS, 0.05),
    "imagenet-cascade": Case("v1-160", ALL_ROWS, 0.05),
    "diamonds-tabular-cascade": Case(
        "edge",
        ALL_ROWS,
        0.2,
        table="rows.csv",
        label="cut",
        references={"accuracy: edge": 0.611, "accuracy: full": 0.796},
    ),
    "nab-forecast-cascade": Case("spread", ALL_ROWS, 0.4, _windows, table="windows.npz"),
}
"""By pair. The loss of a segmentation is 1 - mean IoU; that of a forecast is 1 outside of its tolerance."""


class Rows(NamedTuple):
    """The rows in which an event can occur.

    Attributes:
        scores: (n,).
        losses: (n,).
        groups: positions of the rows of each group.
    """

    scores: NDArray[np.float64]
    losses: NDArray[np.float64]
    groups: list[NDArray[np.intp]]


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Both models' answers to the data of a pair, n rows.

    Attributes:
        scores: (n,) of the edge answers, by the recipe's score.
        sizes: (n,) bytes of the inputs.
        groups: (n,), or () if the data has no groups.
    """

    task: Task
    edge: Arrays
    evidence: Arrays
    full: Arrays
    full_evidence: Arrays
    truth: Arrays | None
    scores: NDArray[np.float64]
    sizes: NDArray[np.int64]
    groups: tuple[str, ...]

    def rows_of(self, event: str) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Returns the rows in which an event can occur, and their losses."""
        if event == ALL_ROWS:
            return np.arange(len(self.scores)), self.task.loss(self.edge, self.full).astype(np.float64)
        found = self.task.events_of([event], self.edge, self.full)[event]
        return np.flatnonzero(found.counts), found.loss[found.counts].astype(np.float64)


def figures(data: Path) -> Iterator[Figure]:
    """Yields the figures of all pairs whose folders lie next to one of them."""
    for pair in CASES:
        if not (data.parent / pair).is_dir():
            print(f"{pair} is skipped: {data.parent} does not have it.", file=sys.stderr)
            continue
        for figure in _of_pair(data.parent / pair):
            yield figure._replace(figure=f"{pair}, {figure.figure}")


def _of_pair(data: Path) -> Iterator[Figure]:
    pool, case = collect(data), CASES[data.name]
    rows, losses = pool.rows_of(case.event)
    what = f"{case.event or 'loss'} at most {case.epsilon:.0%}"
    alone = Rows(pool.scores[rows], losses, [np.array([row]) for row in range(len(rows))])
    thresholds = yield from _recalibrated(what, alone, case.epsilon, _ROWS)
    accepted = pool.scores >= (np.median(thresholds) if thresholds else np.inf)
    yield plain(f"{what}: at the edge", float(accepted.mean()), "share")
    yield plain(f"{what}: bytes sent", float(pool.sizes[~accepted].sum() / pool.sizes.sum()), "share")
    if pool.groups:
        groups = np.array(pool.groups)[rows]
        members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
        grouped = alone._replace(groups=members)
        yield from _recalibrated(f"{what} in {len(members)} groups", grouped, case.epsilon, len(members))
    for figure in _quality(pool, accepted):
        reference = case.references.get(figure.figure)
        yield figure if reference is None else near(figure.figure, figure.value or 0.0, reference, _WITHIN)


def _recalibrated(title: str, rows: Rows, epsilon: float, draws: int) -> Generator[Figure, None, list[float]]:
    """Yields the figures of recalibrations, and returns the certified thresholds.

    Args:
        title: of the figures.
        rows: of the pool.
        epsilon: the bound.
        draws: number of groups that a recalibration draws.
    """
    random, broken, total_share, thresholds = np.random.default_rng(1), 0, 0.0, list[float]()
    weights = np.empty(len(rows.scores))
    for members in rows.groups:
        weights[members] = 1 / len(members)  # one row of each group is drawn
    population = Population.of(rows.scores.astype(np.float32), rows.losses, weights)
    for seed in range(_RECALIBRATIONS):
        drawn = random.integers(0, len(rows.groups), draws)
        chosen = np.array([random.choice(rows.groups[group]) for group in drawn])
        found = certify(rows.scores[chosen], rows.losses[chosen], epsilon, _DELTA, seed=seed)
        if found.threshold is not None:
            share, risk = population.at(found.threshold)
            thresholds.append(found.threshold)
            total_share, broken = total_share + share, broken + (risk > epsilon)
    oracle = population.oracle(epsilon)
    yield at_most(f"{title}: broken promises", broken, _RECALIBRATIONS, _DELTA, "recalibrations")
    yield plain(f"{title}: certified", len(thresholds) / _RECALIBRATIONS, "share of recalibrations")
    power = total_share / _RECALIBRATIONS / oracle if oracle else None
    yield plain(f"{title}: accepted, of the oracle's", power, "share")
    return thresholds


def _quality(pool: Pool, accepted: NDArray[np.bool_]) -> Iterator[Figure]:
    if isinstance(pool.task, Classification):
        yield plain(_AGREEMENT, 1 - float(pool.task.loss(pool.edge, pool.full).mean()), digits=4)
    if pool.truth is None:
        return
    tiered, evidence = routed(accepted, pool.edge, pool.full), routed(accepted, pool.evidence, pool.full_evidence)
    answers = {
        "edge": (pool.edge, pool.evidence),
        "full": (pool.full, pool.full_evidence),
        "tiered": (tiered, evidence),
    }
    for name, (outputs, more) in answers.items():
        for figure, value in pool.task.summary(outputs, more, pool.truth).items():
            yield plain(f"{figure}: {name}", value, digits=4)


def collect(data: Path) -> Pool:
    """Runs both models of a pair on `dev`."""
    case, options = CASES[data.name], RuntimeOptions(threads=2)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        recipe = _RECIPES / data.name / "recipe.toml"
        bundle = create_bundle(read_recipe(recipe, data), folder / "bundle")
        manifest = bundle.manifest
        near = next(model for model in manifest.edge if model.id == case.edge)
        if manifest.full is None:
            raise ValueError(f"{manifest.name} has no full model to compare with")
        place = data / "dev"
        if case.prepare is not None:
            place = folder / "data"
            place.mkdir()
            case.prepare(data, place)
        dataset = open_dataset(place / case.table, label=case.label)
        models = near, manifest.full
        seen = observe_here(bundle, models, dataset, options, with_evidence=models)
        ours, theirs = seen.answers
        return Pool(
            task=manifest.task,
            edge=ours.outputs,
            evidence=ours.evidence,
            full=theirs.outputs,
            full_evidence=theirs.evidence,
            truth=dataset.truth(manifest.task),
            scores=ours.scores(load_scorer(bundle, options)),
            sizes=seen.sizes,
            groups=dataset.clusters,
        )
