"""Typed answers."""

import base64
import struct
from io import BytesIO
from pathlib import Path
from typing import Any
from zlib import compress, crc32

import numpy as np
import orjson
import pytest
from PIL import Image
from support.answers import answer
from support.images import encode

import firstline
from firstline.client.results import prediction_from, read_task
from firstline_core.errors import InvalidTensorError, ProtocolError
from firstline_core.file_route import answer_json
from firstline_core.tasks import AnyTask
from firstline_core.tasks.anomaly import Anomaly
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection
from firstline_core.tasks.embedding import Embedding
from firstline_core.tasks.regression import Regression
from firstline_core.tasks.segmentation import Segmentation
from firstline_core.tasks.text import Text
from firstline_core.types import Array, InferResponse, ModelMetadata, Tensor, TensorSpec

TASK = Detection(("cat", "dog"), k=3)
BOXES: dict[str, Array] = {
    "boxes": np.array([[[1, 2, 30, 40], [5, 5, 8, 9], [0, 0, 0, 0]], [[0, 0, 0, 0]] * 3], np.float32),
    "scores": np.array([[0.75, 0.5, 0], [0, 0, 0]], np.float32),
    "classes": np.array([[1, 0, -1], [-1, -1, -1]]),
    "count": np.array([2, 0]),
}


def response(arrays: dict[str, Array]) -> InferResponse:
    return InferResponse("m", "3", tuple(Tensor(*each) for each in arrays.items()), answer=answer())


def metadata(task: AnyTask | None, outputs: tuple[TensorSpec, ...] = ()) -> ModelMetadata:
    return ModelMetadata("m", ("3",), "onnx", (), outputs, task=task)


def read(task: AnyTask | None, arrays: dict[str, Array], **changes: Any) -> firstline.Prediction:
    """The typed answer, over JSON as a server sends it."""
    document = orjson.loads(orjson.dumps(answer_json(response(arrays), task, {})))
    return prediction_from(document | changes, "The server")


def first_row(arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: array[:1] for name, array in arrays.items()}


def test_values_have_names() -> None:
    found = read(Regression(("low", "high"), absolute=1), {"values": np.array([[1.5, 2.25]], np.float32)})
    assert isinstance(found, firstline.Values)
    assert found.values == {"low": 1.5, "high": 2.25} and str(found) == "low 1.5, high 2.25"


def test_an_anomaly_has_a_score() -> None:
    outputs = {"score": np.array([0.75], np.float32), "anomalous": np.array([True])}
    found = read(Anomaly(("fine", "broken")), outputs)
    assert isinstance(found, firstline.Anomaly)
    assert (found.anomalous, found.score, str(found)) == (True, 0.75, "anomalous (0.75)")


def test_an_embedding_has_a_neighbour() -> None:
    outputs = {
        "embedding": np.array([[3, 4]], np.float32),
        "neighbour": np.array([1]),
        "similarity": np.array([0.5], np.float32),
    }
    found = read(Embedding(2, labels=("ann", "bob")), outputs)
    assert isinstance(found, firstline.Embedding)
    assert (found.neighbour, found.similarity, str(found)) == ("bob", 0.5, "bob (0.50)")
    alone = read(Embedding(2, tolerance=0.1), {"embedding": outputs["embedding"]})
    assert isinstance(alone, firstline.Embedding)
    assert (alone.neighbour, alone.embedding.tolist()) == (None, [3, 4])
    assert alone.embedding.dtype == np.float32
    assert str(alone) == "embedding of 2 numbers"


