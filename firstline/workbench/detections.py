"""Converts two detectors' results in COCO's format to the rows of a certificate, one for each image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from firstline_core.errors import ConfigError
from firstline_core.routing.detection import Boxes, any_unmatched, mean_confidence, minimum_confidence

MOST_BOXES = 1000
"""Of one model in one image, from the stated confidence on; COCO's own evaluation looks at 100."""

_ImageId = int | str
# Squared, these are still numbers.
_Place = Annotated[float, Meta(ge=-1e9, le=1e9)]
_Length = Annotated[float, Meta(ge=0, le=1e9)]


class _Detection(msgspec.Struct, frozen=True, gc=False):
    """A row of COCO's results: `bbox` is left, top, width, height."""

    image_id: _ImageId
    category_id: Annotated[int, Meta(ge=-(2**31), le=2**31)]
    bbox: tuple[_Place, _Place, _Length, _Length]
    score: Annotated[float, Meta(ge=0, le=1)]


class _Image(msgspec.Struct, frozen=True):
    id: _ImageId


class _Asked(msgspec.Struct, frozen=True):
    images: Annotated[list[_Image], Meta(min_length=1)]


class DetectionRow(NamedTuple):
    """The boxes of one image.

    Attributes:
        score: how sure the edge model is of its boxes; higher means keep.
        agree: 1 where both models see the same boxes, else 0.
    """

    image_id: _ImageId
    score: float
    agree: int


def compare(
    edge: Path, full: Path, images: Path, *, overlap: float, least: float, mean: bool
) -> Iterator[DetectionRow]:
    """A row for each image that was asked about, those in which neither model saw anything included.

    Args:
        edge: the edge model's results, as COCO's evaluation reads them.
        full: the full model's.
        images: COCO's description of the data; of it `images` and their `id` are read. The results alone do not tell
            which images were empty, and leaving those out would certify another population.
        overlap: see `detection.matches`.
        least: confidence from which a box counts; it belongs to the contract.
        mean: scores by the mean confidence of the boxes that count, not by the least.

    Raises:
        ConfigError: a file that is not in that form, results of an image that was not asked about, or too many boxes.
    """
    for name, share in (("overlap", overlap), ("least confidence", least)):
        if not 0 < share <= 1:
            raise ConfigError(f"The {name} is {share:g}, but must be above 0 and at most 1, such as 0.5.")
    image_ids = [image.id for image in _read(images, _Asked).images]
    if len(set(image_ids)) != len(image_ids):
        raise ConfigError(f"{images} names an image more than once; each id stands for one image.")
    near, far = (_boxes(path, image_ids, images, least) for path in (edge, full))
    score = mean_confidence if mean else minimum_confidence
    for image_id in image_ids:
        ours, theirs = near.get(image_id, _NONE), far.get(image_id, _NONE)
        agree = not any_unmatched(ours, theirs, overlap=overlap, least=least)
        yield DetectionRow(image_id, score(ours, least), int(agree))


_NONE = Boxes.of([], [], [])


def _boxes(path: Path, image_ids: Iterable[_ImageId], images: Path, least: float) -> dict[_ImageId, Boxes]:
    detections: dict[_ImageId, list[_Detection]] = {image_id: [] for image_id in image_ids}
    for detection in _read(path, list[_Detection]):
        if detection.image_id not in detections:
            raise ConfigError(f"{path} has boxes of the image {detection.image_id!r}, which {images} does not name.")
        detections[detection.image_id].append(detection)
    for image_id, boxes in detections.items():
        count = sum(box.score >= least for box in boxes)
        if count > MOST_BOXES:
            raise ConfigError(
                f"{path} has {count} boxes from a confidence of {least:g} on in the image {image_id!r}; "
                f"at most {MOST_BOXES} are compared. Raise the least confidence."
            )
    return {
        image_id: Boxes.of(
            [(x, y, x + width, y + height) for x, y, width, height in (box.bbox for box in boxes)],
            [box.category_id for box in boxes],
            [box.score for box in boxes],
        )
        for image_id, boxes in detections.items()
    }


_Form = TypeVar("_Form")


def _read(path: Path, form: type[_Form]) -> _Form:
    try:
        return msgspec.json.decode(path.read_bytes(), type=form)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not in COCO's form: {error}.") from error
