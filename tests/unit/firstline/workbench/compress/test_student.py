from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bench.support.onnx_models import write_graph
from firstline.workbench.compress.block_pruning import blocks, drop_blocks, without
from firstline.workbench.compress.channel_pruning import pairs
from firstline.workbench.compress.intermediate import BATCH_ROWS, outputs, run_rows
from firstline.workbench.compress.refitting import refit
from firstline.workbench.compress.student import Lesson, start_of, student
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.select import CPU, RuntimeOptions

_DIGITS = Path(__file__).parents[5] / "models/digits/bundle"


def _deep(path: Path, spread: tuple[float, ...] = (0.2, 0.02, 0.2)) -> Path:
    """Images [n, 3, 8, 8] to two logits, by residual blocks as ResNet has them, one for each spread of weights."""
    random = np.random.default_rng(0)
    weights: list[Any] = []

    def convolution(given: str, name: str, inputs: int, scale: float) -> Any:
        kernel = random.normal(0, scale, (8, inputs, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"{name}.w"))
        weights.append(numpy_helper.from_array(np.full(8, scale / 10, np.float32), f"{name}.b"))
        return helper.make_node("Conv", [given, f"{name}.w", f"{name}.b"], [name], pads=[1, 1, 1, 1])

    nodes, at = [convolution("x", "stem", 3, 0.2), helper.make_node("Relu", ["stem"], ["r0"])], "r0"
    for number, scale in enumerate(spread, start=1):
        nodes += [
            convolution(at, f"first{number}", 8, scale),
            helper.make_node("Relu", [f"first{number}"], [f"inside{number}"]),
            convolution(f"inside{number}", f"second{number}", 8, scale),
            helper.make_node("Add", [f"second{number}", at], [f"sum{number}"]),
            helper.make_node("Relu", [f"sum{number}"], [at := f"r{number}"]),
        ]
    nodes += [
        helper.make_node("GlobalAveragePool", [at], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "fc.w", "fc.b"], ["logits"], transB=1),
    ]
    weights.append(numpy_helper.from_array(random.normal(0, 1, (2, 8)).astype(np.float32), "fc.w"))
    weights.append(numpy_helper.from_array(np.zeros(2, np.float32), "fc.b"))
    return write_graph(
        path,
        nodes,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])],
        weights,
    )


def _images(count: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).normal(0, 1, (count, 3, 8, 8)).astype(np.float32)


def _wrong(model: Any, whole: Any, rows: Any) -> float:
    """Squared error of what tells the two classes apart."""
    said, wanted = (np.diff(outputs(one, rows, ["logits"])[0]) for one in (model, whole))
    return float(np.square(said - wanted).mean())


def test_what_lies_inside_is_looked_at_a_few_rows_at_a_time(tmp_path: Path) -> None:
    asked = []

    class Counting(OnnxRuntime):
        def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
            asked.append(len(feeds["x"]))
            return super().run(feeds)

    rows = _images(BATCH_ROWS * 2 + 5)
    with closing(Counting(_deep(tmp_path / "m.onnx"), providers=(CPU,), threads=1)) as runtime:
        found = run_rows(runtime, rows)["logits"]
        assert max(asked) == BATCH_ROWS
        assert np.allclose(found, runtime.run({"x": rows})["logits"], atol=1e-5)
        assert len(run_rows(runtime, rows[:3])["logits"]) == 3


def test_the_block_that_says_least_is_dropped(tmp_path: Path) -> None:
    whole = onnx.load(_deep(tmp_path / "m.onnx"))
    assert [block.sum for block in blocks(whole.graph)] == ["sum1", "sum2", "sum3"]
    shorter, gone = drop_blocks(whole, 0.6, _images(20))
    assert gone == ("sum2",)
    onnx.checker.check_model(shorter)
    assert len(whole.graph.node) - len(shorter.graph.node) == 5
    assert not {"first2.w", "second2.b"} & {tensor.name for tensor in shorter.graph.initializer}
    # the block before it is now what the dropped one was
    assert [(block.shortcut, block.sum, block.after) for block in blocks(shorter.graph)] == [
        ("r0", "sum2", "r2"),
        ("r2", "sum3", "r3"),
    ]
    rows = _images(20, seed=2)
    assert np.array_equal(outputs(shorter, rows, ["r2"])[0], outputs(whole, rows, ["r1"])[0])
    assert drop_blocks(whole, 1, rows)[1] == ()
    with pytest.raises(ConfigError, match="above 0 to 1"):
        drop_blocks(whole, 0, rows)


def test_the_first_block_goes_too_and_a_model_without_any_is_refused(tmp_path: Path) -> None:
    model = onnx.load(_deep(tmp_path / "m.onnx", (0.2,)))
    shorter = without(model, blocks(model.graph)[0])
    onnx.checker.check_model(shorter)
    rows = _images(4)
    assert np.array_equal(outputs(shorter, rows, ["r1"])[0], outputs(model, rows, ["r0"])[0])
    with pytest.raises(ConfigError, match="no residual block"):
        drop_blocks(shorter, 0.5, rows)


def test_a_block_whose_inside_is_read_elsewhere_stays(tmp_path: Path) -> None:
    model = onnx.load(_deep(tmp_path / "m.onnx", (0.2, 0.2)))
    model.graph.output.append(helper.make_tensor_value_info("inside1", TensorProto.FLOAT, None))
    assert [block.sum for block in blocks(model.graph)] == ["sum2"]


