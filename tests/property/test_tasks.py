"""What holds for the losses, scores and descriptions of every task, whatever the outputs."""

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from firstline_core.errors import InferenceError
from firstline_core.processing.boxes import BOXES, CANDIDATE, CLASSES, COUNT, SCORES
from firstline_core.processing.masks import IGNORED
from firstline_core.tasks.anomaly import ANOMALOUS, DISTANCE, SCORE, Anomaly
from firstline_core.tasks.base import MISSED, ConfiguredTask, Task, check_outputs, event_names, event_of
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection
from firstline_core.tasks.embedding import EMBEDDING, MARGIN, NEIGHBOUR, OTHER, SIMILARITY, Embedding
from firstline_core.tasks.installed import BUILT_IN
from firstline_core.tasks.regression import SCALE, SPREAD, VALUES, Regression
from firstline_core.tasks.segmentation import CLASS_BEST, CLASS_IOU, CONFIDENCE, MASK, Segmentation
from firstline_core.tasks.tensors import DeclaredTensor, Tensors
from firstline_core.tasks.text import LOWEST, MEAN, TEXT, Text
from firstline_core.types import Array, Arrays, slice_rows

Rng = np.random.Generator


class Answers(NamedTuple):
    """A task, and what makes its outputs and evidence for a number of rows.

    Attributes:
        settings: other values of the fields on which outputs, scores or losses depend; each changes the digest.
        names: fields that only name things, and change no digest.
    """

    task: ConfiguredTask
    make: Callable[[Rng, int], tuple[dict[str, Array], dict[str, Array]]]
    settings: dict[str, Any]
    names: Mapping[str, Any] = MappingProxyType({})
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
    outputs: dict[str, Array] = {
        EMBEDDING: _numbers(rng, rows, 3),
        NEIGHBOUR: rng.integers(-1, 3, rows),
        SIMILARITY: rng.uniform(-1, 1, rows).astype(np.float32),
    }
    return outputs, {name: rng.uniform(-1, 1, rows).astype(np.float32) for name in (OTHER, MARGIN)}


def _texts(rng: Rng, rows: int) -> tuple[dict[str, Array], dict[str, Array]]:
    words = np.array([b"", b"stop", b"STOP  now", b"go on", "gr\u00fcn".encode()], object)
    evidence: dict[str, Array] = {name: rng.uniform(size=rows).astype(np.float32) for name in (MEAN, LOWEST)}
    return {TEXT: words[rng.integers(len(words), size=rows)]}, evidence


def _tensors(rng: Rng, rows: int) -> tuple[dict[str, Array], dict[str, Array]]:
    outputs: dict[str, Array] = {
        "curve": _numbers(rng, rows, 2, 3),
        "half": _numbers(rng, rows, 2).astype(np.float16),
        "counts": rng.integers(3, size=(rows, 2)),
        "open": rng.uniform(size=rows) < 0.5,
        "word": np.array([b"yes", b"no"], object)[rng.integers(2, size=rows)],
    }
    return outputs, {}


