"""Typed answers: one class for each task, made from the JSON of the file route or from the tensors of `infer`.

`Prediction` is their base class. Each class has the answer as arrays or plain values; those of images can be drawn.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from firstline_core.errors import ConfigError, InvalidTensorError, ProtocolError, TaskError
from firstline_core.processing.boxes import BOXES, CLASSES, COUNT, SCORES
from firstline_core.protocol import answer as answers
from firstline_core.protocol.file_inference import answer_json
from firstline_core.protocol.tensors import shown
from firstline_core.tasks import describe
from firstline_core.tasks import installed as tasks
from firstline_core.tasks.base import Task
from firstline_core.tasks.detection import Detection
from firstline_core.tasks.segmentation import CONFIDENCE, MASK
from firstline_core.tasks.segmentation import Segmentation as SegmentationTask
from firstline_core.types import Answer, Array, Arrays, InferResponse, ModelMetadata

if TYPE_CHECKING:
    from PIL import Image

_COMMON = frozenset({*Answer.__struct_fields__, "model", "version", "id"})
_SHOWN_VALUES = 8
# What the readers of an answer raise for one that no Firstline server sends.
_UNREADABLE = (
    AttributeError,
    KeyError,
    MemoryError,  # run lengths of a mask that no memory holds
    OverflowError,
    TypeError,
    ValueError,
    InvalidTensorError,
    msgspec.ValidationError,
)

Picture: TypeAlias = "Image.Image | str | Path | bytes"
"""An opened image, the path of a file, or its content."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """The answer to one file.

    Attributes:
        model: the bundle's name.
        version: of the bundle.
        answer: tier, reason and status of the answer, and the `request_id` of a later correction.
    """

    model: str
    version: str
    answer: Answer


@dataclass(frozen=True, kw_only=True, eq=False)
class Classification(Prediction):
    """A classifier's answer.

    Attributes:
        label: the most likely class.
        probability: of that class.
        top: the most likely classes with their probabilities, best first.
        labels: of the answer: of independent labels any number, else `label` alone.
    """

    label: str
    probability: float
    top: tuple[tuple[str, float], ...]
    labels: tuple[str, ...]

    def __str__(self) -> str:
        if self.labels != (self.label,):
            return ", ".join(self.labels) or "no label"
        return f"{self.label} ({100 * self.probability:.4g} %)"


class Box(NamedTuple):
    """The corners of an object in pixels of the upright image; printed with one decimal place."""

    x1: float
    y1: float
    x2: float
    y2: float

    def __repr__(self) -> str:
        return f"({', '.join(f'{side:.1f}' for side in self)})"


class Detected(NamedTuple):
    """One object of an image.

    Attributes:
        label: its class.
        score: from 0 to 1.
        box: where it is.
    """

    label: str
    score: float
    box: Box


@dataclass(frozen=True, kw_only=True, eq=False)
class Detections(Prediction):
    """A detector's answer: iterate over its objects, best first.

    Attributes:
        labels: class of each object.
        scores: FP32 (n,), from 0 to 1.
        boxes: FP32 (n, 4): x1, y1, x2, y2 in pixels of the upright image.
        width: of the upright image in pixels; 0 if the answer does not say.
        height: the same.
    """

    labels: tuple[str, ...]
    scores: NDArray[np.float32]
    boxes: NDArray[np.float32]
    width: int
    height: int

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Detected]:
        for label, score, box in zip(self.labels, self.scores.tolist(), self.boxes.tolist(), strict=True):
            yield Detected(label, score, Box(*box))

    def __str__(self) -> str:
        return ", ".join(f"{found.label} ({100 * found.score:.4g} %)" for found in self) or "no objects"

    def draw(self, image: Picture) -> Image.Image:
        """Returns a copy of the upright image with boxes, labels and scores.

        Raises:
            ConfigError: Pillow is not installed.
            InvalidTensorError: the image cannot be read.
        """
        upright = _upright(image)
        if not self.labels:
            return upright
        names = tuple(dict.fromkeys(self.labels))
        outputs = {
            BOXES: self.boxes[None],
            SCORES: self.scores[None],
            CLASSES: np.array([[names.index(label) for label in self.labels]]),
            COUNT: np.array([len(self.labels)]),
        }
        return Detection(names, k=len(self.labels)).draw(upright, outputs, 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Values(Prediction):
    """The answer of a regression model or a forecast.

    Attributes:
        values: numbers by name.
    """

    values: Mapping[str, float]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[tuple[str, float]]:
        return iter(self.values.items())

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in self.values.items())


@dataclass(frozen=True, kw_only=True, eq=False)
class Anomaly(Prediction):
    """The answer of an anomaly model.

    Attributes:
        anomalous: the decision.
        score: of the model that answered; scores of different models are on different scales.
    """

    anomalous: bool
    score: float

    def __str__(self) -> str:
        return f"{'anomalous' if self.anomalous else 'normal'} ({self.score:.4g})"


@dataclass(frozen=True, kw_only=True, eq=False)
class Embedding(Prediction):
    """The answer of a model of embeddings.

    Attributes:
        neighbour: label of the most similar row of the gallery; None if none is similar enough, or without a gallery.
        similarity: its cosine, or that of the most similar row; None without a gallery.
        embedding: FP32 (size,); empty with a gallery, whose answers state the neighbour.
    """

    neighbour: str | None = None
    similarity: float | None = None
    embedding: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))

    def __str__(self) -> str:
        if self.similarity is None:
            return f"embedding of {len(self.embedding)} numbers"
        return f"{self.neighbour or 'unknown'} ({self.similarity:.2f})"


@dataclass(frozen=True, kw_only=True, eq=False)
class Segmentation(Prediction):
    """The answer of a segmentation model.

    Attributes:
        labels: of the classes in the mask by number, largest first.
        shares: of the image, by label.
        mask: UINT8, the class of each pixel; 255 is ignored. It covers the image if `width` is known.
        width: of the upright image in pixels; 0 if the answer does not say.
        height: the same.
    """

    labels: Mapping[int, str]
    shares: Mapping[str, float]
    mask: NDArray[np.uint8]
    width: int
    height: int

    def __str__(self) -> str:
        return ", ".join(f"{label} ({100 * share:.4g} %)" for label, share in self.shares.items())

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[str]:
        return iter(self.labels.values())

    def draw(self, image: Picture) -> Image.Image:
        """Returns a copy of the upright image with all labels but the first in colours; see `Detections.draw`."""
        height, width = self.mask.shape
        names = tuple(self.labels.get(number, f"label {number}") for number in range(max((1, *self.labels)) + 1))
        outputs: Arrays = {MASK: self.mask[None], CONFIDENCE: np.ones(1, np.float32)}
        return SegmentationTask(names, width, height).draw(_upright(image), outputs, 0)

    def resized(self) -> NDArray[np.uint8]:
        """Returns the mask in the size of the upright image, (height, width), by the nearest pixel.

        Raises:
            InvalidTensorError: the answer does not state the size of the image.
        """
        if not self.width or not self.height:
            raise InvalidTensorError("The answer does not state the size of the image.")
        rows = (np.arange(self.height) + 0.5) * self.mask.shape[0] / self.height
        columns = (np.arange(self.width) + 0.5) * self.mask.shape[1] / self.width
        return np.asarray(self.mask[rows.astype(np.int64)][:, columns.astype(np.int64)], np.uint8)


@dataclass(frozen=True, kw_only=True, eq=False)
class Text(Prediction):
    """The answer of a model that recognises or transcribes text.

    Attributes:
        text: of the row.
        keywords: those of the bundle's keywords that occur in it.
    """

    text: str
    keywords: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True, eq=False)
class Tensors(Prediction):
    """The answer of a task without a form for people.

    Attributes:
        outputs: arrays by name, with rows on the first axis.
    """

    outputs: Mapping[str, Array]

    def __str__(self) -> str:
        return ", ".join(f"{name} {_in_short(array)}" for name, array in self.outputs.items())


@dataclass(frozen=True, kw_only=True, eq=False)
class Fields(Prediction):
    """The answer of a task that this installation does not know.

    Attributes:
        fields: the JSON members of the answer.
    """

    fields: Mapping[str, Any]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in own_members(self.fields).items())


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows(Prediction):
    """The answers to a file with several rows: iterate over them.

    Attributes:
        rows: one answer for each row.
    """

    rows: tuple[Prediction, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Prediction]:
        return iter(self.rows)

    def __str__(self) -> str:
        return "\n".join(map(str, self.rows))


def prediction_from(document: Mapping[str, Any], source: str, sent_id: str = "") -> Prediction:
    """Reads the JSON answer of the endpoint for files.

    Args:
        document: the decoded object.
        source: the server's address, for error messages.
        sent_id: the id that the answer has to repeat; "" if the request had none.

    Raises:
        ProtocolError: a Firstline server does not send this, or it is the answer to another request.
    """
    if sent_id:
        check_id(document.get("id"), sent_id, source)
    try:
        common = {"model": document["model"], "version": document["version"], "answer": answers.from_dict(document)}
        if "results" in document:
            return Rows(**common, rows=tuple(_read(row, common) for row in document["results"]))
        return _read(document, common)
    except _UNREADABLE as error:
        raise ProtocolError(f"{source} did not answer as a Firstline server does: {error}.") from error


def own_members(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the members of an answer in JSON that its task has made: those that every answer has are left out."""
    return {name: value for name, value in document.items() if name not in _COMMON}


