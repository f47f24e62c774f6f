"""The part of an answer that a caller of the file route wants to see. It changes the description, and no decision.

Contract, cache, audits and corrections use the whole answer; the view is applied when it is written as JSON or drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from msgspec import Struct
from msgspec.structs import replace

from firstline_core.errors import RequestError
from firstline_core.processing.image_header import is_encoded_image, read_header
from firstline_core.protocol.parameters import VIEW
from firstline_core.protocol.tensors import shown
from firstline_core.types import Tensor

MIN_SCORE, CLASSES, MAX_OBJECTS, MASKS = VIEW

_MOST_OBJECTS = 1000
_SHOWN_LABELS = 10


class View(Struct, frozen=True):
    """The part of an answer that is described.

    Attributes:
        min_score: of an object; objects below it are left out.
        classes: labels of the objects to describe; () for all.
        max_objects: the most objects, best first.
        run_lengths: masks as run lengths instead of a PNG in base64.
        sizes: (width, height) of each row's upright image, in pixels; () if the rows are not images, or not known.
    """

    min_score: float = 0.0
    classes: tuple[str, ...] = ()
    max_objects: int = _MOST_OBJECTS
    run_lengths: bool = False
    sizes: tuple[tuple[int, int], ...] = ()

    def size(self, row: int) -> dict[str, int]:
        """Returns the width and height of a row's upright image by name, in pixels; {} if they are not known."""
        return dict(zip(("width", "height"), self.sizes[row], strict=True)) if row < len(self.sizes) else {}


WHOLE = View()
"""Leaves nothing out."""


class Viewed(Protocol):
    """The part of a task that a view needs; see `Task`."""

    view_options: ClassVar[tuple[str, ...]]
    in_pixels: ClassVar[bool]

    @property
    def kind(self) -> str: ...

    @property
    def labels(self) -> tuple[str, ...]: ...


def read_view(query: Mapping[str, str], model: str, task: Viewed | None) -> View:
    """Returns the view that query parameters ask for; other parameters are ignored.

    Args:
        query: unquoted.
        model: its name, for errors.
        task: of the model; None if it is unknown, as on a device that does not hold the model.

    Raises:
        RequestError: a parameter that the task does not have, or a value that is not valid.
    """
    asked = [name for name in VIEW if name in query]
    if not asked:
        return WHOLE
    if task is None:
        raise RequestError(f"Query parameter '{asked[0]}' needs a model that this device holds; it lacks '{model}'.")
    for name in asked:
        if name not in task.view_options:
            hint = f"use {', '.join(task.view_options)}" if task.view_options else "leave it out"
            raise RequestError(
                f"Query parameter '{name}' does not apply to {task.kind}, the task of '{model}'; {hint}."
            )
    return View(
        min_score=_share(query[MIN_SCORE]) if MIN_SCORE in query else 0.0,
        classes=_labels(query[CLASSES], model, task.labels) if CLASSES in query else (),
        max_objects=_count(query[MAX_OBJECTS]) if MAX_OBJECTS in query else _MOST_OBJECTS,
        run_lengths=MASKS in query and _run_lengths(query[MASKS]),
    )


def image_of(inputs: Sequence[Tensor]) -> Tensor | None:
    """Returns the first input of encoded images; None without one."""
    for tensor in inputs:
        if tensor.array.dtype.hasobject and all(map(is_encoded_image, tensor.array.flat)):
            return tensor
    return None


def with_sizes(view: View, task: Viewed | None, images: Tensor | None) -> View:
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


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise RequestError(f"Query parameter '{MIN_SCORE}' is {shown(text)}; use a number from 0 to 1.")
    return value


def _labels(text: str, model: str, labels: Sequence[str]) -> tuple[str, ...]:
    wanted: list[str] = []
    for value in text.split("\n"):
        wanted += [value] if value in labels else [part.strip() for part in value.split(",")]
    for label in wanted:
        if label not in labels:
            wrong = f"names {shown(label)}, which '{model}' does not know" if label else "has an empty label"
            more = " and others" if len(labels) > _SHOWN_LABELS else ""
            raise RequestError(
                f"Query parameter '{CLASSES}' {wrong}; '{model}' knows {', '.join(labels[:_SHOWN_LABELS])}{more}. "
                "Separate labels by commas, or repeat the parameter."
            )
    return tuple(wanted)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= _MOST_OBJECTS):
        raise RequestError(f"Query parameter '{MAX_OBJECTS}' is {shown(text)}; use 1 to {_MOST_OBJECTS}.")
    return int(text)


def _run_lengths(text: str) -> bool:
    if text not in {"png", "rle"}:
        raise RequestError(f"Query parameter '{MASKS}' is {shown(text)}; use png or rle.")
    return text == "rle"
