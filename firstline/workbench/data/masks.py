"""Labelled pixels: PNG files with the class of each pixel, named as their image."""

from __future__ import annotations

import io
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.data.files import FILE_LIMIT_BYTES
from firstline_core.errors import ConfigError, RequestError
from firstline_core.processing.geometry import InputSize
from firstline_core.processing.image_header import check_limits, read_header
from firstline_core.processing.masks import IGNORED, fitted
from firstline_core.protocol.limits import DEFAULT_DECODING_LIMITS
from firstline_core.storage.files import read_limited


def mask_file(folder: Path, image: str) -> Path:
    """Returns the mask of an image."""
    return folder / PurePosixPath(image).with_suffix(".png")


def read_mask(file: Path, image: tuple[int, int], size: tuple[int, int], classes: int) -> NDArray[np.uint8]:
    """Returns the class of each pixel in the frame of masks, (height, width), see `processing/masks.py`.

    Args:
        file: greyscale of eight bits or one bit, or with a palette; an absent file is an image without labels.
        image: width and height of the upright image; a mask may be smaller or larger in the same proportions.
        size: width and height of the result.
        classes: number of classes; `IGNORED` is valid too.

    Raises:
        ConfigError: the file cannot be read, is not a mask, has other proportions than the image, or has another class.
    """
    from PIL import Image

    if not file.is_file():
        return np.full(size[::-1], IGNORED, np.uint8)
    try:
        content = read_limited(file, FILE_LIMIT_BYTES)
        header = read_header(content, str(file))
        check_limits(header, DEFAULT_DECODING_LIMITS, str(file))
        with Image.open(io.BytesIO(content), formats=("PNG",)) as opened:
            if opened.mode not in ("L", "P", "1"):
                raise ConfigError(
                    f"{file} has the mode {opened.mode}; a mask has one class of eight bits for each pixel."
                )
            if opened.mode == "L" and header.bits < 8:  # Pillow scales to 0..255: 1 is read as 17
                raise ConfigError(
                    f"{file} has greyscale of {header.bits} bits; save it with eight bits for each pixel."
                )
            mask = np.asarray(opened, np.uint8)
    except RequestError as error:
        raise ConfigError(error.message) from error
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError) as error:
        raise ConfigError(f"{file} cannot be read as a PNG file ({error}); save it as PNG again.") from error
    height, width = mask.shape
    if abs(width * image[1] - height * image[0]) > max(image):  # more than rounding to pixels
        raise ConfigError(
            f"{file} has {width}x{height} pixels, but its upright image {image[0]}x{image[1]}; save a mask of the "
            "image's size and orientation."
        )
    found = np.unique(mask)
    if (wrong := found[(found >= classes) & (found != IGNORED)]).size:
        raise ConfigError(
            f"{file} has the class {wrong[0]}; the bundle has 0 to {classes - 1}, and {IGNORED} is ignored."
        )
    return fitted(mask, InputSize(*size))
