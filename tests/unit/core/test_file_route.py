"""Requests of the file route, and their answers as JSON and as pictures."""

import asyncio
import json
from collections.abc import AsyncIterator
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from support.answers import answer
from support.images import encode, images, turned

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import InferenceError, InvalidTensorError, PayloadTooLargeError, RequestError
from firstline_core.file_route import FileRoute, image_of, read_view, wants_picture, with_sizes
from firstline_core.processing.decoding import FileDecoding
from firstline_core.protocol.asgi import Request, query_parameters
from firstline_core.protocol.http import Reply
from firstline_core.protocol.limits import DEFAULT_DECODING_LIMITS, DEFAULT_LIMITS, DecodingLimits
from firstline_core.tasks import describe
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection
from firstline_core.tasks.view import WHOLE, View
from firstline_core.types import Array, InferRequest, InferResponse, ModelMetadata, Tensor, TensorSpec

TASK = Detection(("cat", "dog"), k=2)


@pytest.fixture
async def decoding() -> AsyncIterator[FileDecoding]:
    found = FileDecoding(1, 1 << 30, SYSTEM_CLOCK)
    yield found
    found.close()


def request(content: bytes) -> InferRequest:
    return InferRequest("pets", (images(content),), "01890a5d-ac96-774b-bcce-b302099a8057", id="\u00fcber")


def response(box: tuple[float, ...]) -> InferResponse:
    outputs = {
        "boxes": np.array([[box, (0, 0, 0, 0)]], np.float32),
        "scores": np.array([[0.5, 0]], np.float32),
        "classes": np.array([[1, -1]]),
        "count": np.array([1]),
    }
    return InferResponse("pets", "1", tuple(Tensor(*each) for each in outputs.items()), id="\u00fcber", answer=answer())


def sideways() -> bytes:
    """A black JPEG of 40 x 30 pixels, which is upright as 30 x 40."""
    return turned(np.zeros((30, 40, 3), np.uint8))


@pytest.mark.parametrize(
    ("accept", "wants"),
    [
        ("image/jpeg", True),
        ("IMAGE/JPEG;q=0.9, application/json", True),
        ("text/html, image/jpeg", True),
        ("application/json, image/jpeg", False),
        ("*/*", False),
        ("image/*", True),
        ("image/webp, image/*;q=0.8", True),
        ("image/*, */*;q=0.8", False),
        ("image/png, application/json", False),
        ("", False),
    ],
)
def test_callers_accept_pictures_by_name(accept: str, wants: bool) -> None:
    assert wants_picture({"accept": accept}) is wants


class Plane:
    """A tier with one model."""

    limits = DEFAULT_LIMITS

    def __init__(self, response: InferResponse, task: Detection | None = TASK) -> None:
        self.response = response
        self.known = task
        self.asked = 0

    def task(self, model: str, version: str = "") -> Detection | None:
        return self.known

    async def infer(self, request: InferRequest) -> InferResponse:
        self.asked += 1
        return self.response


def asking_for(accept: str, query: bytes = b"") -> Request:
    scope = {
        "method": "POST",
        "path": "/firstline/v1/models/pets/infer",
        "headers": [(b"accept", accept.encode())],
        "query_string": query,
    }
    return Request(scope, asyncio.Queue().get)


async def drawn(decoding: FileDecoding, content: bytes, box: tuple[float, ...], query: bytes = b"") -> Reply:
    route = FileRoute(Plane(response(box)), decoding, DEFAULT_DECODING_LIMITS)
    return await route.answer(request(content), asking_for("image/jpeg", query))


async def test_picture_is_upright_and_has_the_boxes(decoding: FileDecoding) -> None:
    replies = [await drawn(decoding, sideways(), (5, 20, 25, 38), query) for query in (b"", b"classes=cat")]
    seen = [np.asarray(Image.open(BytesIO(reply.body))) for reply in replies]
    assert seen[0].shape == (40, 30, 3)
    assert seen[0][36:].any() and not seen[0][:15].any()
    assert not seen[1].any()
    assert decoding.budget.held_bytes == 0


