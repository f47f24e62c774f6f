"""The declared processing steps, which are part of the model's digest. `processing/compile.py` implements them.

Order and meaning follow model cards: decode, crop, resize, scale, layout; then softmax, label offset or binary.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from firstline_core.storage.artefact import Artefact
from firstline_core.types import TensorSpec

Positive = Annotated[int, Meta(ge=1, le=16384)]
Byte = Annotated[int, Meta(ge=0, le=255)]


Mode = Literal["RGB", "BGR", "L"]
"""Order of an image's channels; L is greyscale."""

CHANNELS: dict[Mode, int] = {"RGB": 3, "BGR": 3, "L": 1}
"""Number of channels by image mode."""


Kind = Literal["image", "audio", "text", "tensor"]
"""What an input holds: an encoded image, an encoded recording or UTF-8 text in each row, or numbers."""

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"
]


class InputSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """An input of the bundle, as clients see it.

    Attributes:
        shape: -1 for the rows, then the other axes; -1 for any size. Images, audio and text are BYTES [-1].
    """

    name: Annotated[str, Meta(min_length=1)]
    datatype: Datatype
    shape: tuple[int, ...]
    kind: Kind = "tensor"

    def __post_init__(self) -> None:
        if self.name.startswith("edge/"):
            raise ValueError(f"input name {self.name!r} begins with edge/, which names the edge outputs of audits")
        if not self.shape or self.shape[0] != -1 or any(size < 1 and size != -1 for size in self.shape):
            raise ValueError(f"input shape needs -1 (the rows) and then sizes of at least 1, got {list(self.shape)}")
        if self.kind == "tensor":
            if self.datatype == "BYTES":
                raise ValueError(f"input {self.name!r} is BYTES: say which kind, image, audio or text")
        elif self.datatype != "BYTES" or self.shape != (-1,):
            raise ValueError(
                f"input {self.name!r} is of kind {self.kind}: its datatype is BYTES and its shape [-1], one a row, "
                f"got {self.datatype} {list(self.shape)}"
            )

    @property
    def tensor(self) -> TensorSpec:
        """Returns the declaration of V2."""
        return TensorSpec(self.name, self.datatype, self.shape)


class Step(Struct, frozen=True, forbid_unknown_fields=True, tag_field="op"):
    """The base of steps; the tag of a step is its name in manifests."""


class Decode(Step, frozen=True, tag="decode"):
    """Decodes JPEG or PNG bytes to upright pixels, uint8. Inputs that are pixels (RGB, L) are only converted to `mode`.

    Attributes:
        mode: of the result.
        background: colour (red, green, blue) behind transparent pixels; black if it is not set.
        bits: of greyscale images of 16 bits: 2 ** bits - 1 becomes 255. If it is not set, each image is scaled by its
            own range.
    """

    mode: Mode = "RGB"
    background: tuple[Byte, Byte, Byte] | UnsetType = UNSET
    bits: Annotated[int, Meta(ge=8, le=16)] | UnsetType = UNSET


class CenterCrop(Step, frozen=True, tag="center_crop"):
    """Crops the central square whose side is `fraction` of the image's short side."""

    fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0


class Resize(Step, frozen=True, tag="resize"):
    """Resizes to width x height pixels, antialiased.

    Attributes:
        letterbox: keeps the aspect ratio: the picture is placed in the top left corner or in the centre, and the rest
            is padded. If it is not set, the picture is stretched.
        pad: value of all channels of the padding; 0 if it is not set.
        rounding: of the sides of a letterbox's picture to whole pixels; down if it is not set, as YOLOX does.
    """

    width: Positive
    height: Positive
    filter: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    letterbox: Literal["corner", "center"] | UnsetType = UNSET
    pad: Byte | UnsetType = UNSET
    rounding: Literal["down", "nearest"] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.letterbox is not UNSET:
            return
        if self.pad is not UNSET:
            raise ValueError("'pad' needs 'letterbox': a stretched picture has no padding")
        if self.rounding is not UNSET:
            raise ValueError("'rounding' needs 'letterbox': a stretched picture has the given size")


