"""Draws answers of the file route into the image that was sent, for callers that accept `image/jpeg`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from firstline_core.errors import InferenceError, NotAcceptableError, RequestError
from firstline_core.processing.decoding import ImageDecoding
from firstline_core.processing.image_header import ImageCost, check_limits, read_header
from firstline_core.processing.steps import Decode, Resize
from firstline_core.protocol import file_inference
from firstline_core.protocol.http import CONTENT_TYPE, JSON_TYPE, Reply
from firstline_core.protocol.http import header as header_of
from firstline_core.protocol.limits import ImageLimits
from firstline_core.protocol.tensors import shown
from firstline_core.tasks import describes
from firstline_core.tasks.base import Task
from firstline_core.tasks.view import image_of, read_view, with_sizes
from firstline_core.types import InferRequest, InferResponse, Tensor

if TYPE_CHECKING:
    from firstline_core.processing.images import ImageProcessing

PICTURE_TYPE = "image/jpeg"
ANSWER_HEADER = "Firstline-Answer"
"""Header of a picture: the fields of every answer, as JSON in ASCII."""

SIDE_LIMIT = 1920
"""Of a picture, in pixels: larger images are drawn smaller."""

_QUALITY = 85
_BYTES_PER_PIXEL = 8  # of the copy that is drawn into, and of its encoding


def wants_picture(headers: Mapping[str, str]) -> bool:
    """Returns whether the Accept header names JPEG before JSON, or takes nothing but images and JPEG among them.

    Raises:
        NotAcceptableError: it takes images of other types alone.
    """
    kinds = [kind.partition(";")[0].strip() for kind in (header_of(headers, "Accept") or "").lower().split(",")]
    named = next((kind == PICTURE_TYPE for kind in kinds if kind in {PICTURE_TYPE, JSON_TYPE}), None)
    if named is not None or not all(kind.startswith("image/") for kind in kinds):
        return bool(named)
    if "image/*" not in kinds:
        raise NotAcceptableError(f"Accept is {shown(', '.join(kinds))}; accept {PICTURE_TYPE} or {JSON_TYPE}.")
    return True


class Sketch(NamedTuple):
    """A picture before its answer is known.

    Args:
        request: of the answer.
        image: of the request.
        processing: decodes the image, and makes it smaller.
        cost: of the decoding.
    """

    request: InferRequest
    image: Tensor
    processing: ImageProcessing
    cost: ImageCost


class Drawing:
    """Draws answers in the threads for images.

    Args:
        decoding: has the threads and their memory.
        limits: of one image.
    """

    def __init__(self, decoding: ImageDecoding, limits: ImageLimits) -> None:
        self._decoding = decoding
        self._limits = limits

    def sketch(self, request: InferRequest, task: Task | None) -> Sketch:
        """Checks that an answer can be drawn, before the model runs.

        Raises:
            RequestError: the task is unknown, or the request is not one image.
            InvalidTensorError: the image cannot be decoded, as far as its header says.
            PayloadTooLargeError: decoding takes too much memory.
        """
        from firstline_core.processing.images import ImageProcessing  # Pillow takes 3 MB: import it only for images

        if task is None:
            raise RequestError(f"Accept: {PICTURE_TYPE} needs a model that is held here, and '{request.model}' is not.")
        image = image_of(request.inputs) or request.inputs[0]
        if not image.array.dtype.hasobject or image.array.shape != (1,):
            raise RequestError(f"Accept: {PICTURE_TYPE} needs one image in the body; accept {JSON_TYPE} instead.")
        where = f"Row 0 of input '{image.name}'"
        header = read_header(image.array[0], where)
        check_limits(header, self._limits, where)
        width, height = header.upright_size
        scale = SIDE_LIMIT / max(width, height)
        smaller = (Resize(max(1, round(width * scale)), max(1, round(height * scale))),) if scale < 1 else ()
        processing = ImageProcessing(Decode("RGB"), smaller, self._limits, _BYTES_PER_PIXEL)
        return Sketch(request, image, processing, processing.cost(image))

    async def reply(
        self, sketch: Sketch, response: InferResponse, task: Task | None, query: Mapping[str, str]
    ) -> Reply:
        """Returns the picture of an answer.

        Args:
            sketch: of the request.
            response: its answer.
            task: of the model that answered; None if it is gone.
            query: parameters of the request, see `view.py`.

        Raises:
            RequestError: see `read_view`.
            CapacityError: there is no memory for it now.
            InferenceError: the answer is not of the task.
        """
        outputs, request = response.arrays, sketch.request
        if task is None or not describes(task, outputs):
            raise InferenceError(f"The answer of '{response.model}' cannot be drawn; accept {JSON_TYPE} instead.")
        image = sketch.image
        view = with_sizes(read_view(query, response.model, task), task, image)

        def draw() -> bytes:
            from PIL import Image

            pixels: NDArray[np.uint8] = sketch.processing.run(image, sketch.cost)[0]
            encoded = BytesIO()
            task.draw(Image.fromarray(pixels), outputs, 0, view).save(encoded, "JPEG", quality=_QUALITY)
            return encoded.getvalue()

        memory_bytes = sketch.cost.memory_bytes
        async with self._decoding.done(draw, memory_bytes, request.principal, request.deadline_s) as picture:
            facts = json.dumps(file_inference.answer_json(response, [{}]), separators=(",", ":"))
            return Reply(200, {CONTENT_TYPE: PICTURE_TYPE, ANSWER_HEADER: facts}, picture)
