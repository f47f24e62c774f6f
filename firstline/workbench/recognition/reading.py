"""A reading: one way to feed a model and to read its outputs, in the steps of `step_syntax.py`. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from firstline_core.processing.steps import InputSpec, Kind

SURE, LIKELY, GUESS = 0.95, 0.75, 0.4
"""How sure a reading is: the structure or the exporter's metadata say it; a convention says it; one of several."""

_SCALES: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "bytes": ((0,), (1,)),
    "unit": ((0,), (255,)),
    "symmetric": ((127.5,), (127.5,)),
    "imagenet": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    "caffe": ((123, 117, 104), (1,)),
    "centred": ((127.5,), (255,)),
}
_MEANINGS = {
    "RGB": "colours in the order RGB",
    "BGR": "colours in the order BGR",
    "L": "greyscale",
    "squash": "images stretched to the model's size",
    "corner": "letterbox, the picture at the top left",
    "center": "letterbox, the picture in the centre",
    "crop": "the central square of 0.875 of the short side",
    "bytes": "pixels from 0 to 255",
    "unit": "pixels from 0 to 1",
    "symmetric": "pixels from -1 to 1",
    "imagenet": "pixels with ImageNet's mean and deviation",
    "caffe": "pixels from 0 to 255 less ImageNet's mean",
    "centred": "pixels from -0.5 to 0.5",
    "raw": "numbers as they are",
    "standardize": "each row less its mean, by its deviation",
    "": "classes in the order of the labels",
    "coco90": "COCO's category ids from 1, as rows from 0",
    "coco91": "COCO's category ids",
}
_COCO = """\
person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop sign,
parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack, umbrella,
handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove, skateboard,
surfboard, tennis racket, bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange,
broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, dining table, toilet, tv,
laptop, mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink, refrigerator, book, clock, vase,
scissors, teddy bear, hair drier, toothbrush"""
COCO = tuple(" ".join(label.split()) for label in _COCO.split(","))
"""The labels of COCO's 80 classes, which most detectors were trained on."""


class Choice(NamedTuple):
    """A property of a reading that the file does not tell.

    Attributes:
        field: of `Reading`.
        values: the preferred one first.
        known: whether the first one is the family's convention, or else a guess.
    """

    field: str
    values: tuple[str, ...]
    known: bool = True

    def parsed(self, value: str) -> Any:
        """Returns a value as the field has it."""
        return tuple(map(int, value.split("x"))) if self.field == "size" else value

    @staticmethod
    def meaning(value: str) -> str:
        """Returns a value in words."""
        if value.startswith("-1/0"):
            return "classes numbered from 1"
        if value.endswith("label_offset:1"):
            return "the first output is a background class"
        if "columns:" in value:
            return "the last output is a background class"
        if re.fullmatch(r"\d+x\d+", value):
            return f"images of {value}"
        return f"{value} samples a second" if value.isdigit() else _MEANINGS.get(value, value)


class Feed(NamedTuple):
    """How one input of a model is fed.

    Attributes:
        spec: the bundle's input.
        tensor: name of the model's input.
        steps: from one to the other.
    """

    spec: InputSpec
    tensor: str
    steps: str = ""