def check_id(found: object, sent_id: str, source: str) -> None:
    """Raises ProtocolError if an answer does not repeat the id of the request."""
    if found != sent_id:
        raise ProtocolError(f"{source} gave the answer to request {shown(found)}, not to {sent_id}.")


def read_task(described: object) -> Task | None:
    """Returns the task in a model's metadata; None if there is none, or this installation does not know it."""
    try:
        return tasks.read_task(described)
    except (TaskError, ValueError):
        return None


def predictions(response: InferResponse, metadata: ModelMetadata) -> tuple[Prediction, ...]:
    """Returns the typed answer to each row of a response of `infer` or `infer_many`.

    Args:
        response: with all outputs of the model.
        metadata: of the model, in the same version.

    Raises:
        InvalidTensorError: the response is of another model, or of a server that does not describe its answers.
    """
    if response.model != metadata.name or response.answer is None:
        raise InvalidTensorError(f"The response of '{response.model}' is not described by '{metadata.name}'.")
    task = metadata.task if isinstance(metadata.task, Task) else None
    found = prediction_from(answer_json(response, describe(task, response.arrays)), "The response")
    return found.rows if isinstance(found, Rows) else (found,)


def _in_short(array: Array) -> str:
    """Returns the values of a small array, and the shape of a larger one."""
    if array.size > _SHOWN_VALUES:
        return f"of shape {list(array.shape)}"
    return " ".join(np.array2string(array, precision=4, separator=", ").split())