async def test_fields_of_the_answer_are_a_header(decoding: FileDecoding) -> None:
    found = await drawn(decoding, sideways(), (0, 0, 4, 4))
    facts = json.loads(found.headers["Firstline-Answer"].encode("ascii"))
    assert (facts["model"], facts["tier"], facts["id"]) == ("pets", "edge", "\u00fcber")
    assert "objects" not in facts and found.headers["Content-Type"] == "image/jpeg"


async def test_large_images_are_drawn_smaller(decoding: FileDecoding) -> None:
    found = await drawn(decoding, encode(np.zeros((3000, 100, 3), np.uint8)), (0, 2900, 100, 3000))
    image = np.asarray(Image.open(BytesIO(found.body)))
    assert image.shape == (1920, 64, 3)
    assert image[1860:].any() and not image[:1800].any()


@pytest.mark.parametrize(
    ("inputs", "task", "error", "message"),
    [
        (images(sideways()), None, RequestError, "'pets' is not"),
        (images(b"no image"), TASK, InvalidTensorError, "Row 0 of input 'image' is neither JPEG nor PNG"),
        (images(encode(np.zeros((500, 500), np.uint8))), TASK, PayloadTooLargeError, "Send it smaller"),
        (Tensor("x", np.zeros((1, 2), np.float32)), TASK, RequestError, "needs one image in the body; accept appl"),
    ],
)
async def test_impossible_pictures_are_refused_before_the_model_runs(
    decoding: FileDecoding, inputs: Tensor, task: Detection | None, error: type[RequestError], message: str
) -> None:
    plane = Plane(response((0, 0, 4, 4)), task)
    route = FileRoute(plane, decoding, DecodingLimits(memory_bytes=200_000))
    with pytest.raises(error, match=message):
        await route.answer(InferRequest("pets", (inputs,), ""), asking_for("image/jpeg"))
    assert not plane.asked


async def test_other_answers_are_not_drawn(decoding: FileDecoding) -> None:
    other = InferResponse("pets", "1", (Tensor("y", np.zeros(1, np.float32)),), answer=answer())
    route = FileRoute(Plane(other), decoding, DEFAULT_DECODING_LIMITS)
    with pytest.raises(InferenceError, match="cannot be drawn"):
        await route.answer(request(sideways()), asking_for("image/jpeg"))


async def test_values_of_a_query_may_have_line_breaks(decoding: FileDecoding) -> None:
    route = FileRoute(Plane(response((0, 0, 4, 4))), decoding, DEFAULT_DECODING_LIMITS)
    metadata = ModelMetadata("pets", (), "", (TensorSpec("image", "BYTES", (-1,)),), (), files=("image",))

    async def read(query: bytes) -> InferRequest:
        return await route.read("pets", metadata, asking_for("", query), sideways(), "me")

    found = await read(b"source=hall%0Aleft&id=a%0Ab")
    assert (found.source, found.id, found.principal) == ("hall\nleft", "a\nb", "me")
    for query, message in (
        (b"source=a&source=b", "several values, 'a' and 'b'"),
        (b"id=%00", "character NUL"),
        (256 * b"&source=a", "more than 256 parameters"),
    ):
        with pytest.raises(RequestError, match=message):
            await read(query)


# The part of an answer that a caller wants to see.

PETS = Detection(("cat", "dog", "cow"), k=4)


def outputs() -> dict[str, Array]:
    return {
        "boxes": np.array([[[0, 0, 4, 4], [0, 0, 3, 3], [0, 0, 2, 2], [0, 0, 0, 0]]], np.float32),
        "scores": np.array([[0.9, 0.5, 0.25, 0]], np.float32),
        "classes": np.array([[1, 0, 1, -1]]),
        "count": np.array([3]),
    }


