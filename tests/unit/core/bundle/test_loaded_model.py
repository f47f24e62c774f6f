from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from support.images import by_name, encode, images
from support.sample_bundles import NUMBERS, colour_bundle, number_bundle, solid

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import float_graph
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_edge
from firstline_core.errors import InferenceError, InvalidTensorError, PayloadTooLargeError
from firstline_core.processing.cost import MeasuredInputs
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import PROBABILITIES, Array, Tensor, join_rows, row_count

OPTIONS = RuntimeOptions()


def probabilities(loaded: LoadedModel, tensor: Tensor) -> Array:
    return loaded.predict(by_name(tensor)).outputs[PROBABILITIES]


def test_encoded_images_to_probabilities(tmp_path: Path) -> None:
    loaded = load_edge(colour_bundle(tmp_path), OPTIONS)
    found = probabilities(loaded, images(*[encode(solid(channel, 5 + channel)) for channel in (2, 0, 1)]))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
    assert [loaded.task.labels[i] for i in found.argmax(axis=1)] == ["blue", "red", "green"]
    assert loaded.digest == loaded.model.digest


def test_headers_of_measured_images_are_not_read_again(tmp_path: Path) -> None:
    loaded = load_edge(colour_bundle(tmp_path), OPTIONS)
    image = encode(solid(1, 6), "JPEG")
    cost = loaded.decoding_cost(by_name(images(image)))
    segments = by_name(images(image[:2] + b"\xff\xe5\0\3x" * 10_000 + image[2:]))
    with pytest.raises(PayloadTooLargeError, match="segments"):
        loaded.prepare(segments)
    assert row_count(loaded.prepare(MeasuredInputs(segments, cost))) == 1


def test_a_row_without_finite_outputs_is_an_error(tmp_path: Path) -> None:
    nodes = [helper.make_node("Log", ["x"], ["logits"])]
    path = float_graph(tmp_path / "log.onnx", nodes, {"x": ["n", 2]}, {"logits": ["n", 2]})
    bundle = write_manifest(tmp_path, [model(path, tmp_path)], ["a", "b"], inputs=(NUMBERS,))
    loaded = load_edge(bundle, OPTIONS)  # the trial's zeros have none either, which says nothing against the model
    with pytest.raises(InferenceError, match="'log' gave NaN or infinity for 2 of 3 rows"):
        loaded.predict(by_name(Tensor("x", np.array([[1, -1], [1, 1], [0, 1]], np.float32))))
    well = np.full((1, 2), np.exp(0.5), np.float32)
    np.testing.assert_allclose(probabilities(loaded, Tensor("x", well)), [[0.5, 0.5]], rtol=1e-6)


def test_prepared_rows_of_several_requests_run_together(tmp_path: Path) -> None:
    loaded = load_edge(colour_bundle(tmp_path), OPTIONS)
    one, two = images(encode(solid(0))), Tensor("image", np.stack([solid(1), solid(2)]))
    together = loaded.run(join_rows([loaded.prepare(by_name(one)), loaded.prepare(by_name(two))]))
    alone = np.concatenate([probabilities(loaded, one), probabilities(loaded, two)])
    np.testing.assert_allclose(together[PROBABILITIES], alone, rtol=1e-6)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (Tensor("other", np.zeros((1, 2), np.float32)), "needs input 'x'; it was given: other"),
        (Tensor("x", np.zeros((1, 2), np.bool_)), "'x' is FP32, but was sent as BOOL"),
        (Tensor("x", np.full((1, 2), 1e39)), "Input 'x' takes float32, up to 3.4"),
        (Tensor("x", np.zeros(2, np.float32)), r"shape \[2\]"),
        (Tensor("x", np.float32(1).reshape(())), "no rows"),
        (Tensor("x", np.zeros((0, 2), np.float32)), "no rows"),
        (Tensor("x", np.array([[0, 1], [2, np.nan]], np.float32)), "Row 1 of input 'x' has NaN"),
        (Tensor("x", np.array([[np.inf, 1]], np.float32)), "Row 0 of input 'x' has NaN or infinity"),
    ],
)
def test_an_unsuitable_input_is_refused(tmp_path: Path, tensor: Tensor, message: str) -> None:
    loaded = load_edge(number_bundle(tmp_path), OPTIONS)
    with pytest.raises(InvalidTensorError, match=message):
        loaded.prepare(by_name(tensor))


def test_an_image_input_takes_bytes_or_pixels_only(tmp_path: Path) -> None:
    loaded = load_edge(colour_bundle(tmp_path), OPTIONS)
    with pytest.raises(InvalidTensorError, match=r"BYTES \(encoded images\) or UINT8 pixels, but was sent as FP32"):
        loaded.prepare(by_name(Tensor("image", np.zeros((1, 4, 4, 3), np.float32))))
    two_axes = Tensor("image", images(encode(solid(0))).array.reshape(1, 1))
    with pytest.raises(InvalidTensorError, match=r"shape \[1, 1\], but the model takes \[any\]"):
        loaded.prepare(by_name(two_axes))


def test_rows_of_a_wrong_shape_never_join_a_batch(tmp_path: Path) -> None:
    loaded = load_edge(colour_bundle(tmp_path, resize=False), OPTIONS)
    (rows,) = loaded.prepare(by_name(images(encode(solid(0, 4))))).values()
    assert rows.shape == (1, 3, 4, 4)
    with pytest.raises(InvalidTensorError, match=r"rows of shape \[3, 6, 6\], but model 'colours' takes \[3, 4, 4\]"):
        loaded.prepare(by_name(images(encode(solid(0, 6)))))


def test_predicts_from_several_threads(tmp_path: Path) -> None:
    loaded = load_edge(colour_bundle(tmp_path), OPTIONS)

    def work(channel: int) -> bool:
        row = images(encode(solid(channel)))
        return all(probabilities(loaded, row).argmax() == channel for _ in range(50))

    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(work, range(3)))
