"""Pixels as a client sends them: encoded, one image for each row."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from firstline_core.types import Tensor


def encode(pixels: NDArray[Any], kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def images(*encoded: bytes, name: str = "image") -> Tensor:
    array = np.empty(len(encoded), object)
    array[:] = encoded
    return Tensor(name, array)
