"""Labelled boxes of images: COCO JSON, and the text form of YOLO."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct

from firstline.workbench.data.files import is_inside
from firstline_core.errors import ConfigError
from firstline_core.processing.boxes import BOXES, CLASSES, COUNT, SCORES, Boxes
from firstline_core.storage.files import naming, read_limited
from firstline_core.storage.structs import fault_of
from firstline_core.types import Array, Arrays

COCO_LIMIT_BYTES = 512 * 1024 * 1024
"""Largest COCO file; the one of its 118,000 training images has 448 MB."""

YOLO_LIMIT_BYTES = 1024 * 1024
"""Largest text file of one image."""

_Place = Annotated[float, Meta(ge=-1e9, le=1e9)]
_Length = Annotated[float, Meta(ge=0, le=1e9)]
_Id = int | str


class _Image(Struct, frozen=True, gc=False):
    id: _Id
    file_name: str
    width: float | None = None
    height: float | None = None


class _Category(Struct, frozen=True, gc=False):
    id: _Id
    name: str


class _Annotation(Struct, frozen=True, gc=False):
    image_id: _Id
    category_id: _Id
    bbox: tuple[_Place, _Place, _Length, _Length]
    iscrowd: int | bool = 0


class _Coco(Struct, frozen=True):
    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


class CocoBoxes:
    """The boxes of a file in COCO's form. Boxes that mark a crowd are left out.

    Attributes:
        path: of the file.
        files: names of the images, in the file's order.

    Raises:
        ConfigError: the file cannot be read, is not in COCO's form, or its ids do not fit together.
    """

    def __init__(self, path: Path) -> None:
        try:
            with naming(path):
                encoded = read_limited(path, COCO_LIMIT_BYTES)
            content = msgspec.json.decode(encoded.removeprefix(BOM_UTF8), type=_Coco)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(
                f"{path} is not in COCO's form (images, annotations, categories): {fault_of(error)}; export it again."
            ) from error
        self.path, self.files = path, tuple(image.file_name for image in content.images)
        for name in self.files:
            if not is_inside(name):
                raise ConfigError(
                    f"{path} names {name!a}, which is outside of the data; copy the file into it, and write its path "
                    "there."
                )
        if len(set(self.files)) != len(self.files):
            raise ConfigError(f"{path} names an image more than once; keep one entry of each.")
        _refuse_repeated(path, "images", [image.id for image in content.images])
        _refuse_repeated(path, "categories", [category.id for category in content.categories])
        self._names = {category.id: category.name for category in content.categories}
        self._sizes = {image.file_name: (image.width, image.height) for image in content.images}
        file_of = {image.id: image.file_name for image in content.images}
        self._annotations: dict[str, list[_Annotation]] = {}
        for annotation in content.annotations:
            if annotation.image_id not in file_of or annotation.category_id not in self._names:
                lacks = "image" if annotation.image_id not in file_of else "category"
                raise ConfigError(
                    f"{path} has a box of the image {annotation.image_id!r} and the category "
                    f"{annotation.category_id!r}, but no such {lacks}; add the {lacks}, or delete the box."
                )
            if not annotation.iscrowd:
                self._annotations.setdefault(file_of[annotation.image_id], []).append(annotation)

    def read(self, file: str, size: tuple[int, int], labels: Sequence[str]) -> Boxes:
        """Returns the boxes of an image, with the classes of a bundle by the names of the categories.

        Args:
            file: name of the image.
            size: width and height of the upright image, in pixels.
            labels: of the bundle.

        Raises:
            ConfigError: a category is not a label, or the boxes are of an image of another size.
        """
        stated = self._sizes[file]
        if all(stated) and stated != size:
            raise ConfigError(
                f"{self.path} states {stated[0]:g}x{stated[1]:g} pixels for '{file}', but the upright image has "
                f"{size[0]}x{size[1]}; give the image on which the boxes were drawn."
            )
        found = self._annotations.get(file, [])
        for annotation in found:
            if (name := self._names[annotation.category_id]) not in labels:
                raise ConfigError(
                    f"{self.path} has the category '{name}' in '{file}', which is not a label of the bundle "
                    f"({', '.join(labels[:5])}{', ...' if len(labels) > 5 else ''}); rename or delete it."
                )
        corners = [(x, y, x + width, y + height) for x, y, width, height in (each.bbox for each in found)]
        classes = [labels.index(self._names[each.category_id]) for each in found]
        ones = np.ones(len(found), np.float32)
        return Boxes(np.array(corners, np.float32).reshape(-1, 4), ones, np.array(classes, np.int64))


def _refuse_repeated(path: Path, what: str, ids: Sequence[_Id]) -> None:
    if len(set(ids)) != len(ids):
        repeated = next(one for one, count in Counter(ids).items() if count > 1)
        raise ConfigError(f"{path} gives the id {repeated!r} to several {what}; give each an id of its own.")


def class_numbers(labels: int) -> str:
    """Returns the numbers of a bundle's labels in words."""
    return f"0 to {labels - 1}" if labels > 2 else "0 or 1"


