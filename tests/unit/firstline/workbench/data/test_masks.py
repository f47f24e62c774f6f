from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.images import raw_png

from firstline.workbench.data.masks import read_mask
from firstline_core.errors import ConfigError


def _png(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def test_mask_is_fitted_to_the_nearest_pixel(tmp_path: Path) -> None:
    classes = np.array([[0, 1], [2, 255]], np.uint8)
    (tmp_path / "a.png").write_bytes(_png(Image.fromarray(classes)))
    assert read_mask(tmp_path / "a.png", (200, 201), (6, 4), 3).tolist() == [
        [0, 0, 1, 1, 255, 255],
        [0, 0, 1, 1, 255, 255],
        [2, 2, 255, 255, 255, 255],
        [2, 2, 255, 255, 255, 255],
    ]
    palette = Image.fromarray(classes, "P")
    palette.putpalette([200] * 768)
    (tmp_path / "p.png").write_bytes(_png(palette))
    assert read_mask(tmp_path / "p.png", (2, 2), (2, 2), 3).tolist() == classes.tolist()


def test_absent_mask_is_ignored(tmp_path: Path) -> None:
    assert read_mask(tmp_path / "none.png", (9, 4), (2, 1), 3).tolist() == [[255, 255]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_png(Image.new("RGB", (2, 2))), "has the mode RGB; a mask has one class"),
        (_png(Image.new("L", (2, 2), 7)), "has the class 7; the bundle has 0 to 2, and 255 is ignored"),
        (_png(Image.new("L", (2, 2)))[:45], "m.png"),
        (b"no image", "m.png"),
        (raw_png(2, 2, bits=4, data=bytes(4)), "has greyscale of 4 bits; save it with eight bits"),
        (_png(Image.new("L", (4, 2))), "has 4x2 pixels, but its upright image 2x2; save a mask of the image's size"),
    ],
)
def test_wrong_mask_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "m.png").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_mask(tmp_path / "m.png", (2, 2), (2, 2), 3)
