"""The description of a model file: ports, operators, metadata and labels."""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import assert_never

from firstline.workbench.bundle import runtime_of
from firstline.workbench.data.files import DAMAGED_ZIP
from firstline_core.runtime.base import RowByRow, RuntimeName
from firstline_core.runtime.litert import operator_names
from firstline_core.runtime.onnx_file import parse_model, text_of
from firstline_core.runtime.select import RuntimeOptions, load_runtime
from firstline_core.types import Arrays, TensorSpec

_LABEL_FILE = re.compile(r"(^|/)[^/]*label[^/]*\.txt$", re.IGNORECASE)
_LABELS_LIMIT_BYTES = 16 << 20
_LEAST_SIDE = 16  # pixels of an image; fewer on the first axis are rows


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
        without_rows: names of inputs and outputs that have no axis of rows; it is added to their shapes.
    """

    name: str
    runtime: RuntimeName
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    operators: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    without_rows: tuple[str, ...] = ()


def read_model_file(file: Path, options: RuntimeOptions = RuntimeOptions()) -> ModelFile:  # noqa: B008 (frozen)
    """Loads a model and reads what its file says about it.

    Raises:
        ConfigError: the file is of no known runtime, or cannot be read.
        ModelLoadError: the runtime does not load it.
    """
    runtime = runtime_of(file)
    with closing(load_runtime(file, runtime, options)) as raw:
        without_rows = tuple(spec.name for spec in raw.inputs if _is_one_row(spec.shape))
        if without_rows:
            without_rows += tuple(spec.name for spec in raw.outputs if len(spec.shape) < 2 or spec.shape[0] != 1)
        loaded = RowByRow(raw, without_rows)
        operators, metadata = _operators_and_metadata(file, runtime)
        return ModelFile(
            name=file.name,
            runtime=runtime,
            inputs=loaded.inputs,
            outputs=loaded.outputs,
            ranges=dict(loaded.ranges),
            operators=operators,
            metadata=metadata,
            labels=_named(metadata) or _inside(file),
            without_rows=without_rows,
        )


def _is_one_row(shape: tuple[int, ...]) -> bool:
    """Returns whether an input takes one row without an axis of rows: a list of numbers, or one image of colours."""
    if len(shape) == 3:
        return shape[0] == 3 or (shape[2] in (1, 3) and shape[0] >= _LEAST_SIDE)
    return len(shape) == 1 and shape[0] > 1


def with_output_rows(file: ModelFile, outputs: Arrays) -> tuple[ModelFile, Arrays]:
    """Adds an axis of rows to outputs that hold the boxes of one image, such as [boxes, 7], or [boxes, 4] and [boxes].

    Args:
        file: of a model.
        outputs: of one row.

    Returns:
        The description, and the outputs; both unchanged for other models.
    """
    shapes = [array.shape for array in outputs.values()]
    corners = [shape for shape in shapes if len(shape) == 2 and shape[1] == 4]
    numbered = len(shapes) == 1 and len(shapes[0]) == 2 and shapes[0][1] == 7
    listed = len(corners) == 1 < len(shapes) and all(len(one) < 3 and one[:1] in ((), corners[0][:1]) for one in shapes)
    free = all(spec.shape[0] == 1 for spec in file.inputs) and all(spec.shape[:1] != (1,) for spec in file.outputs)
    if file.without_rows or not (numbered or listed) or (max(shapes)[0] == 1 and not free):
        return file, outputs
    added = tuple(TensorSpec(spec.name, spec.datatype, (-1, *spec.shape)) for spec in file.outputs)
    return replace(file, outputs=added, without_rows=tuple(outputs)), {
        name: array[None] for name, array in outputs.items()
    }


def _operators_and_metadata(file: Path, runtime: RuntimeName) -> tuple[tuple[str, ...], dict[str, str]]:
    match runtime:
        case "onnx":
            return _onnx(file.read_bytes())
        case "tflite":
            return operator_names(file), {}
        case _:
            assert_never(runtime)


def _onnx(model: bytes) -> tuple[tuple[str, ...], dict[str, str]]:
    """Returns the operators of an ONNX model, and its metadata with `producer`."""
    parsed = parse_model(model)
    metadata = {"producer": text_of(parsed.producer_name)} if parsed.HasField("producer_name") else {}
    metadata |= {text_of(entry.key): text_of(entry.value) for entry in parsed.metadata_props}
    return tuple(text_of(node.op_type) for node in parsed.graph.node), metadata


def _named(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the labels in an exporter's metadata: Ultralytics' `names`, or lines in `character` or `labels`."""
    if names := metadata.get("names"):
        try:
            found = ast.literal_eval(names)
            if isinstance(found, dict) and sorted(found) == list(range(len(found))):
                found = [found[number] for number in range(len(found))]
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return ()
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
    except (OSError, *DAMAGED_ZIP):
        return ()
    return ()
