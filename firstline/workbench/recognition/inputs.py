"""The input side of a model: pixels, samples of sound, tokens of text, or columns of a table. Each reading starts here.

Shape, datatype and name tell the kind of an input, and the data confirm it: [n, 8000] is a second of sound for
recordings, and 8,000 numbers for a table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from firstline.workbench.model_file import ModelFile
from firstline.workbench.recognition.reading import Choice, Feed, Reading, Surroundings, escaped
from firstline_core.processing.steps import Datatype, InputSpec
from firstline_core.types import DATATYPES, TensorSpec

_RATES_HZ = (16_000, 8000, 22_050, 32_000, 44_100, 48_000)
_YAMNET = 15_600  # samples at 16 kHz: 0.975 s
_SHORTEST_S, _LONGEST_S = 0.1, 60.0
_MOST_RATES = 4
_LEAST_SAMPLES = 400
_LEAST_WINDOW = 8  # numbers of a row that may be a window of a series
_OF_IMAGENET, _CALIBRATED = (-2.118, 2.64), 0.05  # ends of its normalised pixels, and what calibration may miss
_TOKENS = {"ids": r"(input|token|word)_?ids?$|^ids$", "mask": r"mask$", "types": r"(type|segment)_?ids?$"}


class Start(NamedTuple):
    """The input side of a model, with which each of its readings starts, and what lies near it."""

    inputs: Reading
    near: Surroundings

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Returns the shape of each input of pixels or numbers, without the axis of rows."""
        if self.inputs.size is None:
            return [feed.spec.shape[1:] for feed in self.inputs.columns]
        width, height = self.inputs.size
        channels = 1 if self.inputs.mode == "L" else 3
        return [(channels, height, width) if self.inputs.channels_first else (height, width, channels)]

    def reading(
        self, family: str, task: str, sure: float, choices: Sequence[Choice], assumptions: Sequence[str], **fields: Any
    ) -> Reading:
        """Returns a reading with the open properties of the input and of the family, at their preferred values."""
        fixed = {"mode", "geometry", "scaling"} if self.inputs.size is None else set()
        if self.inputs.mode == "L":
            fixed.add("mode")
        if self.inputs.quantised or not self.inputs.scaling:
            fixed.add("scaling")
        left = [choice for choice in choices if choice.field not in fixed]
        fields |= {choice.field: choice.parsed(choice.values[0]) for choice in left}
        fields["assumptions"] = (*self.inputs.assumptions, *assumptions)
        fields["choices"] = (*self.inputs.choices, *left)
        return replace(self.inputs, family=family, task=task, sure=sure, **fields)


def start_of(file: ModelFile, near: Surroundings) -> Start | None:
    """Returns the start of a model's readings; None if it does not take what the data hold."""
    if near.kind == "audio":
        found = _recordings(file, near)
    elif near.kind == "image":
        found = image_input(file)
    else:
        found = None if near.kind else image_input(file)
        found = found or _tokens(file, near) or _columns(file, near)
    return None if found is None else Start(found, near)


def token_inputs(file: ModelFile) -> dict[str, str]:
    """Returns the parts of a tokenizer's output (ids, mask, types) by the model's inputs; none for other models."""
    found: dict[str, str] = {}
    for spec in file.inputs:
        parts = [part for part, pattern in _TOKENS.items() if re.search(pattern, spec.name.lower())]
        if spec.datatype not in ("INT64", "INT32") or len(spec.shape) != 2 or not parts:
            return {}
        found[spec.name] = "types" if "types" in parts else parts[0]
    return found if "ids" in found.values() else {}


def image_input(file: ModelFile) -> Reading | None:
    """Returns the start of a model of images, with its size; None for models of other inputs."""
    if len(file.inputs) != 1 or len(file.inputs[0].shape) != 4:
        return None
    spec = file.inputs[0]
    if DATATYPES[spec.datatype].kind != "f" and spec.datatype != "UINT8":
        return None
    first, last = spec.shape[1], spec.shape[3]
    if (first in (1, 3)) == (last in (1, 3)) and first != 3:
        return None
    channels_first = first in (1, 3)
    channels = first if channels_first else last
    height, width = spec.shape[2:] if channels_first else spec.shape[1:3]
    assumptions: list[str] = []
    any_size = False
    if min(height, width) < 1:
        width, height, why = _free_size(file)
        any_size = "imgsz" not in file.metadata
        assumptions.append(f"the model takes any size; {width}x{height} {why}")
    quantised = ""
    if (value_range := file.ranges.get(spec.name)) is not None:
        low, high = value_range
        std = 255 / (high - low)
        quantised = f"scale:{-low * std + 0.0:.5g}:{std:.5g}"
        if channels == 3 and np.allclose(value_range, _OF_IMAGENET, rtol=_CALIBRATED):
            quantised = "imagenet"  # each colour has a range of its own within the one of the input
            assumptions.append(f"its input holds {low:.3g} to {high:.3g}, as pixels with ImageNet's mean and deviation")
    return _begun(
        file,
        spec.name,
        mode="L" if channels == 1 else "RGB",
        size=(width, height),
        any_size=any_size,
        quantised=quantised,
        channels_first=channels_first,
        assumptions=tuple(assumptions),
        scaling="" if spec.datatype == "UINT8" else "unit",
    )


