import itertools
from pathlib import Path

import msgspec
import numpy as np
import pytest
from onnx import helper
from support.cli import json_of, run

from bench.support.onnx_models import float_graph
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.splitting.graphs import lone_tensors, onnx_cut, onnx_points
from firstline.workbench.splitting.measure import full_of, measure_splits, narrowest
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError
from firstline_core.planning.split import decode
from firstline_core.runtime.select import RuntimeOptions, load_runtime

_DIGITS = Path(__file__).parents[5] / "models/digits"


def _residual(path: Path) -> Path:
    """x -> a -> (b, and a bypass) -> c -> y, with a scale that is computed from weights only."""
    nodes = [
        helper.make_node("Abs", ["weight"], ["scale"]),
        helper.make_node("Mul", ["x", "scale"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Mul", ["c", "scale"], ["y"]),
    ]
    weight = np.array([1.0, -2.0, 3.0], np.float32)
    return float_graph(path, nodes, {"x": ["n", 3]}, {"y": ["n", 3]}, weight=weight)


def test_cuts_are_where_one_tensor_crosses(tmp_path: Path) -> None:
    assert onnx_points(_residual(tmp_path / "model.onnx").read_bytes(), "x", "y") == ["a", "c"]


def test_both_halves_together_equal_the_model(tmp_path: Path) -> None:
    path, rows = _residual(tmp_path / "model.onnx"), np.array([[0.5, -1.0, 2.0]], np.float32)
    whole = load_runtime(path, "onnx", RuntimeOptions()).run({"x": rows})["y"]
    for tensor in ("a", "c"):
        head, tail = onnx_cut(path.read_bytes(), tensor, "x", "y")
        (tmp_path / "head.onnx").write_bytes(head)
        (tmp_path / "tail.onnx").write_bytes(tail)
        middle = load_runtime(tmp_path / "head.onnx", "onnx", RuntimeOptions()).run({"x": rows})
        found = load_runtime(tmp_path / "tail.onnx", "onnx", RuntimeOptions()).run(middle)["y"]
        np.testing.assert_array_equal(found, whole)


def test_two_crossing_tensors_are_not_a_cut() -> None:
    operators = [
        (["x"], ["a"]),
        (["x"], ["b"]),
        (["a", "b"], ["c"]),
        (["c", "x"], ["d"]),
        (["d"], ["e"]),
        (["e"], ["y"]),
    ]
    assert lone_tensors(operators, "x", ["y"]) == ["d", "e"]


def test_an_unused_tensor_does_not_prevent_a_cut() -> None:
    assert lone_tensors([(["x"], ["a", "unused"]), (["a"], ["y"])], "x", ["y"]) == ["a"]


@pytest.mark.timeout(10)
def test_the_search_for_cuts_takes_time_in_proportion_to_the_operators() -> None:
    tensors = ["x", *(f"t{number}" for number in range(20_000)), "y"]
    operators = [([before], [after]) for before, after in itertools.pairwise(tensors)]
    assert lone_tensors(operators, "x", ["y"]) == tensors[1:-1]


def test_a_malformed_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="This is not an ONNX model"):
        onnx_points(b"\x08\x00\x00\x00 no model at all", "x", "y")


def test_a_tflite_model_is_refused() -> None:
    bundle = open_bundle(_DIGITS / "bundle")
    small = next(model for model in bundle.manifest.edge if model.runtime == "tflite")
    other = Bundle(
        bundle.path,
        msgspec.structs.replace(bundle.manifest, edge=(), full=msgspec.structs.replace(small, certificate=None)),
    )
    with pytest.raises(ConfigError, match="only ONNX models are cut; export it as ONNX"):
        full_of(other)


def test_auto_keeps_cuts_narrower_than_all_before() -> None:
    assert narrowest({"a": 1000, "b": 990, "c": 500, "d": 2000, "e": 100}) == ["a", "c", "e"]


def test_the_digits_model_is_measured() -> None:
    bundle, dataset = open_bundle(_DIGITS / "bundle"), open_dataset(_DIGITS / "heldout", 40)
    reports: list[tuple[int, int]] = []
    found = measure_splits(bundle, dataset, progress=lambda done, total: reports.append((done, total)))
    assert found.model_digest == bundle.manifest.full.digest
    assert (found.rows, reports[-1]) == (40, (40, 40))
    assert found.input_bytes == np.mean([len(encoded) for encoded in dataset.contents()])
    [cut] = found.cuts  # everything after the pixels is wider
    assert (cut.shape, found.points) == ((1, 64), 3)
    assert [form.name for form in cut.forms] == ["fp32", "fp16", "int8"]
    assert [form.raw_bytes for form in cut.forms] == [256, 128, 72]
    exact = cut.forms[0]
    assert (exact.disagreement, exact.accuracy_loss) == (0, 0)
    assert min(found.model_ms, cut.head_ms, cut.tail_ms, exact.pack_ms) > 0


def test_a_coarse_checkpoint_causes_disagreement() -> None:
    """In 256 steps the digits' 4,490 distances no longer separate the classes."""
    bundle, dataset = open_bundle(_DIGITS / "bundle"), open_dataset(_DIGITS / "heldout", 40)
    found = measure_splits(bundle, dataset, at="minus_gamma_distances")
    [cut] = found.cuts
    assert cut.shape == (1, 4490)
    exact, _, coarse = cut.forms
    assert (exact.name, exact.disagreement) == ("fp32", 0)
    assert coarse.name == "int8"
    assert coarse.accuracy_loss is not None
    assert coarse.disagreement >= abs(coarse.accuracy_loss)
    assert coarse.disagreement > 0


def test_split_prints_the_fastest_way_by_bandwidth(tmp_path: Path) -> None:
    command = ("profile", "split", _DIGITS / "bundle", "--data", _DIGITS / "heldout", "--limit", 20)
    out = tmp_path / "cuts"
    output = run(*command, "--device-slowdown", 0.001, "--out", out).stdout
    assert "whatever the bandwidth: the whole model on the device" in output
    assert sorted(path.name for path in out.iterdir()) == ["head-0.onnx", "split.json", "tail-0.onnx"]
    assert decode((out / "split.json").read_bytes(), "split.json").rows == 20
    assert "exists" in run(*command, "--out", out, code=2).stderr
    found = json_of(*command, "--at", "pixels")
    assert found["bundle"] == "digits"
    assert found["cuts"][0]["forms"][0]["name"] == "fp32"
