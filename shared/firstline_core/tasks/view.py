"""The part of an answer that a caller wants to see. It changes the description and the picture, and no decision.

Contract, cache, audits and corrections use the whole answer.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

MOST_OBJECTS = 1000


class View(Struct, frozen=True):
    """The part of an answer that is described.

    Attributes:
        min_score: of an object; objects below it are left out.
        classes: labels of the objects to describe; () for all.
        max_objects: the most objects, best first.
        masks: as a PNG in base64, or as run lengths.
        sizes: (width, height) of each row's upright image, in pixels; () if the rows are not images, or not known.
    """

    min_score: float = 0.0
    classes: tuple[str, ...] = ()
    max_objects: int = MOST_OBJECTS
    masks: Literal["png", "rle"] = "png"
    sizes: tuple[tuple[int, int], ...] = ()

    def size(self, row: int) -> dict[str, int]:
        """Returns the width and height of a row's upright image by name, in pixels; {} if they are not known."""
        return dict(zip(("width", "height"), self.sizes[row], strict=True)) if row < len(self.sizes) else {}


WHOLE = View()
"""Leaves nothing out."""