ImageStep = Decode | CenterCrop | Resize


class Scale(Step, frozen=True, tag="scale"):
    """Computes (x - mean) / std as FP32, with one value for all channels or one per channel (last axis)."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (255.0,)


class Layout(Step, frozen=True, tag="layout"):
    """Sets the axis order for the model; before this step images are NHWC."""

    to: Literal["NHWC", "NCHW"]


class Flatten(Step, frozen=True, tag="flatten"):
    """Reshapes [n, ...] to [n, product of the other axes]."""


class Observed(Step, frozen=True, tag="observed"):
    """Takes the last numbers of each row away from a forecast model: `residual` compares its forecast with them."""

    samples: Positive = 1


class Standardize(Step, frozen=True, tag="standardize"):
    """Computes (x - mean) / deviation of each row's own numbers, as FP32; flat rows are only shifted."""


class Unstandardize(Step, frozen=True, tag="unstandardize"):
    """Maps values back to the units of the row: times the deviation, plus the mean of `standardize`."""


class Columns(Step, frozen=True, tag="columns"):
    """Selects columns of the output, in this order; the first has number 0."""

    indices: Annotated[tuple[Annotated[int, Meta(ge=0, lt=65536)], ...], Meta(min_length=1)]


class Spread(Step, frozen=True, tag="spread"):
    """Reads the spread of a regression model's values: the error that the model expects, in the unit of the values.

    Attributes:
        output: name of the model's output; "" for the output of the values.
        columns: of that output, one for each value; all if there are none.
    """

    output: str = ""
    columns: tuple[Annotated[int, Meta(ge=0, lt=65536)], ...] = ()

    def __post_init__(self) -> None:
        if not self.output and not self.columns:
            raise ValueError("'spread' needs the name of an output, or columns")


class Reconstruction(Step, frozen=True, tag="reconstruction"):
    """Compares the output of an autoencoder with its prepared input: one number for each row."""

    of: Literal["mean_square", "mean_absolute", "largest"] = "mean_square"


class Residual(Step, frozen=True, tag="residual"):
    """Compares a forecast with the numbers of `observed`: one number for each row.

    Attributes:
        spread: name of the model's output with the error that it expects of each value, by which the difference is
            divided; "" for the difference itself.
    """

    of: Literal["mean_square", "mean_absolute", "largest"] = "mean_square"
    spread: str = ""


class Threshold(Step, frozen=True, tag="threshold"):
    """Decides whether an anomaly score is anomalous.

    Attributes:
        value: the model's operating score, which is anomalous itself.
        side: on which anomalies lie.
        scale: a typical distance from the operating score, for confidence scores; 0 for the size of `value`, or 1.
    """

    value: float
    side: Literal["above", "below"] = "above"
    scale: Annotated[float, Meta(ge=0, le=1e30)] = 0.0

    def __post_init__(self) -> None:
        if not abs(self.value) <= 1e30:
            raise ValueError("'threshold' needs a finite number")


class Gallery(Step, frozen=True, tag="gallery"):
    """Finds the most similar row of a gallery, a .npy file of the bundle: real numbers [rows, columns].

    Attributes:
        least: cosine from which a row is a neighbour.
    """

    artefact: Artefact
    least: Annotated[float, Meta(ge=-1, le=1)] = -1.0


class Argmax(Step, frozen=True, tag="argmax"):
    """Selects the most probable class of each pixel of a segmentation.

    Attributes:
        layout: of the output: the classes are its last axis (NHWC) or its second (NCHW).
    """

    layout: Literal["NHWC", "NCHW"] = "NHWC"


class ClassScores(Step, frozen=True, tag="class_scores"):
    """Reads the classes' scores of a segmentation whose own output is a map of classes. They may have a coarser grid.

    Attributes:
        output: name of the model's output.
        of: meaning of the numbers; probabilities of a cell sum to 1.
        layout: the classes are the last axis of the output (NHWC) or its second (NCHW).
    """

    output: Annotated[str, Meta(min_length=1)]
    of: Literal["logits", "probabilities"] = "logits"
    layout: Literal["NHWC", "NCHW"] = "NHWC"


