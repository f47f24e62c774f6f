r"""The compact spelling of processing steps, for flags and recipes; the steps themselves are `processing/steps.py`.

    decode:RGB,center_crop:0.875,resize:224x224,scale:mean=127.5:std=127.5,layout:NCHW
    softmax,label_offset:1
    yolox,suppress:0.3:iou=0.45

Steps are separated by commas and carried out in order; a step's arguments are separated by colons, in the order of
`USAGE` or by name; the values of a list are separated by slashes. A colon within the name of an output is written \:.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from firstline.workbench.step_usage import USAGE
from firstline_core.errors import ConfigError, did_you_mean
from firstline_core.processing.steps import Ctc, Gallery, Graph, PostStep, PreStep, Tokenize, WithFile
from firstline_core.storage.artefact import Artefact


class StepOfFile(NamedTuple):
    """A step whose file becomes an artefact when the bundle is written.

    Attributes:
        file: of the user.
        step: with a placeholder in the place of the artefact.
    """

    file: Path
    step: Tokenize | Ctc | Gallery


# A path is the file of a graph step.
PlainPre = PreStep | Path | StepOfFile
PlainPost = PostStep | Path | StepOfFile

_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "decode": ("mode", "background", "bits"),
    "center_crop": ("fraction",),
    "resize": ("size", "filter", "letterbox", "pad", "rounding"),
    "detrend": ("kind",),
    "welch": ("rate_hz", "samples", "hop"),
    "band_energies": ("rate_hz", "edges_hz"),
    "mel": ("rate_hz", "samples", "hop", "bands", "low_hz", "high_hz", "log", "frames"),
    "decode_text": ("form", "lower", "strip"),
    "tokenize": ("file", "part", "length", "padding", "truncate"),
    "ctc": ("file", "blank", "axes"),
    "confidence": ("output",),
    "resample": ("rate_hz",),
    "crop": ("samples", "keep"),
    "pad": ("samples", "side"),
    "windows": ("samples", "hop", "combine"),
    "scale": ("mean", "std"),
    "layout": ("to",),
    "columns": ("indices",),
    "spread": ("output", "columns"),
    "reconstruction": ("of",),
    "observed": ("samples",),
    "residual": ("of", "spread"),
    "threshold": ("value", "side", "scale"),
    "gallery": ("file", "least"),
    "argmax": ("layout",),
    "class_scores": ("output", "of", "layout"),
    "label_offset": ("offset",),
    "binary": ("of",),
    "yolox": ("strides",),
    "yolo": ("objectness", "unit"),
    "detr": ("logits", "boxes", "activation"),
    "ssd": ("boxes", "classes", "scores", "count", "corners", "unit"),
    "box_rows": ("unit", "numbered"),
    "class_map": ("to",),
    "suppress": ("score", "iou", "floor", "limit"),
}
# Arguments that are only given by name.
_BY_NAME = frozenset(
    {
        "background",
        "bits",
        "letterbox",
        "pad",
        "rounding",
        "columns",
        "objectness",
        "corners",
        "iou",
        "floor",
        "limit",
        "scale",
        "spread",
        "least",
        "lower",
        "strip",
        "truncate",
        "padding",
        "log",
        "frames",
        "numbered",
    }
)
_AUDIO = ("decode_audio", "mono", "resample", "crop", "pad", "windows")
_SIGNALS = ("detrend", "welch", "band_energies", "envelope", "mel")
_TEXT = ("decode_text", "tokenize")
_BEFORE = (
    "decode",
    "center_crop",
    "resize",
    *_AUDIO,
    *_TEXT,
    *_SIGNALS,
    "observed",
    "standardize",
    "scale",
    "layout",
    "flatten",
    "graph",
)
_DETECTION = ("yolox", "fastestdet", "yolo", "detr", "ssd", "box_rows", "class_map", "suppress")
_AFTER = (
    "softmax",
    "sigmoid",
    "ctc",
    "confidence",
    "columns",
    "spread",
    "unstandardize",
    "reconstruction",
    "residual",
    "threshold",
    "gallery",
    "argmax",
    "class_scores",
    "label_offset",
    "binary",
    "graph",
    *_DETECTION,
)
_NUMBERS = {
    "fraction": float,
    "bands": int,
    "low_hz": float,
    "high_hz": float,
    "samples": int,
    "hop": int,
    "length": int,
    "blank": int,
    "offset": int,
    "value": float,
    "least": float,
    "scale": float,
    "bits": int,
    "pad": int,
    "score": float,
    "iou": float,
    "floor": float,
    "limit": int,
}
_SWITCHES = ("objectness", "numbered", "lower", "strip", "truncate", "log")
_NO_FILE = Artefact("file", "0" * 64, 0)
_INTEGERS = ("background", "strides", "indices", "columns")
_COCO_UNUSED = (0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
_COCO_91 = tuple(-1 if i in _COCO_UNUSED else i - sum(unused < i for unused in _COCO_UNUSED) for i in range(91))
_CLASS_MAPS = {"coco91": _COCO_91, "coco90": _COCO_91[1:]}
_COLON = re.compile(r"(?<!\\):")


def parse_preprocess(text: str, folder: Path = Path()) -> tuple[PlainPre, ...]:
    """Parses the steps before a model.

    Args:
        text: see the module; "" for no steps.
        folder: that a graph's path is relative to.

    Raises:
        ConfigError: a step is not valid; names it and the right form.
    """
    return _parse(text, folder, _BEFORE, "before", PreStep)


def parse_postprocess(text: str, folder: Path = Path()) -> tuple[PlainPost, ...]:
    """Parses the steps after a model, as `parse_preprocess`."""
    return _parse(text, folder, _AFTER, "after", PostStep)


def spell(steps: Sequence[PreStep | PostStep]) -> str:
    """Returns the text that parses to these steps; a graph is named by its file in the bundle."""
    return ",".join(_spell_step(step) for step in steps)


def _parse(text: str, folder: Path, known: Sequence[str], side: str, kind: Any) -> tuple[Any, ...]:
    return tuple(_step(part.strip(), folder, known, side, kind) for part in text.split(",") if part.strip())


def _step(text: str, folder: Path, known: Sequence[str], side: str, kind: Any) -> Any:
    op, *arguments = (part.replace("\\:", ":") for part in _COLON.split(text))
    if op not in known:
        end = did_you_mean(op, known)
        listed = f"; there are: {', '.join(known)}."
        raise ConfigError(f"'{op}' is not a step {side} the model{listed if end == '.' else end}")
    if op == "graph":
        file = text.partition(":")[2]
        if not file:
            raise ConfigError("The step 'graph' needs a file: graph:FILE.onnx.")
        return folder / file
    fields: dict[str, object] = {"op": op}
    for position, argument in enumerate(arguments):
        name, value = _named(op, position, argument, text)
        if name == "size":
            fields |= _size(value, text)
        else:
            fields[name] = _value(op, name, value, text)
    file = str(fields.pop("file", ""))
    if "file" in _ARGUMENTS.get(op, ()):
        if not file:
            raise ConfigError(f"The step '{op}' needs a file; it is spelled {USAGE[op][0]}.")
        fields["artefact"] = msgspec.to_builtins(_NO_FILE)
    try:
        step = msgspec.convert(fields, kind)
        return StepOfFile(folder / file, step) if file else step
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"The step '{text}' is not valid: {_lowered(error)}; it is spelled {USAGE[op][0]}."
        ) from error


def _named(op: str, position: int, argument: str, text: str) -> tuple[str, str]:
    name, equals, value = argument.partition("=")
    names = _ARGUMENTS.get(op, ())
    if not equals:
        if position >= len(names) or names[position] in _BY_NAME:
            raise ConfigError(f"The step '{text}' has too many arguments; it is spelled {USAGE[op][0]}.")
        return names[position], argument
    if name not in names:
        raise ConfigError(f"The step '{text}' takes no '{name}'; it is spelled {USAGE[op][0]}.")
    return name, value


def _value(op: str, name: str, value: str, text: str) -> object:
    try:
        if name == "rate_hz":
            return int(value) if value.isdecimal() else float(value)
        if name in ("mean", "std", "edges_hz"):
            return tuple(float(part) for part in value.split("/"))
        if name in _INTEGERS:
            return tuple(int(part) for part in value.split("/"))
        if (op, name) == ("class_map", "to"):
            return _CLASS_MAPS.get(value) or tuple(int(part) for part in value.split("/"))
        if name in _SWITCHES:
            return {"true": True, "false": False}.get(value, value)
        if op in ("ssd", "detr"):
            return value
        convert: Callable[[str], object] = _NUMBERS.get(name, str)
        return convert(value)
    except ValueError as error:
        raise ConfigError(f"The step '{text}' needs a number for '{name}', not '{value}'.") from error


def _size(value: str, text: str) -> dict[str, object]:
    width, _, height = value.lower().partition("x")
    try:
        return {"width": int(width), "height": int(height or width)}
    except ValueError as error:
        raise ConfigError(f"The step '{text}' needs a size like 224x224 (width x height), not '{value}'.") from error


def _lowered(error: Exception) -> str:
    text = str(error).split(" - at ")[0]
    return text[:1].lower() + text[1:]


def _spell_step(step: PreStep | PostStep) -> str:
    if isinstance(step, Graph):
        return f"graph:{step.artefact.file}"
    fields = msgspec.to_builtins(step)
    op = fields.pop("op")
    if isinstance(step, WithFile):
        fields = {"file": fields.pop("artefact")["file"], **fields}
    if op == "decode_text":
        fields = {name: value for name, value in fields.items() if value}
    if op == "class_map":
        names = [name for name, to in _CLASS_MAPS.items() if to == tuple(fields["to"])]
        fields = {"to": names[0]} if names else fields
    if op in ("ssd", "spread", "residual"):
        fields = {name: value for name, value in fields.items() if value and value not in ("yxyx", "fractions")}
    if op == "resize":
        fields = {"size": f"{fields.pop('width')}x{fields.pop('height')}", **fields}
    named = set(fields) if op == "scale" else _BY_NAME | {"unit"} if op == "ssd" else _BY_NAME
    return ":".join([op, *(f"{name}={_text(v)}" if name in named else _text(v) for name, v in fields.items())])


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "/".join(_text(part) for part in value)
    if isinstance(value, str):
        return value.replace(":", "\\:")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
