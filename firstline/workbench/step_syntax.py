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
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import Struct
from msgspec.inspect import EnumType, LiteralType, TupleType, UnionType, VarTupleType

from firstline.workbench.step_usage import USAGE
from firstline_core.errors import ConfigError, did_you_mean, listed
from firstline_core.processing.steps import Graph, PostStep, PreStep, WithFile
from firstline_core.storage.artefact import Artefact
from firstline_core.storage.structs import fault_of


class StepOfFile(NamedTuple):
    """A step whose file becomes an artefact when the bundle is written.

    Attributes:
        file: of the user.
        step: with a placeholder in the place of the artefact.
    """

    file: Path
    step: WithFile


PlainPre = PreStep | StepOfFile
PlainPost = PostStep | StepOfFile

_NO_FILE = Artefact("file", "0" * 64, 0)
_COCO_UNUSED = (0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
_COCO_91 = tuple(-1 if i in _COCO_UNUSED else i - sum(unused < i for unused in _COCO_UNUSED) for i in range(91))
_CLASS_MAPS = {"coco91": _COCO_91, "coco90": _COCO_91[1:]}
_COLON = re.compile(r"(?<!\\):")
_NO_CHOICE = re.compile(r"Invalid enum value .* at `\$\.(\w+)`")
_NO_NUMBER = re.compile(r"Expected `(int|float)`, got `str` - at `\$\.(\w+)")
# Steps with arguments that few models need: they are spelled without those that have their defaults.
_TERSE = ("decode_text", "ssd", "anchors", "spread", "residual", "box_rows")


def parse_preprocess(text: str, folder: Path = Path()) -> tuple[PlainPre, ...]:
    """Parses the steps before a model.

    Args:
        text: see the module; "" for no steps.
        folder: that a graph's path is relative to.

    Raises:
        ConfigError: a step is not valid; names it and the right form.
    """
    return _parse(text, folder, "preprocessing", PreStep)


def parse_postprocess(text: str, folder: Path = Path()) -> tuple[PlainPost, ...]:
    """Parses the steps after a model, as `parse_preprocess`."""
    return _parse(text, folder, "postprocessing", PostStep)


def with_artefacts(steps: Sequence[Any], artefact_of: Callable[[StepOfFile], Artefact]) -> tuple[Any, ...]:
    """Returns parsed steps with the artefacts of their files, as a manifest has them."""
    return tuple(
        msgspec.structs.replace(step.step, artefact=artefact_of(step)) if isinstance(step, StepOfFile) else step
        for step in steps
    )


def spell(steps: Sequence[PreStep | PostStep]) -> str:
    """Returns the text that parses to these steps; a graph is named by its file in the bundle."""
    return ",".join(_spell_step(step) for step in steps)


def _parse(text: str, folder: Path, side: str, union: Any) -> tuple[Any, ...]:
    kinds = {kind.__struct_config__.tag: kind for kind in get_args(union)}
    return tuple(_step(part.strip(), folder, kinds, side) for part in text.split(",") if part.strip())


def _step(text: str, folder: Path, kinds: Mapping[str, type[Struct]], side: str) -> Any:
    op, *arguments = (part.replace("\\:", ":") for part in _COLON.split(text))
    if op not in kinds:
        raise ConfigError(f"'{op}' is not a {side} step{listed(op, kinds)}")
    if op == "graph":
        file = text.partition(":")[2]
        if not file:
            raise ConfigError("The step 'graph' needs a file: graph:FILE.onnx.")
        return StepOfFile(folder / file, Graph(_NO_FILE))
    takes, given = _arguments(kinds[op]), dict[str, str]()
    for position, argument in enumerate(arguments):
        name, value = _named(op, list(takes), position, argument, text)
        given[name] = value
    fields: dict[str, object] = {name: value.split("/") if takes[name] else value for name, value in given.items()}
    if op == "class_map" and given.get("to") in _CLASS_MAPS:
        fields["to"] = _CLASS_MAPS[given["to"]]
    if "size" in takes and "size" not in fields and op == "resize":
        raise ConfigError(f"The step '{text}' has no size; it is spelled {USAGE[op][0]}.")
    if "size" in fields:
        fields |= _size(str(fields.pop("size")), text)
    file = str(fields.pop("file", ""))
    if "file" in takes:
        if not file:
            raise ConfigError(f"The step '{op}' needs a file; it is spelled {USAGE[op][0]}.")
        fields["artefact"] = msgspec.to_builtins(_NO_FILE)
    try:
        step: Any = msgspec.convert(fields, kinds[op], strict=False)
        return StepOfFile(folder / file, step) if file else step
    except msgspec.ValidationError as error:
        if found := _NO_NUMBER.match(str(error)):
            number, name = "a whole number" if found[1] == "int" else "a number", found[2]
            raise ConfigError(
                f"The step '{text}' needs {number} for '{name}', not '{given[name]}'; it is spelled {USAGE[op][0]}."
            ) from error
        raise ConfigError(f"The step '{text}' is not valid: {_fault(error, kinds[op], given)}") from error


def _fault(error: Exception, kind: type[Struct], given: Mapping[str, str]) -> str:
    """Returns what is wrong with the arguments of a step, and the choices of one that has them."""
    if (name := next(iter(_NO_CHOICE.findall(str(error))), "")) not in given:
        return f"{fault_of(error)}."
    info: Any = msgspec.inspect.type_info(kind)
    choices = [str(value) for field in info.fields if field.name == name for value in _values(field.type)]
    return f"'{given[name]}' is not a {name}{listed(given[name], choices)}"


def _values(kind: Any) -> Sequence[Any]:
    """Returns the choices of a type."""
    if isinstance(kind, UnionType):
        return [value for each in kind.types for value in _values(each)]
    return list(kind.values) if isinstance(kind, LiteralType) else list(kind.cls) if isinstance(kind, EnumType) else ()


@cache
def _arguments(kind: type[Struct]) -> dict[str, bool]:
    """Returns the names of a step's arguments in their order, and whether each is a list."""
    found: dict[str, bool] = {}
    for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        name = {"artefact": "file", "width": "size", "height": "size"}.get(field.name, field.name)
        found[name] = any(
            isinstance(each, TupleType | VarTupleType) for each in getattr(field.type, "types", [field.type])
        )
    return found


def _by_name(op: str) -> set[str]:
    """Returns the arguments of a step that are only given by name."""
    return set(re.findall(r"(\w+)=", USAGE[op][0]))


def _named(op: str, names: Sequence[str], position: int, argument: str, text: str) -> tuple[str, str]:
    name, equals, value = argument.partition("=")
    if not equals:
        if position >= len(names) or names[position] in _by_name(op):
            raise ConfigError(f"The step '{text}' has too many arguments; it is spelled {USAGE[op][0]}.")
        return names[position], argument
    if name not in names:
        end = did_you_mean(name, names)
        raise ConfigError(
            f"The step '{text}' takes no '{name}'{end if end != '.' else f'; it is spelled {USAGE[op][0]}.'}"
        )
    return name, value


def _size(value: str, text: str) -> dict[str, object]:
    width, _, height = value.lower().partition("x")
    try:
        return {"width": int(width), "height": int(height or width)}
    except ValueError as error:
        raise ConfigError(f"The step '{text}' needs a size like 224x224 (width x height), not '{value}'.") from error


def _spell_step(step: PreStep | PostStep) -> str:
    if isinstance(step, Graph):
        return f"graph:{step.artefact.file}"
    fields = msgspec.to_builtins(step)
    op = fields.pop("op")
    if isinstance(step, WithFile):
        fields = {"file": fields.pop("artefact")["file"], **fields}
    if op in _TERSE:
        usual = {field.name: field.default for field in msgspec.structs.fields(type(step))}
        fields = {name: value for name, value in fields.items() if value != usual[name]}
    if op == "class_map":
        names = [name for name, to in _CLASS_MAPS.items() if to == tuple(fields["to"])]
        fields = {"to": names[0]} if names else fields
    if op == "resize":
        fields = {"size": f"{fields.pop('width')}x{fields.pop('height')}", **fields}
    named = set(fields) if op == "scale" else _by_name(op)
    return ":".join([op, *(f"{name}={_text(v)}" if name in named else _text(v) for name, v in fields.items())])


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "/".join(_text(part) for part in value)
    if isinstance(value, str):
        return value.replace(":", "\\:")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
