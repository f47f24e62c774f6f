"""The file route over HTTP on both tiers: query parameters, the Accept header, and answers as JSON or pictures.

`protocol/file_inference.py` has the bodies; the tasks describe and draw their outputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import replace
from numpy.typing import NDArray

from firstline_core.errors import InferenceError, NotAcceptableError, RequestError, did_you_mean
from firstline_core.processing.cost import DecodingCost
from firstline_core.processing.decoding import FileDecoding
from firstline_core.processing.image_header import MeasuredImage, check_limits, is_encoded_image, read_header
from firstline_core.processing.steps import Decode, Resize
from firstline_core.protocol import file_inference
from firstline_core.protocol.asgi import Request
from firstline_core.protocol.data_plane import DataPlane
from firstline_core.protocol.http import CONTENT_TYPE, JSON_TYPE, Reply, header, json_reply
from firstline_core.protocol.limits import DecodingLimits
from firstline_core.protocol.oip import Origin
from firstline_core.protocol.parameters import SEVERAL, VIEW
from firstline_core.protocol.tensors import shown
from firstline_core.tasks import describe, describes
from firstline_core.tasks.base import Task
from firstline_core.tasks.view import MOST_OBJECTS, WHOLE, View
from firstline_core.types import InferRequest, InferResponse, ModelMetadata, Tensor

if TYPE_CHECKING:
    from firstline_core.processing.images import ImageProcessing

PICTURE_TYPE = "image/jpeg"
ANSWER_HEADER = "Firstline-Answer"
"""Header of a picture: the fields of every answer, as JSON in ASCII."""

SIDE_LIMIT = 1920
"""Of a picture, in pixels: larger images are drawn smaller."""

_QUALITY = 85
_BYTES_PER_PIXEL = 8  # of the copy that is drawn into, and of its encoding
_SHOWN_LABELS = 10


class FilePlane(DataPlane, Protocol):
    """A tier that knows the tasks of its models."""

    def task(self, model: str, version: str = "") -> Task | None:
        """Returns the task of a model; None if it is unknown here, or not any more."""
        ...


class PendingPicture(NamedTuple):
    """A picture before its answer is known.

    Args:
        image: of the request.
        processing: decodes the image, and makes it smaller.
        costs: of the decoding, for its only row.
    """

    image: Tensor
    processing: ImageProcessing
    costs: tuple[MeasuredImage, ...]


class FileRoute:
    """Reads the requests of the file route, and presents their answers.

    Args:
        plane: answers requests.
        decoding: its threads draw pictures, within its memory.
        limits: of one image.
    """

    def __init__(self, plane: FilePlane, decoding: FileDecoding, limits: DecodingLimits) -> None:
        self._plane = plane
        self._decoding = decoding
        self._limits = limits

    async def read(
        self, model: str, metadata: ModelMetadata, request: Request, body: bytes, principal: str
    ) -> InferRequest:
        """Returns the inference that a request asks for.

        Args:
            model: name in the path.
            metadata: of the model, which says how a body is read.
            request: with its headers and its query.
            body: without its Content-Encoding.
            principal: the authenticated caller.

        Raises:
            RequestError: see `read_view` and `file_inference.read_request`.
        """
        read_view(request.query, model, self._plane.task(model))  # before the model runs
        origin = Origin(request.info.arrived_s, principal, limits=self._plane.limits, trace=request.trace)
        return await file_inference.read_request(model, metadata, request.headers, request.query, body, origin=origin)

    async def answer(self, inference: InferRequest, request: Request) -> Reply:
        """Runs inference, and returns the answer in the form that the caller accepts.

        Raises:
            RequestError: the answer cannot be in this form; see `wants_picture` and `read_view`.
            FirstlineError: see the plane's `infer`.
        """
        sketch = self._sketch(inference) if wants_picture(request.headers) else None
        response = await self._plane.infer(inference)
        if sketch is not None:
            return await self._picture(sketch, inference, response, request.query)
        return self.json(response, request.query, image_of(inference.inputs))

    def json(self, response: InferResponse, query: Mapping[str, str], images: Tensor | None = None) -> Reply:
        """Returns an answer as JSON; see `answer_json`."""
        return json_reply(answer_json(response, self._plane.task(response.model, response.version), query, images))

    def _sketch(self, request: InferRequest) -> PendingPicture:
        """Checks that an answer can be drawn, before the model runs.

        Raises:
            RequestError: the task is unknown, or the request is not one image.
            InvalidTensorError: the image cannot be decoded, as far as its header says.
            PayloadTooLargeError: decoding takes too much memory.
        """
        from firstline_core.processing.images import ImageProcessing  # Pillow takes 3 MB: import it only for images

        if self._plane.task(request.model) is None:
            raise RequestError(f"Accept: {PICTURE_TYPE} needs a model that is held here, and '{request.model}' is not.")
        image = image_of(request.inputs) or request.inputs[0]
        if not image.array.dtype.hasobject or image.array.shape != (1,):
            raise RequestError(f"Accept: {PICTURE_TYPE} needs one image in the body; accept {JSON_TYPE} instead.")
        where = f"Row 0 of input '{image.name}'"
        image_header = read_header(image.array[0], where)
        check_limits(image_header, self._limits, where)
        width, height = image_header.upright_size
        scale = SIDE_LIMIT / max(width, height)
        smaller = (Resize(max(1, round(width * scale)), max(1, round(height * scale))),) if scale < 1 else ()
        processing = ImageProcessing(Decode("RGB"), smaller, self._limits, _BYTES_PER_PIXEL)
        return PendingPicture(image, processing, processing.check_and_measure(image))

    async def _picture(
        self, sketch: PendingPicture, request: InferRequest, response: InferResponse, query: Mapping[str, str]
    ) -> Reply:
        """Returns an answer as a picture, drawn in a thread for images.

        Raises:
            RequestError: see `read_view`.
            CapacityError: there is no memory for it now.
            InferenceError: the answer is not of the task.
        """
        outputs, image, task = response.arrays, sketch.image, self._plane.task(response.model, response.version)
        if task is None or not describes(task, outputs):
            raise InferenceError(f"The answer of '{response.model}' cannot be drawn; accept {JSON_TYPE} instead.")
        view = with_sizes(read_view(query, response.model, task), task, image)

        def draw() -> bytes:
            from PIL import Image

            pixels: NDArray[np.uint8] = sketch.processing.run(image, sketch.costs)[0]
            encoded = BytesIO()
            task.draw(Image.fromarray(pixels), outputs, 0, view).save(encoded, "JPEG", quality=_QUALITY)
            return encoded.getvalue()

        memory_bytes = DecodingCost((sketch.costs,)).memory_bytes
        async with self._decoding.done(draw, memory_bytes, request.principal, request.deadline_s) as picture:
            facts = json.dumps(file_inference.answer_json(response, [{}]), separators=(",", ":"))
            return Reply(200, {CONTENT_TYPE: PICTURE_TYPE, ANSWER_HEADER: facts}, picture)


def wants_picture(headers: Mapping[str, str]) -> bool:
    """Returns whether the Accept header names JPEG before JSON, or takes nothing but images and JPEG among them.

    Raises:
        NotAcceptableError: it takes images of other types alone.
    """
    accepted = header(headers, "Accept")
    if not accepted:
        return False
    kinds = [kind.partition(";")[0].strip() for kind in accepted.lower().split(",")]
    named = next((kind == PICTURE_TYPE for kind in kinds if kind in {PICTURE_TYPE, JSON_TYPE}), None)
    if named is not None or not all(kind.startswith("image/") for kind in kinds):
        return bool(named)
    if "image/*" not in kinds:
        wanted = shown(", ".join(kinds))
        raise NotAcceptableError(f"Accept is {wanted}, which is not offered; accept {PICTURE_TYPE} or {JSON_TYPE}.")
    return True


def answer_json(
    response: InferResponse, task: Task | None, query: Mapping[str, str], images: Tensor | None = None
) -> dict[str, Any]:
    """Returns an answer of the file route, as JSON values.

    Args:
        response: the answer.
        task: of its model; None if it is unknown.
        query: parameters of the request.
        images: the request's input; None if it is not known any more.

    Raises:
        RequestError: see `read_view`.
        InferenceError: see `file_inference.answer_json`.
    """
    view = with_sizes(read_view(query, response.model, task), task, images)
    return file_inference.answer_json(response, describe(task, response.arrays, view))


def read_view(query: Mapping[str, str], model: str, task: Task | None) -> View:
    """Returns the view that query parameters ask for; other parameters are ignored.

    Args:
        query: unquoted.
        model: its name, for errors.
        task: of the model; None if it is unknown, as on a device that does not hold the model.

    Raises:
        RequestError: a parameter that the task does not have, or a value that is not valid.
    """
    fields: dict[str, Any] = {}
    for name in VIEW:
        if name not in query:
            continue
        if task is None:
            raise RequestError(f"Query parameter '{name}' needs the model '{model}', which is not here.")
        if name not in task.view_options:
            hint = f"use {', '.join(task.view_options)}" if task.view_options else "leave it out"
            raise RequestError(
                f"Query parameter '{name}' does not apply to {task.kind}, the task of '{model}'; {hint}."
            )
        if name == "classes":
            fields[name] = _labels(query[name], model, task.labels)
            continue
        (kind, use), text = _VALUES[name], query[name]
        refusal = RequestError(f"Query parameter '{name}' is {shown(text)}; use {use}.")
        if name == "max_objects" and not (text.isascii() and text.isdigit()):  # msgspec also takes 1.0 and 1e1
            raise refusal
        try:
            fields[name] = msgspec.convert(text, kind, strict=False)
        except msgspec.ValidationError as error:
            raise refusal from error
    return View(**fields) if fields else WHOLE


def image_of(inputs: Sequence[Tensor]) -> Tensor | None:
    """Returns the first input of encoded images; None without one."""
    for tensor in inputs:
        if tensor.array.dtype.hasobject and all(map(is_encoded_image, tensor.array.flat)):
            return tensor
    return None


def with_sizes(view: View, task: Task | None, images: Tensor | None) -> View:
    """Returns the view with the sizes of the images, if the answers of the task name places in them.

    Args:
        view: of the request.
        task: of the model; None if it is unknown.
        images: the request's input of images, which a model has decoded; None if it is not known any more.
    """
    if task is None or not task.in_pixels or images is None:
        return view
    return replace(
        view, sizes=tuple(read_header(image, "The image", whole=False).upright_size for image in images.array.flat)
    )


_VALUES: Mapping[str, tuple[Any, str]] = {
    "min_score": (Annotated[float, Meta(ge=0, le=1)], "a number from 0 to 1"),
    "max_objects": (Annotated[int, Meta(ge=1, le=MOST_OBJECTS)], f"1 to {MOST_OBJECTS}"),
    "masks": (Literal["png", "rle"], "png or rle"),
}
"""The type of each parameter, and what to send."""


def _labels(text: str, model: str, labels: Sequence[str]) -> tuple[str, ...]:
    wanted: list[str] = []
    known = frozenset(labels)
    for value in text.split(SEVERAL):
        wanted += [value] if value in known else [part.strip() for part in value.split(",")]
    for label in wanted:
        if label not in known:
            wrong = f"names {shown(label)}, which '{model}' does not know" if label else "has an empty label"
            more = " and others" if len(labels) > _SHOWN_LABELS else ""
            raise RequestError(
                f"Query parameter 'classes' {wrong}; '{model}' knows {', '.join(labels[:_SHOWN_LABELS])}{more}"
                f"{did_you_mean(label, labels)} Separate labels by commas, or repeat the parameter."
            )
    return tuple(wanted)
