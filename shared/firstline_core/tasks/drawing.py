"""Text on pictures of answers, and their size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

# Paul Tol's bright scheme, which colour-blind people can tell apart.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee", "#ccbb44", "#bbbbbb")


_LEGIBLE_PIXELS = 128  # the longer side of a picture on which a label can be read


def size_within(size: tuple[int, int], most: tuple[int, int]) -> tuple[int, int]:
    """Returns the largest size of the same proportions within another one; each side has at least one pixel."""
    factor = min(most[0] / size[0], most[1] / size[1])
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def line_width(image: Image.Image) -> int:
    """Returns the width of lines on a picture, in pixels."""
    return max(2, round(max(image.size) / 300))


def write(image: Image.Image, at: tuple[float, float], text: str, colour: str) -> None:
    """Writes white text on a coloured box into a picture.

    Args:
        image: RGB, is changed.
        at: left and top of the box, in pixels.
        text: one line or several.
        colour: of the box.
    """
    from PIL import ImageDraw, ImageFont  # Pillow takes 3 MB: import it only for images

    canvas, line = ImageDraw.Draw(image), line_width(image)
    font = ImageFont.load_default(max(10, round(max(image.size) / 45)))
    left, top, right, bottom = canvas.textbbox((at[0] + line, at[1] + line), text, font=font)
    canvas.rectangle((left - line, top - line, right + line, bottom + line), fill=colour)
    canvas.text((at[0] + line, at[1] + line), text, fill="white", font=font)


def caption(image: Image.Image, text: str) -> Image.Image:
    """Returns a copy of an image with any text in its top left corner; a small image is enlarged for the text."""
    drawn = image.convert("RGB")
    if text:
        factor = max(1, math.ceil(_LEGIBLE_PIXELS / max(drawn.size)))
        drawn = drawn.resize((drawn.width * factor, drawn.height * factor))
        write(drawn, (0, 0), text, COLOURS[0])
    return drawn