def _free_size(file: ModelFile) -> tuple[int, int, str]:
    numbers = [int(number) for number in re.findall(r"\d+", file.metadata.get("imgsz", ""))]
    if numbers and min(numbers) >= 32:
        return numbers[-1], numbers[0], "is what its metadata name"
    if file.runtime == "onnx" and any(len(spec.shape) == 3 for spec in file.outputs):
        return 640, 640, "is the usual size of such detectors"
    return 224, 224, "is the usual size of such classifiers"


def _recordings(file: ModelFile, near: Surroundings) -> Reading | None:
    """Returns a model of samples: one input [n, samples] of real numbers."""
    if len(file.inputs) != 1 or len(file.inputs[0].shape) != 2 or DATATYPES[file.inputs[0].datatype].kind != "f":
        return None
    spec = file.inputs[0]
    samples = max(spec.shape[1], 0)
    if 0 < samples < _LEAST_SAMPLES:
        return None
    named = [text for key, text in file.metadata.items() if re.fullmatch(r"sampl(e|ing)_?rate(_hz)?", key.lower())]
    rates, why = _rates(samples, near.rates_hz), "its file names no sample rate"
    if named and re.fullmatch(r"[1-9]\d{0,6}", named[0], re.ASCII):
        rates, why = (int(named[0]),), "its metadata name its sample rate"
    choices = (Choice("rate", tuple(map(str, rates)), known=False),) if len(rates) > 1 else ()
    length = (
        f"{samples} samples, longer recordings are cut and shorter ones end in silence" if samples else "any length"
    )
    return _begun(
        file, spec.name, rate=str(rates[0]), samples=samples, choices=choices, assumptions=(f"it takes {length}", why)
    )


def _rates(samples: int, of_data: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the sample rates that a model may have, the likeliest first: whole seconds, then the rate of the data."""
    common = [rate for rate, _ in Counter(of_data).most_common(1)]
    rates = list(dict.fromkeys([*common, *_RATES_HZ]))
    if samples:
        rates = [rate for rate in rates if _SHORTEST_S <= samples / rate <= _LONGEST_S] or rates
        rates.sort(key=lambda rate: (samples % rate != 0 and (samples, rate) != (_YAMNET, 16_000), rate not in common))
    return tuple(rates[:_MOST_RATES])


def _tokens(file: ModelFile, near: Surroundings) -> Reading | None:
    """Returns a model of tokens, whose tokenizer's file lies near it."""
    parts = token_inputs(file)
    if not parts or near.tokenizer is None or near.tokens < 1:
        return None
    # Ranges of a model that was quantised dynamically depend on the padding.
    dynamic = any(kind in ("DynamicQuantizeLinear", "MatMulInteger") for kind in file.operators)
    padding = ":padding=length" if dynamic or any(spec.shape[1] > 0 for spec in file.inputs) else ""
    text = InputSpec(_text_column(near, "text"), "BYTES", (-1,), "text")
    file_name = escaped(str(near.tokenizer.absolute()))
    steps = {
        name: f"decode_text,tokenize:file={file_name}:{part}:{near.tokens}{padding}:truncate=true"
        for name, part in parts.items()
    }
    return _begun(
        file,
        "",
        columns=tuple(Feed(text, name, step) for name, step in steps.items()),
        assumptions=(f"its tokenizer is {near.tokenizer}", f"it takes {near.tokens} tokens, longer texts are cut"),
    )


def _columns(file: ModelFile, near: Surroundings) -> Reading | None:
    """Returns a model of columns of a table: each input has the name of one, or the only text is its text."""
    columns_fit = all(1 <= len(spec.shape) <= 2 and 0 not in spec.shape for spec in file.inputs)
    if not file.inputs or not columns_fit or token_inputs(file):
        return None
    only = len(file.inputs) == 1
    columns = tuple(Feed(_column(spec, near, only=only), spec.name) for spec in file.inputs)
    if near.columns and any(feed.spec.name not in near.columns for feed in columns):
        return None
    names = ", ".join(f"'{feed.spec.name}'" for feed in columns[:12])
    return _begun(
        file,
        file.inputs[0].name if only else "",
        columns=columns,
        assumptions=(f"its inputs are columns of the data: {names}",),
    )


def _column(spec: TensorSpec, near: Surroundings, *, only: bool) -> InputSpec:
    if spec.datatype == "BYTES":
        name = spec.name if spec.name in near.columns or not only else _text_column(near, spec.name)
        return InputSpec(name, "BYTES", (-1,), "text")
    return InputSpec(spec.name, cast("Datatype", spec.datatype), (-1, *spec.shape[1:]))


def _text_column(near: Surroundings, usual: str) -> str:
    """Returns the column of the texts: the usual one, or the only one that holds text."""
    return usual if usual in near.columns or len(near.texts) != 1 else near.texts[0]


def windows_of(start: Reading) -> bool:
    """Returns whether the model's one input may hold windows of a series."""
    (feed, *others) = start.columns or (None,)
    if feed is None or others or len(feed.spec.shape) != 2 or feed.spec.datatype not in ("FP32", "FP64", "FP16"):
        return False
    return feed.spec.shape[1] >= _LEAST_WINDOW


def _begun(file: ModelFile, name: str, **fields: Any) -> Reading:
    return Reading("", "", 0, name, labels=file.labels, without_rows=file.without_rows, **fields)
