"""What holds for the losses, scores and descriptions of every task, whatever the outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from firstline_core.processing.masks import IGNORED
from firstline_core.tasks.anomaly import ANOMALOUS, DISTANCE, SCORE, Anomaly
from firstline_core.tasks.base import Task, check_outputs
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.embedding import EMBEDDING, MARGIN, NEIGHBOUR, OTHER, SIMILARITY, Embedding
from firstline_core.tasks.regression import SCALE, SPREAD, VALUES, Regression
from firstline_core.tasks.segmentation import CLASS_BEST, CLASS_IOU, CONFIDENCE, MASK, Segmentation
from firstline_core.types import Array, Arrays, slice_rows

Rng = np.random.Generator


class Answers(NamedTuple):
    """A task, and what makes its outputs and evidence for a number of rows."""

    task: Task
    make: Callable[[Rng, int], tuple[dict[str, Array], dict[str, Array]]]
    symmetric: bool = True


def _numbers(rng: Rng, *shape: int, scale: float = 10) -> NDArray[np.float32]:
    return (rng.normal(size=shape) * scale).round(1).astype(np.float32)


def _values(columns: int, *, scaled: bool) -> Callable[[Rng, int], tuple[dict[str, Array], dict[str, Array]]]:
    def make(rng: Rng, rows: int) -> tuple[dict[str, Array], dict[str, Array]]:
        outputs: dict[str, Array] = {VALUES: _numbers(rng, rows, columns)}
        if scaled:
            outputs[SCALE] = np.ones(rows, np.float32)
        return outputs, {SPREAD: np.abs(_numbers(rng, rows, columns))}

    return make


def _probabilities(rng: Rng, rows: int) -> tuple[dict[str, Array], dict[str, Array]]:
    logits = _numbers(rng, rows, 3, scale=2)
    shares = np.exp(logits)
    return {"probabilities": (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)}, {"logits": logits}


def _masks(rng: Rng, rows: int) -> tuple[dict[str, Array], dict[str, Array]]:
    mask = rng.choice(np.array([0, 1, 2, IGNORED], np.uint8), size=(rows, 3, 4))
    evidence = {name: rng.uniform(size=(rows, 3)).astype(np.float32) for name in (CLASS_IOU, CLASS_BEST)}
    return {MASK: mask, CONFIDENCE: rng.uniform(size=rows).astype(np.float32)}, evidence


def _decisions(rng: Rng, rows: int) -> tuple[dict[str, Array], dict[str, Array]]:
    distance = _numbers(rng, rows, scale=1)
    return {SCORE: distance + 3, ANOMALOUS: distance >= 0}, {DISTANCE: distance}


def _independent(rng: Rng, rows: int) -> tuple[dict[str, Array], dict[str, Array]]:
    return {"probabilities": rng.uniform(size=(rows, 3)).astype(np.float32)}, {}


def _neighbours(rng: Rng, rows: int) -> tuple[dict[str, Array], dict[str, Array]]:
    outputs = {
        EMBEDDING: _numbers(rng, rows, 3),
        NEIGHBOUR: rng.integers(-1, 3, rows),
        SIMILARITY: rng.uniform(-1, 1, rows).astype(np.float32),
    }
    return outputs, {name: rng.uniform(-1, 1, rows).astype(np.float32) for name in (OTHER, MARGIN)}


CASES = {
    "independent": Answers(Classification(("a", "b", "c"), independent=True), _independent),
    "classification": Answers(Classification(("a", "b", "c")), _probabilities),
    "regression": Answers(Regression(absolute=3), _values(1, scaled=False)),
    "regression-error": Answers(
        Regression(("a", "b"), scaled=2, absolute=1, loss_kind="error"), _values(2, scaled=True)
    ),
    "regression-relative": Answers(Regression(("a", "b"), relative=0.2), _values(2, scaled=False), symmetric=False),
    "segmentation": Answers(
        Segmentation(("background", "cat", "dog"), width=4, height=3, least_share=0.2), _masks, False
    ),
    "anomaly": Answers(Anomaly(), _decisions),
    "embedding": Answers(Embedding(3, tolerance=0.2, labels=("ann", "bob", "ann")), _neighbours),
}

every_task = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
seeds = given(seed=st.integers(0, 2**32), rows=st.integers(1, 5))


@every_task
@settings(max_examples=30)
@seeds
def test_losses_are_a_measure_of_difference(case: Answers, seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    (edge, _), (full, _) = case.make(rng, rows), case.make(rng, rows)
    losses = case.task.loss(edge, full)
    assert losses.shape == (rows,) and losses.dtype == np.float32
    assert ((losses >= 0) & (losses <= 1)).all()
    assert not case.task.loss(edge, edge).any()
    if case.symmetric:
        np.testing.assert_allclose(case.task.loss(full, edge), losses, atol=1e-6)
    for name in case.task.events:
        event = case.task.event(name, edge, full)
        assert event.counts.shape == event.loss.shape == (rows,)
        assert not event.loss[~event.counts].any()
        assert not case.task.event(name, edge, edge).loss.any()


@every_task
@settings(max_examples=30)
@seeds
def test_outputs_pass_their_own_check_and_are_described(case: Answers, seed: int, rows: int) -> None:
    outputs, evidence = case.make(np.random.default_rng(seed), rows)
    check_outputs(case.task.declared(rounded=False, cut=False), outputs, rows)
    assert case.task.difference(outputs, outputs) == 0
    assert json.loads(json.dumps(case.task.describe(outputs, 0), allow_nan=False))
    assert {spec.name for spec in case.task.evidence} >= set(evidence)
    assert case.task.occurrences(outputs).shape == (rows, len(case.task.group_names))


@every_task
@settings(max_examples=30)
@seeds
def test_a_row_is_scored_alone_as_in_a_batch(case: Answers, seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    (edge, evidence), (full, _) = case.make(rng, rows), case.make(rng, rows)
    for name, function in _functions(case.task):
        together = function(edge, evidence, full)
        alone = [function(*(slice_rows(each, row, row + 1) for each in (edge, evidence, full))) for row in range(rows)]
        np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-5, atol=1e-6, err_msg=name)
        assert np.isfinite(together).all(), name


def _functions(task: Task) -> list[tuple[str, Callable[[Arrays, Arrays, Arrays], Any]]]:
    kinds = [kind for kind in task.score_kinds if kind != "energy" or not getattr(task, "independent", False)]
    scores = [(kind, lambda o, e, _, kind=kind: task.score(kind, o, e)) for kind in kinds]
    return [
        *scores,
        ("features", lambda o, e, _: task.features(o, e)),
        ("supposed_losses", lambda o, e, _: task.supposed_losses(o, e)),
        ("loss", lambda o, _, f: task.loss(o, f)),
        ("occurrences", lambda o, _, __: task.occurrences(o)),
    ]