class Truth(NamedTuple):
    """The labels of data.

    Attributes:
        kind: real numbers or classes; "" without labels.
        values: numbers of each label; 0 for classes.
    """

    kind: Literal["", "numbers", "classes"] = ""
    values: int = 0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Properties of the data, and of files near a model, that help to recognise it.

    Attributes:
        kind: of the data: images, recordings or tables; None if they are not known.
        columns: of a table.
        texts: those of them that hold text, without the label.
        rates_hz: sample rates of recordings.
        image_size: width and height of all images; None if they differ.
        label_counts: sizes of the known lists of labels.
        truth: of the data.
        label_column: name of the column with the label.
        tokenizer: file of the model's tokenizer; None if there is none near it.
        tokens: the most that the model takes.
    """

    kind: Kind | None = None
    columns: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    rates_hz: tuple[int, ...] = ()
    image_size: tuple[int, int] | None = None
    label_counts: Collection[int] = ()
    truth: Truth = Truth()  # noqa: RUF009 (immutable)
    label_column: str = "label"
    tokenizer: Path | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to feed a model and to read its outputs.

    Attributes:
        family: such as "yolox", or "softmax classifier".
        task: kind of its outputs, see `firstline_core/tasks`.
        sure: 0 to 1, see `SURE`.
        input: name of the model's input; "" if there are several.
        classes: number of classes, or of values, that the outputs have room for; 0 if the outputs do not tell.
        labels: of the model's own classes, () if unknown.
        names: of the values of a regression.
        decoder: steps after the model, without `class_map`, `suppress`, `unstandardize` and `threshold`.
        output: name of the model's output, "" if the decoder names them.
        mode: order of the colours.
        size: width and height; None for inputs that are no images.
        any_size: whether the model takes any size, and its metadata name none.
        geometry: how an image becomes this size: "squash", "corner", "center" or "crop", see `Choice.meaning`.
        padding: further arguments of a letterbox.
        scaling: the range of pixels, see `Choice.meaning`, unless `quantised`; "" for an input of bytes.
        quantised: the step that fills the range of a quantised input, or "imagenet" if the range is ImageNet's.
        rate: samples a second of a model of recordings; "" for other inputs.
        samples: that such a model takes; 0 for any number.
        standardized: "standardize" if the model takes rows less their mean, by their deviation; else "raw".
        columns: the feeds of a model of text or of columns of a table.
        class_map: names or numbers of the step `class_map`; "" for none.
        score: operating score of a detector.
        threshold: arguments of the step `threshold` of an anomaly model.
        inside: whether suppression is inside the model.
        without_rows: names of the model's inputs and outputs that have no axis of rows.
        assumptions: sentences about what is assumed, and then about what was decided.
        choices: properties that the file leaves open.
    """

    family: str
    task: str
    sure: float
    input: str
    classes: int = 0
    labels: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    decoder: str = ""
    output: str = ""
    mode: str = "RGB"
    size: tuple[int, int] | None = None
    any_size: bool = False
    geometry: str = "squash"
    padding: str = "pad=114"
    scaling: str = "unit"
    quantised: str = ""
    channels_first: bool = False
    rate: str = ""
    samples: int = 0
    standardized: str = "raw"
    columns: tuple[Feed, ...] = ()
    class_map: str = ""
    score: float = 0.3
    threshold: str = "0"
    inside: bool = False
    without_rows: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """Returns how each input of the model is fed."""
        if self.size is not None:
            return (Feed(InputSpec("image", "BYTES", (-1,), "image"), self.input, self._of_images(self.size)),)
        if self.rate:
            length = f",crop:{self.samples},pad:{self.samples}" if self.samples else ""
            steps = f"decode_audio,mono,resample:{self.rate}{length}"
            return (Feed(InputSpec("audio", "BYTES", (-1,), "audio"), self.input, steps),)
        if self.standardized == "raw":
            return self.columns
        # FP32 loses what matters of large values that change little.
        return tuple(
            Feed(InputSpec(feed.spec.name, "FP64", feed.spec.shape), feed.tensor, "standardize")
            for feed in self.columns
        )

    @property
    def preprocess(self) -> str:
        """Returns the steps before a model of one input; "" if there are several."""
        return self.feeds[0].steps if len(self.feeds) == 1 else ""

    def _of_images(self, size: tuple[int, int]) -> str:
        steps = [f"decode:{self.mode}"]
        if self.geometry == "crop":
            steps.append("center_crop:0.875")
        letterbox = f":letterbox={self.geometry}:{self.padding}" if self.geometry in ("corner", "center") else ""
        resize = f"resize:{size[0]}x{size[1]}{letterbox}"
        filled = _scale(self.quantised, self.mode) if self.quantised in _SCALES else self.quantised
        steps += [resize, filled or _scale(self.scaling, self.mode)]
        if self.channels_first:
            steps.append("layout:NCHW")
        return ",".join(step for step in steps if step)

    @property
    def postprocess(self) -> str:
        """Returns the steps after the model."""
        steps = [self.decoder] if self.decoder else []
        if self.class_map:
            steps.append(f"class_map:{self.class_map}")
        if self.task == "detection":
            steps.append(f"suppress:{self.score:g}{':iou=1' if self.inside else ''}")
        if self.task == "anomaly":
            steps.append(f"threshold:{self.threshold}")
        if self.standardized == "standardize":
            steps.append("unstandardize")
        return ",".join(steps)

    def with_value(self, choice: Choice, value: str) -> Reading:
        """Returns this reading with a choice made."""
        rest = tuple(other for other in self.choices if other.field != choice.field)
        return replace(self, choices=rest, **{choice.field: choice.parsed(value)})

    def noted(self, *sentences: str, **fields: Any) -> Reading:
        """Returns this reading with other fields, and sentences that say why."""
        return replace(self, assumptions=(*self.assumptions, *sentences), **fields)


def _scale(name: str, mode: str) -> str:
    """Returns the step that scales pixels; statistics by channel follow the order of the colours."""
    if not name:
        return ""
    mean, std = _SCALES[name]
    if mode == "BGR":
        mean, std = mean[::-1], std[::-1]
    elif mode == "L":
        mean, std = mean[1:2] or mean, std[1:2] or std
    return f"scale:{'/'.join(f'{value:g}' for value in mean)}:{'/'.join(f'{value:g}' for value in std)}"


def escaped(name: str) -> str:
    """Returns the name of an output as steps spell it."""
    return name.replace(":", "\\:")