def read_yolo_boxes(file: Path, size: tuple[int, int], labels: int) -> Boxes:
    """Returns the boxes of an image from YOLO's text form; an absent file is an image without boxes.

    Args:
        file: each line has a class, and the centre, width and height of a box in fractions.
        size: width and height of the upright image, in pixels.
        labels: number of classes.

    Raises:
        ConfigError: the file cannot be read, or a line is not a box.
    """
    try:
        text = read_limited(file, YOLO_LIMIT_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        text = ""
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {fault_of(error)}; correct or delete it.") from error
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        label, *place = line.split()
        if fault := _fault(label, place, labels):
            raise ConfigError(f"{file}:{number} {fault}.")
        rows.append((int(label), *map(float, place)))
    numbers = np.array(rows, np.float64).reshape(-1, 5)
    centres, halves = numbers[:, 1:3], numbers[:, 3:] / 2
    corners = np.concatenate((centres - halves, centres + halves), axis=1) * [*size, *size]
    return Boxes(corners.astype(np.float32), np.ones(len(numbers), np.float32), numbers[:, 0].astype(np.int64))


def _fault(label: str, place: Sequence[str], labels: int) -> str:
    """Returns what is wrong with a line in YOLO's form, and what to write; "" if nothing is."""
    numbers = class_numbers(labels)
    if not (label.isascii() and label.isdigit()):
        return f"has the class {label[:60]!a}; write its number, {numbers}"
    if len(label) > 9 or int(label) >= labels:
        return (
            f"has the class {label[:60]}, but the bundle's labels are {numbers}; correct the number, or delete the line"
        )
    if len(place) != 4:
        return f"has {len(place)} numbers after the class; write 4: centre x and y, width and height"
    for text, least in zip(place, (-1, -1, 0, 0), strict=True):
        try:
            valid = least <= float(text) <= 2
        except ValueError:
            valid = False
        if not valid:
            return f"has {text[:60]!a}, which is not a fraction of the image's sides; divide pixels by them"
    return ""


def yolo_file(folder: Path, image: str) -> Path:
    """Returns the text file of an image."""
    return folder / PurePosixPath(image).with_suffix(".txt")


def joined(images: Iterable[Boxes]) -> Arrays:
    """Returns the boxes of all images in the form of a detector's outputs, padded to the largest number of boxes."""
    found = list(images)
    k = max((len(boxes.classes) for boxes in found), default=0)
    result: dict[str, Array] = {
        BOXES: np.zeros((len(found), k, 4), np.float32),
        SCORES: np.zeros((len(found), k), np.float32),
        CLASSES: np.full((len(found), k), -1, np.int64),
        COUNT: np.array([len(boxes.classes) for boxes in found], np.int64),
    }
    for row, boxes in enumerate(found):
        for name, values in zip((BOXES, SCORES, CLASSES), boxes, strict=True):
            result[name][row, : len(boxes.classes)] = values
    return result
