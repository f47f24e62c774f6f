"""Answers of the file route as pictures."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from support.answers import answer
from support.images import encode, images

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import (
    InferenceError,
    InvalidTensorError,
    NotAcceptableError,
    PayloadTooLargeError,
    RequestError,
)
from firstline_core.processing.decoding import ImageDecoding
from firstline_core.protocol.limits import DEFAULT_IMAGE_LIMITS, ImageLimits
from firstline_core.tasks.detection import Detection
from firstline_core.tasks.picture import Drawing, wants_picture
from firstline_core.types import InferRequest, InferResponse, Tensor

TASK = Detection(("cat", "dog"), k=2)


@pytest.fixture
async def decoding() -> AsyncIterator[ImageDecoding]:
    found = ImageDecoding(1, 1 << 30, SYSTEM_CLOCK)
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
    file, image = BytesIO(), Image.new("RGB", (40, 30))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(file, "JPEG", exif=exif)
    return file.getvalue()


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


def test_callers_of_other_pictures_are_refused() -> None:
    with pytest.raises(NotAcceptableError, match="Accept is 'image/png'; accept image/jpeg or application/json"):
        wants_picture({"accept": "image/png"})


async def test_picture_is_upright_and_has_the_boxes(decoding: ImageDecoding) -> None:
    drawing = Drawing(decoding, DEFAULT_IMAGE_LIMITS)
    sketch = drawing.sketch(request(sideways()), TASK)
    seen = [
        np.asarray(Image.open(BytesIO(reply.body)))
        for query in ({}, {"classes": "cat"})
        if (reply := await drawing.reply(sketch, response((5, 20, 25, 38)), TASK, query)).status == 200
    ]
    assert seen[0].shape == (40, 30, 3)
    assert seen[0][36:].any() and not seen[0][:15].any()
    assert not seen[1].any()
    assert decoding.budget.held_bytes == 0


async def test_fields_of_the_answer_are_a_header(decoding: ImageDecoding) -> None:
    drawing = Drawing(decoding, DEFAULT_IMAGE_LIMITS)
    found = await drawing.reply(drawing.sketch(request(sideways()), TASK), response((0, 0, 4, 4)), TASK, {})
    facts = json.loads(found.headers["Firstline-Answer"].encode("ascii"))
    assert (facts["model"], facts["tier"], facts["id"]) == ("pets", "edge", "\u00fcber")
    assert "objects" not in facts and found.headers["Content-Type"] == "image/jpeg"


async def test_large_images_are_drawn_smaller(decoding: ImageDecoding) -> None:
    drawing = Drawing(decoding, DEFAULT_IMAGE_LIMITS)
    sketch = drawing.sketch(request(encode(np.zeros((3000, 100, 3), np.uint8))), TASK)
    found = await drawing.reply(sketch, response((0, 2900, 100, 3000)), TASK, {})
    drawn = np.asarray(Image.open(BytesIO(found.body)))
    assert drawn.shape == (1920, 64, 3)
    assert drawn[1860:].any() and not drawn[:1800].any()


@pytest.mark.parametrize(
    ("content", "task", "error", "says"),
    [
        (sideways(), None, RequestError, "'pets' is not"),
        (b"no image", TASK, InvalidTensorError, "Row 0 of input 'image' is neither JPEG nor PNG"),
        (encode(np.zeros((500, 500), np.uint8)), TASK, PayloadTooLargeError, "Send it smaller"),
    ],
)
async def test_impossible_pictures_are_refused(
    decoding: ImageDecoding, content: bytes, task: Detection | None, error: type[RequestError], says: str
) -> None:
    with pytest.raises(error, match=says):
        Drawing(decoding, ImageLimits(memory_bytes=200_000)).sketch(request(content), task)


async def test_numbers_are_not_drawn(decoding: ImageDecoding) -> None:
    drawing = Drawing(decoding, DEFAULT_IMAGE_LIMITS)
    numbers = InferRequest("m", (Tensor("x", np.zeros((1, 2), np.float32)),), "")
    with pytest.raises(RequestError, match="needs one image in the body; accept application/json instead"):
        drawing.sketch(numbers, TASK)
    sketch = drawing.sketch(request(sideways()), TASK)
    other = InferResponse("pets", "1", (Tensor("y", np.zeros(1, np.float32)),), answer=answer())
    with pytest.raises(InferenceError, match="cannot be drawn"):
        await drawing.reply(sketch, other, TASK, {})