def test_what_is_left_is_fitted_to_what_was_dropped(tmp_path: Path) -> None:
    whole = onnx.load(_deep(tmp_path / "m.onnx", (0.2, 0.1, 0.2)))
    shorter, _ = drop_blocks(whole, 0.6, _images(20))
    mended = refit(shorter, whole, _images(60))
    assert len(pairs(shorter.graph)) == 2
    rows = _images(60, seed=2)
    assert _wrong(mended, whole, rows) < 0.7 * _wrong(shorter, whole, rows)


def test_a_student_of_fewer_blocks_and_channels_says_so(tmp_path: Path) -> None:
    source, out = _deep(tmp_path / "m.onnx"), tmp_path / "student.onnx"
    told = student(source, out, _images(40), Lesson(depth=0.6, epochs=0), options=RuntimeOptions())
    assert told == {"depth": "0.6", "dropped_blocks": "1", "rows": "40", "epochs": "0"}
    assert out.stat().st_size < 0.8 * source.stat().st_size
    with pytest.raises(ConfigError, match="is the model itself"):
        student(source, out, _images(40), Lesson(epochs=0), options=RuntimeOptions())


def test_a_student_starts_as_a_model_that_is_fed_alike() -> None:
    manifest = open_bundle(_DIGITS).manifest
    assert manifest.full is not None
    assert start_of(manifest, manifest.full, "") is manifest.full
    edge = manifest.edge[0]
    alike = msgspec.structs.replace(manifest.full, preprocess=edge.preprocess, postprocess=edge.postprocess)
    assert start_of(manifest, alike, edge.id) == edge
    other = msgspec.structs.replace(alike, postprocess="none" if edge.postprocess != "none" else "softmax")
    for source, wanted, words in (
        (alike, "nobody", "has no model 'nobody'"),
        (alike, "edge-tflite-int8", "starts as ONNX in fp32"),
        (other, edge.id, "fed or read otherwise"),
    ):
        with pytest.raises(ConfigError, match=words):
            start_of(manifest, source, wanted)


@pytest.mark.train
@pytest.mark.filterwarnings("default")
def test_normalising_changes_nothing_and_folds_away(tmp_path: Path) -> None:
    import torch

    from firstline.workbench.compress import distillation
    from firstline.workbench.compress.distillation import folded, normalised

    network = distillation._onnx2torch().convert(onnx.load(_deep(tmp_path / "m.onnx")))
    rows = torch.from_numpy(_images(30))
    with torch.no_grad():
        before = network(rows)
        ready = normalised(network, rows)
        assert torch.allclose(ready(rows), before, rtol=1e-3, atol=1e-3)  # while training, by the rows' own statistics
        after = folded(ready)
        assert not any(isinstance(layer, torch.nn.BatchNorm2d) for layer in after.modules())
        assert torch.allclose(after(rows), ready.eval()(rows), rtol=1e-3, atol=1e-3)


@pytest.mark.train
@pytest.mark.filterwarnings("default")
def test_a_training_that_was_ended_goes_on_to_the_same_student(tmp_path: Path) -> None:
    source, kept, rows = _deep(tmp_path / "m.onnx"), tmp_path / "kept", _images(128)
    kept.mkdir()
    lesson = Lesson(depth=0.3, epochs=6, rate=1e-2)
    said: list[str] = []
    done: list[int] = []

    def taught(name: str, rows: Any, lesson: Lesson, ends_after: int = 99) -> bytes:
        def ended(epoch: int, total: int) -> None:
            if total == lesson.epochs:
                done.append(epoch)
                if epoch == ends_after:
                    raise KeyboardInterrupt

        done.clear()
        said.clear()
        checkpoints = None if name == "undisturbed" else kept
        options = RuntimeOptions()
        student(
            source,
            tmp_path / name,
            rows,
            lesson,
            options=options,
            checkpoints=checkpoints,
            say=said.append,
            progress=ended,
        )
        return (tmp_path / name).read_bytes()

    undisturbed = taught("undisturbed", rows, lesson)
    with pytest.raises(KeyboardInterrupt):
        taught("ended", rows, lesson, ends_after=4)
    assert said == []
    assert taught("resumed", rows, lesson) == undisturbed
    assert (said, done) == (["The training continues after epoch 4 of 6"], [5, 6])
    assert taught("again", rows, lesson) == undisturbed
    assert done == []  # nothing was left to be learnt
    # What is not quite the same begins anew.
    assert taught("other-rows", rows[::-1], lesson) != undisturbed
    assert taught("other-rate", rows, replace(lesson, rate=2e-2)) != undisturbed
    assert said == []
    files = sorted(kept.iterdir())
    assert len(files) == 3
    for file in files:
        file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"training-\w+\.pt is damaged; remove it to start the training over"):
        taught("damaged", rows, lesson)


@pytest.mark.train
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("start", [False, True])
def test_a_taught_student_is_nearer_to_its_teacher(tmp_path: Path, start: bool) -> None:
    source, out, begun = _deep(tmp_path / "m.onnx"), tmp_path / "student.onnx", tmp_path / "untaught.onnx"
    rows = _images(128)
    small = _deep(tmp_path / "small.onnx", (0.1,)) if start else None
    lesson = Lesson(depth=0.3, start="small" if start else "", epochs=0)
    student(source, begun, rows, lesson, options=RuntimeOptions(), start=small)
    lesson = Lesson(depth=0.3, start="small" if start else "", epochs=40, rate=1e-2)
    told = student(source, out, rows, lesson, options=RuntimeOptions(), start=small)
    assert told["epochs"] == "40"
    assert ("start" in told) == start
    whole, new = onnx.load(source), _images(128, seed=3)
    assert _wrong(onnx.load(out), whole, new) < 0.7 * _wrong(onnx.load(begun), whole, new)
