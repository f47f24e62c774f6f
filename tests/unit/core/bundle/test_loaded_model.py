from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper
from support.images import encode, images
from support.sample_bundles import NUMBERS, colour_bundle, number_bundle, solid

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import linear, write_graph
from firstline_core.bundle.loading import load_edge
from firstline_core.errors import InferenceError, InvalidTensorError
from firstline_core.processing.steps import Graph, LabelOffset, Softmax
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Tensor

OPTIONS = RuntimeOptions()
EYE = np.eye(2, dtype=np.float32)


def test_encoded_images_to_probabilities(tmp_path: Path) -> None:
    loaded = load_edge(colour_bundle(tmp_path), OPTIONS)
    found = loaded.predict(images(*[encode(solid(channel, 5 + channel)) for channel in (2, 0, 1)]))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
    assert [loaded.labels[i] for i in found.argmax(axis=1)] == ["blue", "red", "green"]
    assert loaded.digest == loaded.model.digest


def test_a_row_without_a_finite_answer_is_no_answer(tmp_path: Path) -> None:
    path = write_graph(
        tmp_path / "log.onnx",
        [helper.make_node("Log", ["x"], ["logits"])],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])],
        [],
    )
    bundle = write_manifest(tmp_path, [model(path, tmp_path)], ["a", "b"], input=NUMBERS)
    loaded = load_edge(bundle, OPTIONS)  # the trial's zeros have none either, which says nothing against the model
    with pytest.raises(InferenceError, match="'log' gave NaN or infinity for 2 of 3 rows"):
        loaded.predict(Tensor("x", np.array([[1, -1], [1, 1], [0, 1]], np.float32)))
    assert loaded.predict(Tensor("x", np.ones((1, 2), np.float32))).tolist() == [[0, 0]]


def test_prepared_rows_of_several_requests_run_together(tmp_path: Path) -> None:
    loaded = load_edge(colour_bundle(tmp_path), OPTIONS)
    one, two = images(encode(solid(0))), Tensor("image", np.stack([solid(1), solid(2)]))
    together = loaded.run(np.concatenate([loaded.prepare(one), loaded.prepare(two)]))
    np.testing.assert_allclose(together, np.concatenate([loaded.predict(one), loaded.predict(two)]), rtol=1e-6)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (Tensor("other", np.zeros((1, 2), np.float32)), "input is 'x', not 'other'"),
        (Tensor("x", np.zeros((1, 2), np.float64)), "'x' is FP32, but was sent as FP64"),
        (Tensor("x", np.zeros((1, 3), np.float32)), r"shape \[1, 3\], but the model takes \[any, 2\]"),
        (Tensor("x", np.zeros(2, np.float32)), r"shape \[2\]"),
        (Tensor("x", np.float32(1).reshape(())), "no rows"),
        (Tensor("x", np.zeros((0, 2), np.float32)), "no rows"),
        (Tensor("x", np.array([[0, 1], [2, np.nan]], np.float32)), "Row 1 of input 'x' has NaN"),
        (Tensor("x", np.array([[np.inf, 1]], np.float32)), "Row 0 of input 'x' has NaN or infinity"),
    ],
)
def test_what_is_not_the_bundles_input_is_refused(tmp_path: Path, tensor: Tensor, message: str) -> None:
    loaded = load_edge(number_bundle(tmp_path), OPTIONS)
    with pytest.raises(InvalidTensorError, match=message):
        loaded.prepare(tensor)


def test_an_image_input_takes_bytes_or_pixels_only(tmp_path: Path) -> None:
    loaded = load_edge(colour_bundle(tmp_path), OPTIONS)
    with pytest.raises(InvalidTensorError, match=r"BYTES \(encoded images\) or UINT8 pixels, but was sent as FP32"):
        loaded.prepare(Tensor("image", np.zeros((1, 4, 4, 3), np.float32)))
    two_axes = Tensor("image", images(encode(solid(0))).array.reshape(1, 1))
    with pytest.raises(InvalidTensorError, match=r"shape \[1, 1\], but the model takes \[any\]"):
        loaded.prepare(two_axes)


def test_rows_that_the_model_does_not_take_are_found_before_they_join_a_batch(tmp_path: Path) -> None:
    loaded = load_edge(colour_bundle(tmp_path, resize=False), OPTIONS)
    assert loaded.prepare(images(encode(solid(0, 4)))).shape == (1, 3, 4, 4)
    with pytest.raises(InvalidTensorError, match=r"rows of shape \[3, 6, 6\], but model 'colours' takes \[3, 4, 4\]"):
        loaded.prepare(images(encode(solid(0, 6))))


def test_where_sizes_are_free_a_wrong_label_file_is_found_at_the_first_run(tmp_path: Path) -> None:
    loaded = load_edge(colour_bundle(tmp_path, labels=("red", "green"), resize=False, size="side"), OPTIONS)
    with pytest.raises(InferenceError, match=r"gave \[1, 3\] for 1 rows, but the bundle has 2 labels"):
        loaded.predict(images(encode(solid(0))))


def test_the_label_offset_drops_the_background(tmp_path: Path) -> None:
    path = linear(tmp_path / "m.onnx", np.array([[9, 1, 2], [9, 2, 1]], np.float32))
    declared = model(path, tmp_path, postprocess=(LabelOffset(1),))
    loaded = load_edge(write_manifest(tmp_path, [declared], ["a", "b"], input=NUMBERS), OPTIONS)
    np.testing.assert_allclose(loaded.predict(Tensor("x", np.array([[1, 0]], np.float32))), [[1, 2]])


def test_predicts_from_several_threads(tmp_path: Path) -> None:
    loaded = load_edge(colour_bundle(tmp_path), OPTIONS)
    wrong: list[int] = []

    def work(channel: int) -> None:
        row = images(encode(solid(channel)))
        wrong.extend(channel for _ in range(50) if loaded.predict(row).argmax() != channel)

    threads = [threading.Thread(target=work, args=(channel,)) for channel in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_label_offset_holds_for_logits_too_and_a_graph_hides_them(tmp_path: Path) -> None:
    path = linear(tmp_path / "m.onnx", np.eye(2, 3, dtype=np.float32))
    steps = (Softmax(), LabelOffset())
    bundle = write_manifest(tmp_path, [model(path, tmp_path, postprocess=steps)], ["a", "b"], input=NUMBERS)
    found = load_edge(bundle, OPTIONS).predict_with_logits(Tensor("x", np.array([[3.0, 1.0]], np.float32)))
    np.testing.assert_allclose(found.logits, [[1, 0]])
    (edge,) = bundle.manifest.edge
    assert edge.shows_logits
    assert not msgspec.structs.replace(edge, postprocess=(Softmax(), Graph(edge.artefact))).shows_logits
    assert not msgspec.structs.replace(edge, postprocess=()).shows_logits
