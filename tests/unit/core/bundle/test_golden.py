"""Golden answers: file format and comparison."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from firstline_core.bundle.golden import (
    GoldenAnswers,
    GoldenInput,
    deviation,
    encode_golden,
    golden_input,
    inputs_of,
    read_golden,
)
from firstline_core.bundle.manifest import Golden, Manifest, Model, encode_manifest, parse_manifest
from firstline_core.bundle.store import Bundle
from firstline_core.errors import IntegrityError
from firstline_core.fleet.target import FileUse, target_fields
from firstline_core.processing.steps import InputSpec, ModelInput
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks.classification import Classification
from firstline_core.types import PROBABILITIES, Arrays, TensorSpec

FILE = Artefact("edge.onnx", "a" * 64, 10)
GOLDEN = Artefact("golden.json", "b" * 64, 20)
BARE = Manifest(
    name="m",
    version=1,
    task=Classification(("yes", "no")),
    inputs=(InputSpec("x", "FP32", (-1, 2)),),
    edge=(Model("edge", FILE, "onnx", "fp32", (ModelInput("x"),)),),
)
WITH = msgspec.structs.replace(BARE, golden=Golden(GOLDEN, 0.02))


@pytest.mark.parametrize("manifest", [BARE, WITH])
def test_golden_answers_round_trip_through_the_manifest(manifest: Manifest) -> None:
    assert parse_manifest(encode_manifest(manifest)) == manifest


def test_every_variant_needs_the_golden_answers() -> None:
    assert target_fields(WITH)["golden.json"] == FileUse(("edge",))
    assert WITH.artefacts == (FILE, GOLDEN)


def test_golden_answers_are_read_and_compared(tmp_path: Path) -> None:
    rows = np.array([[1, 2], [3, 4]], np.float32)
    stored = {"edge": {PROBABILITIES: [[0.25, 0.75], [0.5, 0.5]]}}
    answers = GoldenAnswers({"x": golden_input(rows)}, stored)
    (tmp_path / "golden.json").write_bytes(encode_golden(answers))
    found = read_golden(Bundle(tmp_path, WITH), GOLDEN)
    assert found == answers
    assert inputs_of(found, WITH)["x"].tolist() == rows.tolist()
    probabilities = np.array([[0.25, 0.75], [0.45, 0.55]], np.float32)
    assert deviation(found, "edge", {PROBABILITIES: probabilities}, WITH.task) == pytest.approx(0.05)
    assert deviation(found, "other", {PROBABILITIES: probabilities}, WITH.task) is None
    assert deviation(found, "edge", {PROBABILITIES: probabilities[:1]}, WITH.task) == float("inf")
    assert deviation(found, "edge", {PROBABILITIES: probabilities * np.nan}, WITH.task) == float("inf")


class Text(msgspec.Struct, frozen=True):
    """A task whose outputs are text and numbers."""

    outputs = (TensorSpec("text", "BYTES", (-1,)), TensorSpec("lengths", "INT64", (-1, 0)))

    def difference(self, expected: Arrays, actual: Arrays) -> float:
        return float(any(array.tolist() != actual[name].tolist() for name, array in expected.items()))


def test_text_is_compared_too(tmp_path: Path) -> None:
    outputs = {"text": np.array([b"\xff\x00", b""], object), "lengths": np.zeros((2, 0), np.int64)}
    answers = GoldenAnswers(
        {"x": GoldenInput((b"", b""))}, {"edge": {name: array.tolist() for name, array in outputs.items()}}
    )
    (tmp_path / "golden.json").write_bytes(encode_golden(answers))
    found = read_golden(Bundle(tmp_path, WITH), GOLDEN)
    assert deviation(found, "edge", outputs, Text()) == 0
    assert deviation(found, "edge", outputs | {"text": outputs["text"][::-1]}, Text()) == 1
    damaged = GoldenAnswers({"x": GoldenInput((b"",))}, {"edge": {"text": ["?", 1], "lengths": [[], []]}})
    assert deviation(damaged, "edge", outputs, Text()) == float("inf")


@pytest.mark.parametrize("stored", [{}, {"other": [[1, 0]]}, {PROBABILITIES: [[1], [1, 2]]}, {PROBABILITIES: ["a"]}])
def test_stored_answers_of_another_form_differ_infinitely(stored: dict[str, list[Any]]) -> None:
    answers = GoldenAnswers({"x": GoldenInput((b"",))}, {"edge": stored})
    outputs = {PROBABILITIES: np.array([[1, 0]], np.float32)}
    assert deviation(answers, "edge", outputs, WITH.task) == float("inf")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"outputs": {"edge": {"x": ' + b"[" * 60_000,
        b'{"inputs": [], "outputs": {}}',
        b'{"inputs": {"x": {"rows": ["%"]}}, "outputs": {}}',
    ],
    ids=["empty", "list", "nested", "inputs", "rows"],
)
def test_an_invalid_file_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(IntegrityError):
        read_golden(Bundle(tmp_path, WITH), GOLDEN)
    (tmp_path / "golden.json").write_bytes(content)
    with pytest.raises(IntegrityError, match="golden"):
        read_golden(Bundle(tmp_path, WITH), GOLDEN)


def test_inputs_of_another_shape_are_refused() -> None:
    with pytest.raises(IntegrityError, match="shape"):
        inputs_of(GoldenAnswers({"x": GoldenInput((b"1234567",), (2,))}, {}), WITH)
