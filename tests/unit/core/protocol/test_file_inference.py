"""Inference by file: a file as the body, labels in the answer."""

import threading
from typing import Any

import numpy as np
import orjson
import pytest
from support.answers import answer

from firstline_core.errors import InferenceError, InvalidTensorError, PayloadTooLargeError, RequestError
from firstline_core.protocol import file_body, oip
from firstline_core.protocol.file_inference import answer_json, read_request, request_from_file
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import Origin
from firstline_core.tasks import describe
from firstline_core.tasks.classification import Classification
from firstline_core.types import (
    Answer,
    InferRequest,
    InferResponse,
    ModelMetadata,
    Privacy,
    Reason,
    Route,
    RowAnswer,
    Status,
    Tensor,
    TensorSpec,
    Tier,
    Wait,
)

OUTPUTS = (TensorSpec("probabilities", "FP32", (-1, 3)),)
LABELS = ("cat", "dog", "owl")


def model(*inputs: TensorSpec) -> ModelMetadata:
    return ModelMetadata("m", ("1",), "onnx", inputs, OUTPUTS, LABELS)


IMAGE = model(TensorSpec("image", "BYTES", (-1,)))
VECTOR = model(TensorSpec("x", "FP32", (-1, 2)))
PAIR = model(TensorSpec("x", "FP32", (-1, 2)), TensorSpec("n", "INT32", (-1,)))


SMALL = Origin(now_s=3.0, principal="app", limits=Limits(body_bytes=1000, rows=3))


def short(metadata: ModelMetadata, body: bytes, content_type: str = "", **query: str) -> InferRequest:
    return request_from_file("m", metadata, body, content_type, query, origin=SMALL)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1), (1,)])
def test_an_image_is_one_row_of_bytes(shape: tuple[int, ...]) -> None:
    request = short(model(TensorSpec("image", "BYTES", shape)), b"\xff\xd8", "application/x-www-form-urlencoded")
    assert request.inputs[0].shape == tuple(abs(size) for size in shape)
    assert request.inputs[0].array.reshape(-1).tolist() == [b"\xff\xd8"]
    assert request.rows == 1


@pytest.mark.parametrize(
    ("metadata", "body", "arrays"),
    [
        (VECTOR, b"[1, 2]", [[[1, 2]]]),
        (VECTOR, b"[[1, 2], [3, 4]]", [[[1, 2], [3, 4]]]),
        (VECTOR, b'{"x": [1, 2]}', [[[1, 2]]]),
        (PAIR, b'{"n": 5, "x": [1, 2]}', [[[1, 2]], [5]]),
        (model(TensorSpec("x", "FP32", (-1, -1, 2))), b"[[1, 2]]", [[[[1, 2]]]]),
    ],
)
def test_json_for_the_declared_tensors(metadata: ModelMetadata, body: bytes, arrays: list[Any]) -> None:
    request = short(metadata, body)
    assert [tensor.array.tolist() for tensor in request.inputs] == arrays
    assert [tensor.datatype for tensor in request.inputs] == [spec.datatype for spec in metadata.inputs]


@pytest.mark.parametrize(
    ("metadata", "body", "message"),
    [
        (model(IMAGE.inputs[0], TensorSpec("text", "BYTES", (-1,))), b"a", "several inputs"),
        (model(TensorSpec("image", "BYTES", (-1, 2))), b"a", "2 elements a row"),
        (VECTOR, b"7", r"shape \[\]"),
        (VECTOR, b"null", r"a row takes shape \[2\]"),
        (VECTOR, b"[]", r"a row takes shape \[2\]"),
        (VECTOR, b"[[]]", r"a row takes shape \[2\]"),
        (VECTOR, b"[[1, 2], [3]]", "axis 1"),
        (PAIR, b"[1, 2]", "several inputs"),
        (PAIR, b'{"x": [[1, 2], [3, 4]], "n": [1]}', "rows"),
        (model(TensorSpec("x", "FP32", ())), b"7", "shape"),
    ],
)
def test_a_body_that_does_not_fit(metadata: ModelMetadata, body: bytes, message: str) -> None:
    with pytest.raises(InvalidTensorError, match=message):
        short(metadata, body)


def test_over_a_limit() -> None:
    with pytest.raises(PayloadTooLargeError):
        short(IMAGE, b"a" * 1001)
    with pytest.raises(PayloadTooLargeError):
        short(VECTOR, b"[[1,2],[1,2],[1,2],[1,2]]")


