"""The declared processing steps, which are part of the model's digest. `processing/compile.py` implements them.

Order and meaning follow model cards: decode, crop, resize, scale, layout; then softmax, label offset or binary.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from firstline_core.storage.artefact import Artefact

Positive = Annotated[int, Meta(ge=1, le=16384)]
Byte = Annotated[int, Meta(ge=0, le=255)]


CHANNELS: dict[Literal["RGB", "L"], int] = {"RGB": 3, "L": 1}
"""Number of channels by image mode."""


class InputSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The bundle's input as clients see it. BYTES [-1] means encoded images, one a row."""

    name: Annotated[str, Meta(min_length=1)]
    datatype: Literal["BYTES", "FP32", "UINT8", "INT8", "INT32", "INT64", "FP16", "FP64"]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.shape or self.shape[0] != -1 or any(size < 1 and size != -1 for size in self.shape):
            raise ValueError(f"input shape needs -1 (the rows) and then sizes of at least 1, got {list(self.shape)}")
        if self.datatype == "BYTES" and self.shape != (-1,):
            raise ValueError(f"a BYTES input has shape [-1], one encoded image a row, got {list(self.shape)}")


class Decode(Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="decode"):
    """Decodes JPEG or PNG bytes to upright pixels, uint8. Inputs that are pixels are only converted to `mode`.

    Attributes:
        mode: of the result.
        background: colour (red, green, blue) behind transparent pixels; black if it is not set.
        bits: of greyscale images of 16 bits: 2 ** bits - 1 becomes 255. If it is not set, each image is scaled by its
            own range.
    """

    mode: Literal["RGB", "L"] = "RGB"
    background: tuple[Byte, Byte, Byte] | UnsetType = UNSET
    bits: Annotated[int, Meta(ge=8, le=16)] | UnsetType = UNSET


class CenterCrop(Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="center_crop"):
    """Crops the central square whose side is `fraction` of the image's short side."""

    fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0


class Resize(Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="resize"):
    """Resizes to width x height pixels, antialiased. It does not keep the aspect ratio: crop first if necessary."""

    width: Positive
    height: Positive
    filter: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"


class Scale(Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="scale"):
    """Computes (x - mean) / std as FP32, with one value for all channels or one per channel (last axis)."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (255.0,)


class Layout(Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="layout"):
    """Sets the axis order for the model; before this step images are NHWC."""

    to: Literal["NHWC", "NCHW"]


class Flatten(Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="flatten"):
    """Reshapes [n, ...] to [n, product of the other axes]."""


class Softmax(Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="softmax"):
    """Converts logits to probabilities over the last axis."""


class LabelOffset(Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="label_offset"):
    """Drops the first `offset` columns, e.g. the background class of models with 1,001 outputs."""

    offset: Positive = 1


class Binary(Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="binary"):
    """Converts one column, the second label's probability or its logit, to the probabilities of two labels."""

    of: Literal["probability", "logit"] = "probability"


class Graph(Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="graph"):
    """An ONNX graph with one input and one output, a file of the bundle."""

    artefact: Artefact


PreStep = Decode | CenterCrop | Resize | Scale | Layout | Flatten | Graph
PostStep = Softmax | LabelOffset | Binary | Graph