class Sigmoid(Step, frozen=True, tag="sigmoid"):
    """Converts each logit to a probability of its own."""


class Softmax(Step, frozen=True, tag="softmax"):
    """Converts logits to probabilities over the last axis."""


class LabelOffset(Step, frozen=True, tag="label_offset"):
    """Drops the first `offset` columns, e.g. the background class of models with 1,001 outputs."""

    offset: Positive = 1


class Binary(Step, frozen=True, tag="binary"):
    """Converts one column, the second label's probability or its logit, to the probabilities of two labels."""

    of: Literal["probability", "logit"] = "probability"


class Graph(Step, frozen=True, tag="graph"):
    """An ONNX graph with one input and one output, a file of the bundle."""

    artefact: Artefact


Samples = Annotated[int, Meta(ge=1, le=30_000_000)]


class DecodeAudio(Step, frozen=True, tag="decode_audio"):
    """Decodes WAV, FLAC or OGG bytes to FP32 [samples, channels], in -1 to 1 at the file's sample rate."""


class Mono(Step, frozen=True, tag="mono"):
    """Computes the mean of all channels, [samples]."""


class Resample(Step, frozen=True, tag="resample"):
    """Resamples from the file's own rate to `rate_hz` with a band-limited filter; other rates are never fed as is."""

    rate_hz: Annotated[int, Meta(ge=1000, le=384_000)]


class Crop(Step, frozen=True, tag="crop"):
    """Cuts a clip to at most `samples`; `keep` says which part remains."""

    samples: Samples
    keep: Literal["start", "center", "end"] = "start"


class Pad(Step, frozen=True, tag="pad"):
    """Adds zeros to a clip up to at least `samples`, at its end or at both ends."""

    samples: Samples
    side: Literal["end", "both"] = "end"


class Windows(Step, frozen=True, tag="windows"):
    """Cuts a clip into windows, each of which the model answers; the answers are combined into one for the clip.

    The last window is filled with zeros.

    Attributes:
        samples: length of a window.
        hop: samples from the start of a window to the start of the next one.
        combine: "mean" of the windows' outputs, or "max", which needs independent labels.
    """

    samples: Samples
    hop: Samples
    combine: Literal["mean", "max"] = "mean"

    def __post_init__(self) -> None:
        if self.hop > self.samples:
            raise ValueError("'hop' is at most 'samples': otherwise parts of a clip are never seen")


AudioStep = DecodeAudio | Mono | Resample | Crop | Pad | Windows


Rate = Annotated[float, Meta(gt=0, le=1e9)]
"""Samples of each channel in a second."""

_MOST_OVERLAP = 64


def _check_hop(samples: int, hop: int) -> None:
    if hop * _MOST_OVERLAP < samples:
        raise ValueError(f"'hop' is at least 1/{_MOST_OVERLAP} of 'samples'")


class Detrend(Step, frozen=True, tag="detrend"):
    """Subtracts the best line, or the mean, from each channel of [n, samples] or [n, samples, channels]."""

    kind: Literal["linear", "constant"] = "linear"


class Welch(Step, frozen=True, tag="welch"):
    """Computes the power spectral density of each channel: [n, samples // 2 + 1] or [n, samples // 2 + 1, channels].

    Attributes:
        rate_hz: of the signal.
        samples: length of a window.
        hop: samples from the start of a window to the start of the next one; 0 for half a window.
    """

    rate_hz: Rate
    samples: Positive
    hop: Annotated[int, Meta(ge=0, le=16384)] = 0

    def __post_init__(self) -> None:
        if self.hop:
            _check_hop(self.samples, self.hop)