def test_the_query() -> None:
    wishes = {"route": "edge", "privacy": "local_only", "wait": "first"}
    request = short(IMAGE, b"a", **wishes, timeout="500000", priority="1", source="gate")
    assert (request.route, request.privacy, request.wait) == (Route.EDGE, Privacy.LOCAL_ONLY, Wait.FIRST)
    assert (request.deadline_s, request.priority, request.source, request.principal) == (3.5, 1, "gate", "app")
    assert short(IMAGE, b"a", timeout="0").deadline_s is None
    assert (short(IMAGE, b"a", id="mine").id, request.id) == ("mine", "")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"route": "up"}, "auto, edge, cloud"),
        ({"timeout": "soon"}, "microseconds"),
        ({"timeout": "-1"}, "microseconds"),
        ({"timeout": "9" * 5000}, "microseconds"),
        ({"priority": "high"}, "1 .the highest."),
        ({"priority": "-1"}, "1 .the highest."),
    ],
)
def test_a_bad_query(query: dict[str, str], message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        short(IMAGE, b"a", **query)
    assert refused.value.code == "invalid_request"


def test_a_long_id_is_refused() -> None:
    assert short(IMAGE, b"a", id="x" * 256).id == "x" * 256
    with pytest.raises(PayloadTooLargeError, match="'id' is 257 characters; at most 256"):
        short(IMAGE, b"a", id="x" * 257)


ANSWER = answer()


def response(rows: Any, name: str = "probabilities", described: Answer | None = ANSWER) -> InferResponse:
    return InferResponse("m", "1", (Tensor(name, np.array(rows, np.float32)),), answer=described)


def in_words(answered: InferResponse) -> dict[str, Any]:
    return answer_json(answered, describe(Classification(LABELS), answered.arrays))


def test_the_answer_in_words() -> None:
    assert in_words(response([[0.25, 0.5, 0.25]])) == {
        "request_id": "id",
        "status": "final",
        "certified": True,
        "durable": False,
        "tier": "edge",
        "reason": "confident",
        "confidence": 0.5,
        "model_digest": "d",
        "attempts": [{"tier": "edge", "outcome": "ok", "ms": 1.0}],
        "model": "m",
        "version": "1",
        "label": "dog",
        "probability": 0.5,
        "top": [
            {"label": "dog", "probability": 0.5},
            {"label": "cat", "probability": 0.25},
            {"label": "owl", "probability": 0.25},
        ],
    }


def test_five_classes_are_listed_by_number_without_labels() -> None:
    reply = in_words(response([np.arange(8) / 28]))
    assert [entry["label"] for entry in reply["top"]] == ["7", "6", "5", "4", "3"]


def test_several_rows() -> None:
    row = RowAnswer(Tier.EDGE, Reason.CONFIDENT, Status.FINAL, True, 0.5, "d")
    infer_response = response([[1, 0, 0], [0, 0, 1]], described=None)
    assert [each["label"] for each in in_words(infer_response)["results"]] == ["cat", "owl"]
    two = InferResponse("m", "1", infer_response.outputs, answer=answer(rows=(row, row)))
    assert len(in_words(two)["rows"]) == 2


def test_other_outputs_are_given_as_they_are() -> None:
    assert in_words(response([[1, 2]], "boxes"))["outputs"] == {"boxes": [[1.0, 2.0]]}
    text = InferResponse("m", "1", (Tensor("words", np.array([[b"a", b"b"]], np.object_)),))
    assert in_words(text)["outputs"] == {"words": [["a", "b"]]}


@pytest.mark.parametrize("name", ["probabilities", "boxes"])
def test_a_model_that_gives_nan(name: str) -> None:
    with pytest.raises(InferenceError):
        in_words(response([[np.nan, 1]], name))


async def test_body_query_and_headers_make_a_request() -> None:
    origin = Origin(principal="app", now_s=10.0)
    request = await read_request("m", VECTOR, {}, {"timeout": "1000000"}, b"[1, 2]", origin=origin)
    assert (request.model, request.principal, request.deadline_s) == ("m", "app", 11.0)
    with pytest.raises(InvalidTensorError, match="form has no boundary"):
        await read_request("m", IMAGE, {"content-type": "Multipart/form-data"}, {}, b"a", origin=Origin())


@pytest.mark.parametrize(("zeros", "aside"), [(1, False), (200_000, True)])
async def test_long_decoding_leaves_event_loop_free(zeros: int, aside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def parse_json(*args: Any) -> Any:
        threads.append(threading.get_ident())
        return oip.parse_json(*args)

    monkeypatch.setattr(file_body, "parse_json", parse_json)
    with pytest.raises(InvalidTensorError, match="shape"):
        await read_request("m", VECTOR, {}, {}, orjson.dumps([0] * (zeros + 2)), origin=Origin())
    assert (threads != [threading.get_ident()]) is aside
