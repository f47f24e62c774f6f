"""The description of a model file: ports, operators, metadata and labels."""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from firstline.workbench.bundle import RuntimeName, runtime_of
from firstline_core.protocol.protobuf import fields
from firstline_core.runtime.litert import operator_names
from firstline_core.runtime.select import RuntimeOptions, load_runtime
from firstline_core.types import TensorSpec

_LABEL_FILE = re.compile(r"(^|/)[^/]*label[^/]*\.txt$", re.IGNORECASE)
_LABELS_LIMIT_BYTES = 16 << 20
_PRODUCER, _GRAPH, _METADATA = 2, 7, 14  # of a ModelProto


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file, as its runtime and its own metadata describe it.

    Attributes:
        name: of the file, for messages.
        inputs: of the model; -1 is a free size.
        outputs: of the model; a shape of () is unknown.
        ranges: real values that quantised inputs hold, by name.
        operators: kinds of its operators, in order.
        metadata: pairs that the exporter wrote.
        labels: of its classes, from its metadata or a file inside; () if it has none.
    """

    name: str
    runtime: RuntimeName
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    operators: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()


def read_model_file(file: Path, options: RuntimeOptions = RuntimeOptions()) -> ModelFile:  # noqa: B008 (frozen)
    """Loads a model and reads what its file says about it.

    Raises:
        ConfigError: the file is of no known runtime, or cannot be read.
        ModelLoadError: the runtime does not load it.
    """
    runtime = runtime_of(file)
    with closing(load_runtime(file, runtime, options)) as loaded:
        operators, metadata = (operator_names(file), {}) if runtime == "tflite" else _onnx(file.read_bytes())
        labels = _named(metadata) or _inside(file)
        return ModelFile(
            file.name, runtime, loaded.inputs, loaded.outputs, dict(loaded.ranges), operators, metadata, labels
        )


def _onnx(model: bytes) -> tuple[tuple[str, ...], dict[str, str]]:
    """Returns the operators of an ONNX model, and its metadata with `producer`."""
    operators: list[str] = []
    metadata: dict[str, str] = {}
    for number, value in fields(memoryview(model)):
        if not isinstance(value, memoryview):
            continue
        if number == _PRODUCER:
            metadata["producer"] = _text(value)
        elif number == _GRAPH:
            operators += _operators(value)
        elif number == _METADATA:
            pair = {key: _text(text) for key, text in fields(value) if isinstance(text, memoryview)}
            metadata[pair.get(1, "")] = pair.get(2, "")
    return tuple(operators), metadata


def _operators(graph: memoryview) -> Iterator[str]:
    for number, node in fields(graph):
        if number == 1 and isinstance(node, memoryview):
            yield from (_text(kind) for key, kind in fields(node) if key == 4 and isinstance(kind, memoryview))


def _text(value: memoryview) -> str:
    return bytes(value).decode(errors="replace")


def _named(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the labels in an exporter's metadata: Ultralytics' `names`, or lines in `character` or `labels`."""
    if names := metadata.get("names"):
        try:
            found = ast.literal_eval(names)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return ()
        if isinstance(found, dict) and sorted(found) == list(range(len(found))):
            found = [found[number] for number in range(len(found))]
        return tuple(map(str, found)) if isinstance(found, list | tuple) else ()
    lines = metadata.get("labels") or metadata.get("character") or ""
    return tuple(line.strip() for line in lines.splitlines())


def _inside(file: Path) -> tuple[str, ...]:
    """Returns the labels in a file inside: TFLite models with metadata are zip archives too."""
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if _LABEL_FILE.search(member.filename) and member.file_size <= _LABELS_LIMIT_BYTES:
                    return tuple(line.strip() for line in archive.read(member).decode().splitlines())
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError, RuntimeError):
        pass
    return ()