class BandEnergies(Step, frozen=True, tag="band_energies"):
    """Computes the mean power of each channel in bands of frequency: [n, bands] or [n, bands, channels].

    Attributes:
        rate_hz: of the signal.
        edges_hz: of the bands, which follow each other; the highest edge belongs to no band.
    """

    rate_hz: Rate
    edges_hz: Annotated[tuple[Annotated[float, Meta(ge=0, le=1e9)], ...], Meta(min_length=2, max_length=1025)]

    def __post_init__(self) -> None:
        if any(high <= low for low, high in zip(self.edges_hz[:-1], self.edges_hz[1:], strict=True)):
            raise ValueError("each of 'edges_hz' is above the one before")


class Envelope(Step, frozen=True, tag="envelope"):
    """Computes the amplitude of each channel over time (Hilbert), in the shape of the signal."""


class Mel(Step, frozen=True, tag="mel"):
    """Computes energies in mel bands over time, from power spectra of Hann windows: [n, frames, bands] and channels.

    Attributes:
        rate_hz: of the signal.
        samples: length of a window; only whole windows count.
        hop: samples from the start of a window to the start of the next one.
        bands: number of bands, on HTK's mel scale.
        low_hz: lower edge of the first band.
        high_hz: upper edge of the last band; 0 for half the rate.
        log: whether the natural logarithm is taken, of at least 1e-10.
        frames: whether the result is [frames, bands] (first) or [bands, frames] (last).
    """

    rate_hz: Rate
    samples: Positive
    hop: Positive
    bands: Annotated[int, Meta(ge=1, le=512)] = 40
    low_hz: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    high_hz: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    log: bool = True
    frames: Literal["first", "last"] = "first"

    def __post_init__(self) -> None:
        _check_hop(self.samples, self.hop)
        if not self.low_hz < (self.high_hz or self.rate_hz / 2) <= self.rate_hz / 2:
            raise ValueError("'low_hz' is below 'high_hz', which is at most half of 'rate_hz'")


SignalStep = Detrend | Welch | BandEnergies | Envelope | Mel


class DecodeText(Step, frozen=True, tag="decode_text"):
    """Decodes UTF-8 bytes to text.

    Attributes:
        form: of Unicode normalisation; "" for none.
        lower: whether letters become small ones.
        strip: whether white space at both ends is dropped.
    """

    form: Literal["", "NFC", "NFD", "NFKC", "NFKD"] = ""
    lower: bool = False
    strip: bool = False


class Tokenize(Step, frozen=True, tag="tokenize"):
    """Converts text to numbers of tokens, INT64 [n, tokens], with a JSON file of the library `tokenizers`.

    Attributes:
        artefact: the file. Its own truncation and padding are not used.
        part: the ids of the tokens; the mask, 1 for tokens and 0 for padding; or their types.
        length: the most tokens that the model takes, those that the tokenizer adds included.
        padding: all rows to `length`, or to the longest row of the request.
        truncate: whether longer texts are cut; otherwise they are refused.
    """

    artefact: Artefact
    part: Literal["ids", "mask", "types"] = "ids"
    length: Annotated[int, Meta(ge=1, le=65536)] = 512
    padding: Literal["longest", "length"] = "longest"
    truncate: bool = False

    @property
    def without_part(self) -> Tokenize:
        """Returns the step that tokenises in the same way, whatever part and padding a model takes."""
        return Tokenize(self.artefact, length=self.length, truncate=self.truncate)


TextStep = DecodeText | Tokenize


class Ctc(Step, frozen=True, tag="ctc"):
    """Decodes probabilities of symbols over time to text: the likeliest of each step, without repeats and blanks.

    Attributes:
        artefact: a text file in UTF-8 with one symbol a line, in the order of the classes without the blank; an empty
            line, or a line with one space, is the space.
        blank: number of the blank's class, which the file does not list; -1 is the last class.
        axes: order of the output's axes: rows (n), time (t) and classes (c).
    """

    artefact: Artefact
    blank: Annotated[int, Meta(ge=-1, le=65535)] = 0
    axes: Literal["ntc", "tnc", "nct"] = "ntc"