def _boxes(rng: Rng, rows: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Up to three boxes, best first, and as many candidates."""
    count = rng.integers(0, 4, size=rows)
    used = np.arange(3) < count[:, None]
    corners = rng.integers(0, 3, size=(rows, 3, 2)) * 30
    boxes = np.where(used[..., None], np.concatenate((corners, corners + 40), axis=2), 0).astype(np.float32)
    scores = -np.sort(-rng.uniform(0.5, 1, size=(rows, 3)).astype(np.float32))
    classes = rng.integers(0, 3, size=(rows, 3))
    classes = np.where(used, classes, -1)
    outputs: dict[str, Array] = {BOXES: boxes, SCORES: scores * used, CLASSES: classes, COUNT: count}
    evidence: dict[str, Array] = {CANDIDATE + name: outputs[name] for name in (BOXES, SCORES, CLASSES)}
    return outputs, evidence | {CANDIDATE + SCORES: scores * used / 4}


def _counts(rng: Rng, rows: int) -> tuple[dict[str, Array], dict[str, Array]]:
    return {"cars": rng.integers(6, size=(rows, 1)).astype(np.float32)}, {}


def _documented(page: str, file: str, name: str) -> type[ConfiguredTask]:
    """The task that a page defines in a block of code."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    [code] = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if block.startswith(f"# {file}\n")]
    module = ModuleType(file.removesuffix(".py"))
    sys.modules[module.__name__] = module  # msgspec looks the names of annotations up there
    exec(compile(code, file, "exec", dont_inherit=True), module.__dict__)
    return getattr(module, name)


_TENSORS = (
    DeclaredTensor("curve", "FP32", (-1, 2, 3)),
    DeclaredTensor("half", "FP16", (-1, 2)),
    DeclaredTensor("counts", "INT64", (-1, 2)),
    DeclaredTensor("open", "BOOL", (-1,)),
    DeclaredTensor("word", "BYTES", (-1,)),
)
CASES = {
    "classification": Answers(
        Classification(("a", "b", "c")), _probabilities, {"independent": True}, {"labels": ("d", "b", "c")}
    ),
    "independent": Answers(Classification(("a", "b", "c"), independent=True), _independent, {"independent": False}),
    "thresholds": Answers(
        Classification(("a", "b", "c"), independent=True, thresholds=(0.2, 0.5, 0.9)),
        _independent,
        {"thresholds": (0.2, 0.5, 0.8)},
    ),
    "detection": Answers(
        Detection(("car", "bus", "dog"), k=3, class_groups={"vehicle": ("car", "bus")}, least_side=1),
        _boxes,
        {
            "labels": ("bus", "car", "dog"),
            "k": 4,
            "class_groups": {},
            "iou": 0.4,
            "small_iou": 0.2,
            "small_side": 9.0,
            "least_side": 2.0,
        },
        symmetric=False,
    ),
    "regression": Answers(Regression(absolute=3), _values(1, scaled=False), {"names": ("price",)}),
    "regression-error": Answers(
        Regression(("a", "b"), scaled=2, absolute=1, loss_kind="error"),
        _values(2, scaled=True),
        {"absolute": 2.0, "scaled": 3.0, "loss_kind": "outside"},
    ),
    "regression-relative": Answers(
        Regression(("a", "b"), relative=0.2), _values(2, scaled=False), {"relative": 0.3}, symmetric=False
    ),
    "segmentation": Answers(
        Segmentation(("background", "cat", "dog"), width=4, height=3, least_share=0.2),
        _masks,
        {
            "labels": ("background", "dog", "cat"),
            "width": 5,
            "height": 4,
            "counted": ("cat",),
            "iou": 0.4,
            "least_share": 0.1,
        },
        symmetric=False,
    ),
    "anomaly": Answers(Anomaly(), _decisions, {}, {"labels": ("fine", "broken")}),
    "embedding": Answers(
        Embedding(3, tolerance=0.2, labels=("ann", "bob", "ann")),
        _neighbours,
        {"size": 4, "tolerance": 0.1, "labels": ("bob", "ann", "ann"), "event_labels": ("ann",)},
    ),
    "text": Answers(
        Text(keywords=("stop", "go"), ignore_case=True),
        _texts,
        {
            "tolerance": 0.1,
            "loss_kind": "distance",
            "ignore_case": False,
            "ignore_space": False,
            "keywords": ("stop", "now"),
        },
    ),
    "text-distance": Answers(Text(tolerance=0.2, loss_kind="distance"), _texts, {"loss_kind": "outside"}),
    "tensors": Answers(
        Tensors(_TENSORS, absolute=2), _tensors, {"tensors": _TENSORS[:1], "absolute": 1.0, "relative": 0.1}
    ),
    "tensors-relative": Answers(Tensors(_TENSORS[:2], relative=0.5), _tensors, {"relative": 0.2}, symmetric=False),
    "installed": Answers(_documented("how-to/own-task.md", "count_task.py", "Count")(), _counts, {}),
    "installed-classifier": Answers(
        msgspec.convert(
            {"kind": "triage", "labels": ["a", "b", "c"]}, _documented("how-to/own-task.md", "triage_task.py", "Triage")
        ),
        _probabilities,
        {"alike": 3},
    ),
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
    edge_reports, full_reports = (case.task.occurrences(outputs) > 0 for outputs in (edge, full))
    assert case.task.events == event_names(case.task.event_classes)
    found = case.task.events_of(case.task.events, edge, full)
    assert tuple(found) == case.task.events
    for name, event in found.items():
        direction, columns = event_of(name, case.task.event_classes)
        reports = (full_reports if direction == MISSED else edge_reports)[:, columns].any(axis=1)
        assert event.counts.tolist() == reports.tolist()
        assert event.loss.shape == (rows,) and set(event.loss.tolist()) <= {0, 1}
        assert not event.loss[~event.counts].any()
        assert not case.task.events_of([name], edge, edge)[name].loss.any()


@every_task
@settings(max_examples=30)
@seeds
def test_outputs_pass_their_own_check_and_are_described(case: Answers, seed: int, rows: int) -> None:
    outputs, evidence = case.make(np.random.default_rng(seed), rows)
    check_outputs(case.task.declared(rounded=False, cut=False), outputs, rows)
    assert case.task.difference(outputs, outputs) == 0
    assert json.loads(json.dumps(case.task.describe(outputs, 0), allow_nan=False))
    assert {spec.name for spec in case.task.evidence} >= set(evidence)
    assert case.task.occurrences(outputs).shape == (rows, len(case.task.event_classes))
    assert len(case.task.groups(outputs)) == rows
    assert case.task.draw(Image.new("RGB", (128, 64)), outputs, 0).size == (128, 64)


@pytest.mark.parametrize("impossible", [np.nan, np.inf])
@every_task
@settings(max_examples=15)
@seeds
def test_labels_have_no_loss_and_others_are_refused(case: Answers, impossible: float, seed: int, rows: int) -> None:
    outputs, _ = case.make(np.random.default_rng(seed), rows)
    if case.task.truth == case.task.outputs:
        assert not case.task.truth_loss(outputs, outputs).any()
        assert case.task.summary(outputs, {}, outputs)[case.task.quality] == 0
    first = next((spec.name for spec in case.task.outputs if outputs[spec.name].dtype.kind == "f"), None)
    if first is not None:
        spoilt = outputs | {first: np.full_like(outputs[first], impossible)}
        with pytest.raises(InferenceError, match="NaN"):
            check_outputs(case.task.declared(rounded=False, cut=False), spoilt, rows)
        assert case.task.difference(outputs, spoilt) == float("inf")


@every_task
def test_the_digest_changes_with_each_setting_that_changes_numbers(case: Answers) -> None:
    for name, value in case.settings.items():
        assert msgspec.structs.replace(case.task, **{name: value}).digest != case.task.digest, name
    for name, value in case.names.items():
        assert msgspec.structs.replace(case.task, **{name: value}).digest == case.task.digest, name


@pytest.mark.parametrize("kind", BUILT_IN)
def test_every_field_of_every_task_is_covered(kind: str) -> None:
    cases = [case for case in CASES.values() if case.task.kind == kind]
    covered = {name for case in cases for name in (*case.settings, *case.names)}
    fields = {field.name for field in msgspec.structs.fields(cases[0].task)}
    assert covered == fields - {"loss_graph"}


@every_task
def test_the_json_form_gives_the_task_again(case: Answers) -> None:
    form = msgspec.json.encode(case.task)
    assert msgspec.convert(msgspec.json.decode(form), type(case.task)) == case.task
    assert case.task.kind == msgspec.json.decode(form)["kind"]
    with pytest.raises(msgspec.ValidationError, match="unknown field `more`"):
        msgspec.convert(msgspec.json.decode(form) | {"more": 1}, type(case.task))


@every_task
@settings(max_examples=30)
@seeds
def test_a_row_is_scored_alone_as_in_a_batch(case: Answers, seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    (edge, evidence), (full, _) = case.make(rng, rows), case.make(rng, rows)
    assert case.task.features(edge, evidence).shape == (rows, case.task.feature_count)
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