@pytest.mark.parametrize("query", [{}, {"masks": "rle"}])
def test_masks_are_arrays(query: dict[str, str]) -> None:
    task = Segmentation(("ground", "cat"), width=4, height=2)
    outputs = {"mask": np.array([[[0, 0, 1, 1], [255] * 4]], np.uint8), "confidence": np.ones(1, np.float32)}
    images = Tensor("image", np.array([encode(np.zeros((10, 40, 3), np.uint8))], object))
    document = orjson.loads(orjson.dumps(answer_json(response(outputs), task, query, images)))
    found = prediction_from(document, "The server")
    assert isinstance(found, firstline.Segmentation)
    assert (found.mask.tolist(), found.labels, found.width) == ([[0, 0, 1, 1]], {0: "ground", 1: "cat"}, 40)
    assert found.resized().shape == (10, 40) and (found.resized()[:, 20:] == 1).all()
    assert str(found) == "ground (50 %), cat (50 %)"


def test_detections_are_arrays_and_objects() -> None:
    found = read(TASK, first_row(BOXES), width=64, height=48)
    assert isinstance(found, firstline.Detections)
    assert (found.labels, found.width, found.height, len(found)) == (("dog", "cat"), 64, 48, 2)
    np.testing.assert_array_equal(found.boxes, [[1, 2, 30, 40], [5, 5, 8, 9]])
    assert found.scores.tolist() == [0.75, 0.5]
    assert list(found) == [("dog", 0.75, (1, 2, 30, 40)), ("cat", 0.5, (5, 5, 8, 9))]
    assert next(iter(found)).label == "dog"
    assert str(firstline.Box(241.8000030517578, 2, 30, 40)) == "(241.8, 2.0, 30.0, 40.0)"
    assert repr(next(iter(found))) == "Detected(label='dog', score=0.75, box=(1.0, 2.0, 30.0, 40.0))"
    assert str(found) == "dog (75 %), cat (50 %)"


def test_several_rows_are_read_one_by_one() -> None:
    rows = read(TASK, BOXES)
    assert isinstance(rows, firstline.Rows) and len(rows) == 2
    busy, empty = rows
    assert isinstance(busy, firstline.Detections) and isinstance(empty, firstline.Detections)
    assert (len(busy), len(empty), empty.boxes.shape, empty.width) == (2, 0, (0, 4), 0)
    assert str(rows) == "dog (75 %), cat (50 %)\nno objects"


def test_other_outputs_are_arrays() -> None:
    found = read(None, {"y": np.arange(6, dtype=np.float32).reshape(2, 3)})
    assert isinstance(found, firstline.Tensors)
    np.testing.assert_array_equal(found.outputs["y"], [[0, 1, 2], [3, 4, 5]])
    assert str(found) == "y [[0., 1., 2.], [3., 4., 5.]]"
    assert str(read(None, {"y": np.zeros((1, 3, 224), np.float32)})) == "y of shape [1, 3, 224]"


def test_text_has_its_keywords() -> None:
    found = read(Text(keywords=("stop",)), {"text": np.array([b"stop now"], object)})
    assert isinstance(found, firstline.Text)
    assert (str(found), found.keywords) == ("stop now", ("stop",))


@pytest.mark.parametrize("task", [TASK, Classification(("no", "yes"))])
def test_tensors_of_infer_become_the_same_answers(task: AnyTask) -> None:
    arrays = BOXES if isinstance(task, Detection) else {"probabilities": np.array([[0.25, 0.75]], np.float32)}
    rows = firstline.predictions(response(arrays), metadata(task))
    over_json = read(task, arrays)
    assert list(map(str, rows)) == str(over_json).splitlines()
    assert rows[0].answer == over_json.answer


def test_tensors_need_their_own_models_metadata() -> None:
    with pytest.raises(InvalidTensorError, match="'m' is not described by 'other'"):
        firstline.predictions(response(BOXES), ModelMetadata("other", (), "", (), ()))


def test_tasks_of_later_versions_are_unknown() -> None:
    assert read_task({"kind": "poetry", "metre": "iambic"}) is None
    assert read_task({"kind": "detection", "labels": []}) is None
    assert read_task({"kind": "detection", "labels": ["cat", "dog"], "k": 3}) == TASK