class Confidence(Step, frozen=True, tag="confidence"):
    """Reads the probability of each token of a text from another output of the model, [n] or [n, tokens].

    Zeros are padding.
    """

    output: Annotated[str, Meta(min_length=1)]


Unit = Literal["pixels", "fractions"]
"""Of a detector's boxes: pixels of the model's input, or fractions of its sides."""

Fraction = Annotated[float, Meta(ge=0, le=1)]


class Yolox(Step, frozen=True, tag="yolox"):
    """Decodes [n, cells, 5 + classes] of YOLOX: box terms in cells, objectness and class probabilities.

    Attributes:
        strides: pixels of a cell of each grid, in the order of the rows.
    """

    strides: Annotated[tuple[Positive, ...], Meta(min_length=1)] = (8, 16, 32)


class FastestDet(Step, frozen=True, tag="fastestdet"):
    """Decodes [n, 5 + classes, rows, columns] of FastestDet: objectness, box terms and class probabilities."""


class Yolo(Step, frozen=True, tag="yolo"):
    """Decodes YOLO exports whose boxes are centre, width and height; the longer of the two axes counts the boxes.

    Attributes:
        objectness: whether the fifth column is the objectness: YOLOv5 and YOLOv7, but not YOLOv8 to YOLO11.
        unit: of the boxes; TFLite exports have fractions.
    """

    objectness: bool = False
    unit: Unit = "pixels"


class Detr(Step, frozen=True, tag="detr"):
    """Decodes DETR and its relatives: boxes are centre, width and height in fractions.

    Attributes:
        logits: name of the output [n, queries, classes].
        boxes: name of the output [n, queries, 4].
        activation: softmax has "no object" as its last class; sigmoid has no such class.
    """

    logits: Annotated[str, Meta(min_length=1)]
    boxes: Annotated[str, Meta(min_length=1)]
    activation: Literal["softmax", "sigmoid"] = "softmax"


class Ssd(Step, frozen=True, tag="ssd"):
    """Reads the outputs of a detector with suppression inside that has an output each for boxes, classes and scores.

    Without names, the outputs have the order of TFLite's operator: boxes, classes, scores, count.

    Attributes:
        boxes: name of the output [n, k, 4].
        classes: name of the output [n, k].
        scores: name of the output [n, k].
        count: name of the output [n] or [n, 1], the number of valid boxes; absent if scores of 0 mark the others.
        corners: order of a box's numbers: top, left, bottom, right, as TensorFlow's, or left, top, right, bottom.
        unit: of the boxes.
    """

    boxes: str = ""
    classes: str = ""
    scores: str = ""
    count: str = ""
    corners: Literal["yxyx", "xyxy"] = "yxyx"
    unit: Unit = "fractions"

    def __post_init__(self) -> None:
        if len({bool(self.boxes), bool(self.classes), bool(self.scores), bool(self.boxes or self.count)}) > 1:
            raise ValueError("name the outputs for boxes, classes and scores, or none")


class Anchors(Step, frozen=True, tag="anchors"):
    """Decodes an SSD without suppression inside: the offsets of boxes from its anchors, and the scores of the classes.

    The anchors are those of TensorFlow's `ssd_anchor_generator` (SSD: arXiv 1512.02325, section 2.2). Offsets are of
    top, left, height and width, by 10, 10, 5 and 5.

    Attributes:
        offsets: name of the output [n, anchors, 4].
        scores: name of the output [n, anchors, 1 + classes]; the background is first, and does not count as a class.
        activation: of the scores, which are logits unless the model has applied it: "none".
        strides: pixels of a cell of each grid.
        least: side of an anchor in the first grid, as a fraction of the input's shorter side.
        most: the same of the last grid.
        ratios: width by height of the anchors of a cell.
        lowest: number of anchors of a cell of the first grid: 3, or 0 for the number of the other grids.
    """

    offsets: Annotated[str, Meta(min_length=1)]
    scores: Annotated[str, Meta(min_length=1)]
    activation: Literal["sigmoid", "softmax", "none"] = "sigmoid"
    strides: Annotated[tuple[Positive, ...], Meta(min_length=2, max_length=16)] = (16, 32, 64, 128, 256, 512)
    least: Fraction = 0.2
    most: Fraction = 0.95
    ratios: Annotated[tuple[Annotated[float, Meta(gt=0)], ...], Meta(min_length=1)] = (1, 2, 0.5, 3, 0.3333)
    lowest: Literal[3, 0] = 3