def _read(row: Mapping[str, Any], common: dict[str, Any]) -> Prediction:
    """Returns the answer to one row."""
    if not row or not isinstance(row, Mapping):
        raise ValueError("a row is not an object with members")
    read = next((read for key, read in _READERS.items() if key in row), None)
    return read(row, common) if read is not None else Fields(**common, fields=row)


def _plain(kind: type[Prediction], row: Mapping[str, Any], common: dict[str, Any]) -> Prediction:
    """Returns an answer whose members in JSON have the names and types of its fields."""
    dtype = np.float32 if kind is Embedding else None
    return msgspec.convert({**row, **common}, kind, dec_hook=lambda _, values: np.array(values, dtype))


def _classification(row: Mapping[str, Any], common: dict[str, Any]) -> Classification:
    return Classification(
        **common,
        label=row["label"],
        probability=float(row["probability"]),
        top=tuple((entry["label"], float(entry["probability"])) for entry in row["top"]),
        labels=tuple(row.get("labels", (row["label"],))),
    )


def _detections(row: Mapping[str, Any], common: dict[str, Any]) -> Detections:
    objects = row["objects"]
    return Detections(
        **common,
        labels=tuple(found["label"] for found in objects),
        scores=np.array([found["score"] for found in objects], np.float32),
        boxes=np.array(
            [[found["box"][side] for side in ("x1", "y1", "x2", "y2")] for found in objects], np.float32
        ).reshape(-1, 4),
        width=int(row.get("width", 0)),
        height=int(row.get("height", 0)),
    )


def _segmentation(row: Mapping[str, Any], common: dict[str, Any]) -> Segmentation:
    return Segmentation(
        **common,
        labels={int(found["class"]): found["label"] for found in row["classes"]},
        shares={found["label"]: float(found["share"]) for found in row["classes"]},
        mask=_mask(row["mask"]),
        width=int(row.get("width", 0)),
        height=int(row.get("height", 0)),
    )


def _mask(mask: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Returns a mask from run lengths, or from a PNG in base64, which needs Pillow."""
    shape = int(mask["height"]), int(mask["width"])
    if "rle" in mask:
        pairs = np.array(mask["rle"], np.int64).reshape(-1, 2)
        if pairs[:, 1].sum() != shape[0] * shape[1]:
            raise ValueError("the run lengths do not fill the mask")
        if np.any(pairs[:, 0] != pairs[:, 0].astype(np.uint8)):
            raise ValueError("the mask has a class beyond 0 to 255")
        return np.repeat(pairs[:, 0].astype(np.uint8), pairs[:, 1]).reshape(shape)
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigError("Masks need Pillow, which is not installed: pip install pillow; or use masks=rle.") from error
    try:
        with Image.open(BytesIO(b64decode(mask["png"])), formats=("PNG",)) as image:
            if image.size != shape[::-1]:
                raise ValueError(f"the mask has {image.width} x {image.height} pixels, not {shape[1]} x {shape[0]}")
            return np.asarray(image, np.uint8).reshape(shape)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"the mask is not a PNG that can be read: {error}") from error


_READERS: Mapping[str, Callable[[Mapping[str, Any], dict[str, Any]], Prediction]] = {
    "objects": _detections,
    "values": partial(_plain, Values),
    "anomalous": partial(_plain, Anomaly),
    "similarity": partial(_plain, Embedding),
    "embedding": partial(_plain, Embedding),
    "mask": _segmentation,
    "outputs": partial(_plain, Tensors),
    "top": _classification,
    "text": partial(_plain, Text),
}
"""What reads an answer, by a key that only answers of its task have."""


def _upright(image: Picture) -> Image.Image:
    """Returns an image in the orientation that its EXIF data state, in RGB."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise ConfigError("Drawing needs Pillow, which is not installed: pip install pillow.") from error
    try:
        if isinstance(image, Image.Image):
            return ImageOps.exif_transpose(image).convert("RGB")
        with Image.open(BytesIO(image) if isinstance(image, bytes) else image) as opened:
            return ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise InvalidTensorError(f"The image cannot be read: {error}") from error