def test_boxes_are_drawn_into_the_upright_image(tmp_path: Path) -> None:
    found = read(TASK, first_row(BOXES))
    assert isinstance(found, firstline.Detections)
    file = BytesIO()
    sideways = Image.new("RGB", (40, 30))
    exif = sideways.getexif()
    exif[0x0112] = 6
    sideways.save(file, "JPEG", exif=exif)
    path = tmp_path / "image.jpg"
    path.write_bytes(file.getvalue())
    drawn = [found.draw(image) for image in (file.getvalue(), path, str(path), Image.open(path))]
    assert {each.size for each in drawn} == {(30, 40)}
    assert len({each.tobytes() for each in drawn}) == 1
    assert np.asarray(drawn[0]).any()


def test_drawings_of_no_objects_are_the_image() -> None:
    _, empty = firstline.predictions(response(BOXES), metadata(TASK))
    assert isinstance(empty, firstline.Detections)
    pixels = np.full((4, 5, 3), 100, np.uint8)
    np.testing.assert_array_equal(np.asarray(empty.draw(encode(pixels))), pixels)
    with pytest.raises(InvalidTensorError, match="The image cannot be read"):
        empty.draw(b"no image")


def test_masks_are_drawn_and_checked() -> None:
    fields = {
        "classes": [{"label": "cat", "class": 1, "share": 0.25}],
        "mask": {"width": 2, "height": 2, "rle": [[0, 3], [1, 1]]},
    }
    document = orjson.loads(orjson.dumps(answer_json(response(first_row(BOXES)), None, {})))
    found = prediction_from({key: document[key] for key in document if key != "outputs"} | fields, "The server")
    assert isinstance(found, firstline.Segmentation)
    assert (list(found), len(found), found.mask.tolist()) == (["cat"], 1, [[0, 0], [0, 1]])
    drawn = np.asarray(found.draw(encode(np.zeros((40, 40, 3), np.uint8))))
    assert drawn.shape == (40, 40, 3) and drawn[30:, 30:].any() and not drawn[:20, :20].any()
    fields["mask"] = {"width": 2, "height": 2, "rle": [[0, 3], [1, 1_000_000_000]]}
    with pytest.raises(ProtocolError, match="run lengths do not fill the mask"):
        prediction_from(document | fields, "The server")


def png(width: int, height: int, pixels: bytes = b"") -> str:
    """A PNG in base64 that declares its size, and may have no pixels."""
    chunks = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), (b"IDAT", pixels), (b"IEND", b"")
    data = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc32(kind + data)) for kind, data in chunks
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + data).decode()


@pytest.mark.parametrize(
    "mask",
    [
        {"png": "aGVsbG8="},
        {"png": png(1, 1)},
        {"png": png(4, 1, compress(bytes(5)))},
        {"png": png(2, 2)},
        {"png": png(60_000, 60_000)},
        {"rle": [[0, 10**30]]},
        {"rle": [[300, 4]]},
        {"rle": [[1, 10**16]], "width": 10**8, "height": 10**8},
    ],
    ids=["no png", "another size", "another shape", "no pixels", "bomb", "no number", "no class", "beyond memory"],
)
def test_a_mask_that_no_server_sends_is_an_error_of_the_protocol(mask: dict[str, Any]) -> None:
    document = orjson.loads(orjson.dumps(answer_json(response(first_row(BOXES)), None, {})))
    fields = {"classes": [], "mask": {"width": 2, "height": 2} | mask}
    with pytest.raises(ProtocolError, match="The server did not answer as a Firstline server does"):
        prediction_from({key: document[key] for key in document if key != "outputs"} | fields, "The server")


def test_answers_of_unknown_tasks_keep_their_fields() -> None:
    document = {key: value for key, value in answer_json(response(BOXES), TASK, {}).items() if key != "results"}
    found = prediction_from({**document, "poem": "roses"}, "The server")
    assert isinstance(found, firstline.Fields)
    assert found.fields["poem"] == "roses" and str(found) == "poem roses"