class BoxRows(Step, frozen=True, tag="box_rows"):
    """Reads [n, k, 6] of a detector with suppression inside: x1, y1, x2, y2, score, class. A score of 0 is padding.

    Attributes:
        unit: of the boxes.
        numbered: whether the rows are [n, k, 7] as YOLOv7 writes them: number of the image in the batch, x1, y1, x2,
            y2, class, score.
    """

    unit: Unit = "pixels"
    numbered: bool = False


class ClassMap(Step, frozen=True, tag="class_map"):
    """Replaces the model's class i by `to[i]`, the number of a label; boxes of -1 are dropped, pixels of -1 ignored."""

    to: Annotated[tuple[Annotated[int, Meta(ge=-1, lt=2**31)], ...], Meta(min_length=1)]


class Suppress(Step, frozen=True, tag="suppress"):
    """Suppresses a box that overlaps a better one of its class, and divides the others into detections and candidates.

    Attributes:
        score: least score of a detection, the model's operating score. Scores of different models are on different
            scales.
        iou: boxes with a larger intersection over union are suppressed; 1 for models with suppression inside.
        floor: least score of a candidate. The best box of an image is a candidate whatever its score.
        limit: number of boxes of an image that are compared, the best ones.
    """

    score: Fraction
    iou: Fraction = 0.45
    floor: Fraction = 0.01
    limit: Annotated[int, Meta(ge=1, le=4096)] = 300


BoxDecoder = Yolox | FastestDet | Yolo | Detr | Ssd | Anchors | BoxRows
"""The first step after a detector; then come any `class_map`, and `suppress`."""

PreStep = ImageStep | AudioStep | SignalStep | TextStep | Observed | Standardize | Scale | Layout | Flatten | Graph

MatrixStep = Softmax | Sigmoid | Columns | LabelOffset | Binary | Graph
"""The steps that compute a matrix, (rows, columns), whatever the task; `compile_postprocess` implements them."""

PostStep = (
    MatrixStep
    | (Spread | Unstandardize)  # regression
    | (Ctc | Confidence)  # text
    | (Argmax | ClassScores)  # segmentation
    | (Reconstruction | Residual | Threshold)  # anomaly
    | Gallery  # embedding
    | (BoxDecoder | ClassMap | Suppress)  # detection; segmentation has class_map too
)

WithFile = Graph | Tokenize | Ctc | Gallery
"""The steps that need a file of the bundle."""


def decoded_kind(steps: Iterable[object]) -> Literal["image", "audio", "text"] | None:
    """Returns the kind of the encoded input that steps decode; None if they decode nothing."""
    for step in steps:
        match step:
            case Decode():
                return "image"
            case DecodeAudio():
                return "audio"
            case DecodeText():
                return "text"
    return None


def shows_logits(steps: Iterable[PostStep]) -> bool:
    """Returns whether logits are available: the postprocessing has a softmax step and no graph."""
    kinds = {type(step) for step in steps}
    return Softmax in kinds and Graph not in kinds


class ModelInput(Struct, frozen=True, forbid_unknown_fields=True):
    """An input of a model, and the steps that compute it from an input of the bundle.

    Attributes:
        name: of the bundle's input; one may feed several inputs of a model.
        tensor: name of the model's input; "" if it has only one.
        preprocess: from the bundle's input to the model's, in order.
    """

    name: Annotated[str, Meta(min_length=1)]
    tensor: str = ""
    preprocess: tuple[PreStep, ...] = ()