@pytest.mark.parametrize(
    ("query", "labels"),
    [
        ({}, ["dog", "cat", "dog"]),
        ({"route": "edge", "id": "mine"}, ["dog", "cat", "dog"]),
        ({"min_score": "0.5"}, ["dog", "cat"]),
        ({"min_score": "1"}, []),
        ({"classes": "dog"}, ["dog", "dog"]),
        ({"classes": "cat, cow"}, ["cat"]),
        ({"max_objects": "1"}, ["dog"]),
        ({"classes": "cat,dog", "max_objects": "2", "min_score": "0.3"}, ["dog", "cat"]),
    ],
)
def test_objects_are_filtered(query: dict[str, str], labels: list[str]) -> None:
    view = read_view(query, "pets", PETS)
    (found,) = describe(PETS, outputs(), view) or [{}]
    assert [each["label"] for each in found["objects"]] == labels
    assert found["count"] == len(labels)
    assert PETS.seen(outputs(), 0, view).classes.tolist() == [PETS.labels.index(label) for label in labels]


@pytest.mark.parametrize(
    ("query", "classes"),
    [
        ("classes=a&classes=b", ("a", "b")),
        ("classes=a,b&classes=c", ("a", "b", "c")),
        ("classes=salt,%20pepper", ("salt, pepper",)),
        ("classes=salt,+pepper&classes=a,b", ("salt, pepper", "a", "b")),
        ("classes=two%0Alines&classes=a", ("two\nlines", "a")),
    ],
)
def test_labels_may_be_repeated_and_hold_commas(query: str, classes: tuple[str, ...]) -> None:
    task = Detection(("a", "b", "c", "salt, pepper", "two\nlines"), 3)
    assert read_view(query_parameters(query.encode()), "pets", task).classes == classes


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"min_score": "high"}, "'min_score' is 'high'; use a number from 0 to 1."),
        ({"min_score": "1.5"}, "use a number from 0 to 1"),
        ({"min_score": "nan"}, "use a number from 0 to 1"),
        ({"min_score": ""}, "use a number from 0 to 1"),
        (
            {"classes": "cow,bird"},
            "names 'bird', which 'pets' does not know; 'pets' knows cat, dog, cow. Separate labels",
        ),
        ({"classes": ""}, "'classes' has an empty label; 'pets' knows cat, dog, cow. Separate"),
        ({"max_objects": "0"}, "'max_objects' is '0'; use 1 to 1000."),
        ({"max_objects": "-1"}, "use 1 to 1000"),
        ({"max_objects": "1.0"}, "'max_objects' is '1.0'; use 1 to 1000."),
        ({"max_objects": "1e1"}, "use 1 to 1000"),
        ({"max_objects": "²"}, "use 1 to 1000"),
        ({"max_objects": "9" * 5000}, "use 1 to 1000"),
        ({"masks": "png"}, "'masks' does not apply to detection, the task of 'pets'; use min_score, classes,"),
    ],
)
def test_wrong_view_is_refused(query: dict[str, str], message: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_view(query, "pets", PETS)
    assert message in refused.value.message


def test_parameters_of_other_tasks_are_refused() -> None:
    with pytest.raises(RequestError, match="'max_objects' needs the model 'pets', which is not here"):
        read_view({"max_objects": "3"}, "pets", None)
    assert read_view({"wait": "first"}, "pets", None) is WHOLE


def test_answers_in_pixels_state_the_size_of_the_upright_image() -> None:
    pictures = images(encode(np.zeros((20, 30, 3), np.uint8)), encode(np.zeros((5, 6, 3), np.uint8), "JPEG"))
    assert with_sizes(WHOLE, PETS, pictures).sizes == ((30, 20), (6, 5))
    assert with_sizes(WHOLE, Classification(("a", "b")), pictures) is WHOLE
    assert with_sizes(WHOLE, PETS, None) is WHOLE
    (found,) = describe(PETS, outputs(), View(sizes=((30, 20),))) or [{}]
    assert list(found) == ["width", "height", "count", "objects"]
    assert (found["width"], found["height"]) == (30, 20)


def test_images_are_found_among_other_inputs() -> None:
    pictures = images(encode(np.zeros((5, 6), np.uint8), "JPEG"))
    words, numbers = images(b"find dogs", name="prompt"), Tensor("x", np.zeros((1, 2), np.float32))
    assert image_of((words, numbers, pictures)) is pictures
    assert image_of((words, numbers)) is None
