"""Properties of the data, and of files near the models, that help to recognise the models of a pair."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from firstline.workbench.data.dataset import Dataset
from firstline.workbench.model_file import ModelFile
from firstline.workbench.pairing.specification import PairSpec
from firstline.workbench.recognition.answers import ends_in_sigmoid
from firstline.workbench.recognition.inputs import start_of, token_inputs
from firstline.workbench.recognition.outputs import Output
from firstline.workbench.recognition.reading import Surroundings, Truth
from firstline.workbench.trial import most_tokens
from firstline_core.errors import ConfigError, RequestError
from firstline_core.processing.images import decode
from firstline_core.processing.steps import Decode, Kind
from firstline_core.types import Array, TensorSpec

_TOKENIZER = "tokenizer.json"
_LIMIT_BYTES = 64 << 20
_CELLS = 1000
_MOST_CLASSES = 0.5  # share of whole numbers that differ; of more, they are values and no classes
_FEW, _SHOWN = 20, 10
_NO_TEXT = ("file", "group", "name", "time")
_DATA = {"image": "images", "audio": "recordings", "tensor": "rows of a table"}


def look_around(
    spec: PairSpec, dataset: Dataset, files: Mapping[str, ModelFile], label_counts: Collection[int]
) -> dict[str, Surroundings]:
    """Returns what is known about each model before it is recognised, by role.

    Raises:
        ConfigError: an image or a recording cannot be decoded, or a model of tokens has no tokenizer near it.
        InferenceError: a model of tokens does not run.
    """
    rates = tuple(_rates(dataset)) if dataset.kind == "audio" else ()
    sizes = set[tuple[int, int]]()
    if dataset.kind == "image":
        for sample, content in zip(dataset.samples, dataset.contents(), strict=True):
            sizes.add(readable_image(content, dataset.place_of(sample)).size)
    columns = tuple(dataset.table.columns) if dataset.table is not None else ()
    texts = tuple(name for name in columns if name not in (*_NO_TEXT, dataset.label_column) and _is_text(dataset, name))
    found: dict[str, Surroundings] = {}
    for role, file in files.items():
        tokenizer, tokens = None, 0
        if dataset.kind == "tensor" and token_inputs(file):
            tokenizer, limit = _tokenizer(spec.files[role], file)
            tokens = most_tokens(spec.files[role], file, limit)
        found[role] = Surroundings(
            kind=dataset.kind,
            columns=columns,
            texts=texts,
            rates_hz=rates,
            image_size=next(iter(sizes)) if len(sizes) == 1 else None,
            label_counts=label_counts,
            truth=_truth(dataset, columns, label_counts),
            label_column=dataset.label_column,
            tokenizer=tokenizer,
            tokens=tokens,
        )
    return found


def readable_image(content: bytes, where: str) -> Image.Image:
    """Returns an image of the data upright.

    Raises:
        ConfigError: it cannot be decoded.
    """
    try:
        return decode(content, Decode(), where)
    except RequestError as error:
        raise ConfigError(f"{error.message} Remove the file from the data, or replace it.") from error


def why_unknown(role: str, file: ModelFile, near: Surroundings, raw: Mapping[str, Array]) -> str:
    """Returns why a model is not recognised, as sentences.

    Args:
        role: of the model.
        file: of the model.
        near: properties of the data.
        raw: outputs of a trial run, by name.
    """
    data_kind = near.kind or "tensor"
    kinds: tuple[Kind, ...] = ("image", "audio")
    for kind in kinds:
        if kind != data_kind and start_of(file, Surroundings(kind)) is not None:
            return (
                f"The {role} model {file.name} takes {_DATA[kind]}, and the data hold {_DATA[data_kind]}. Name data of "
                f"this kind with --data, or another model with --{role}."
            )
    absent = [spec.name for spec in file.inputs if data_kind == "tensor" and spec.name not in near.columns]
    if absent and start_of(file, near) is None:
        return (
            f"The {role} model {file.name} takes {_listed(absent)}, and the data have no column of this name; they "
            f"have {_listed(near.columns)}. Name other data with --data, or rename the columns."
        )
    if data_kind == "image" and (boxes := _anchors(file.outputs)):
        return (
            f"The {role} model {file.name} gives {boxes} boxes and scores of anchors, as SSD does, but not of "
            "TensorFlow's anchors. Describe the anchors in a recipe for `firstline bundle create` (step 'anchors'), or "
            "export the model with decoding and suppression inside."
        )
    outputs = [Output.of(spec, raw.get(spec.name)) for spec in file.outputs]
    if percent := next((output.name for output in outputs if output.percentages), None):
        return (
            f"The output '{percent}' of the {role} model {file.name} gives percentages: a trial run sums to 100. "
            "Export it with probabilities from 0 to 1, or divide them by an ONNX graph (step 'graph') in a recipe for "
            "`firstline bundle create`."
        )
    if ends_in_sigmoid(file) and len(file.outputs) == 1 and near.truth.kind != "numbers":
        return (
            f"A sigmoid ends the {role} model {file.name}, so its labels do not exclude each other, and "
            "`firstline pair` takes classifiers whose labels do. Write a recipe with `independent_labels = true` for "
            "`firstline bundle create`, or export the model with a softmax if each input has one label."
        )
    takes, gives = (
        ", ".join(f"'{spec.name}' {spec.datatype} {list(spec.shape)}" for spec in specs[:4])
        for specs in (file.inputs, file.outputs)
    )
    advice = "Describe it in a recipe for `firstline bundle create`"
    if data_kind == "image":
        advice += ", or export it with its boxes decoded, its suppression inside, and an axis of rows first"
    return (
        f"The {role} model {file.name} is of no family that `firstline pair` knows for {_DATA[data_kind]} (inputs "
        f"{takes}; outputs {gives}). {advice}."
    )


def _anchors(outputs: Sequence[TensorSpec]) -> int:
    """Returns the number of boxes of a detector whose outputs are offsets of anchors, and scores; 0 of others."""
    shapes = sorted((spec.shape for spec in outputs), key=lambda shape: shape[-1:] != (4,))
    if len(shapes) != 2 or any(len(shape) != 3 for shape in shapes):
        return 0
    offsets, scores = shapes
    return max(offsets[1], 0) if offsets[2] == 4 != scores[2] and offsets[1] == scores[1] else 0


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:_SHOWN]) + more


def _rates(dataset: Dataset) -> Iterator[int]:
    """Yields the sample rate of each recording."""
    from firstline_core.processing.audio import check_header, read_header

    for sample, content in zip(dataset.samples, dataset.contents(), strict=True):
        where = dataset.place_of(sample)
        try:
            header = read_header(content, where)
            check_header(header, where)
        except RequestError as error:
            raise ConfigError(error.message) from error
        yield header.rate_hz


def _tokenizer(model: Path, file: ModelFile) -> tuple[Path, int]:
    """Returns the tokenizer's file near a model, and the number of tokens to which it cuts texts; 0 for none."""
    places = [folder / _TOKENIZER for folder in model.absolute().parents[:2]]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        names = ", ".join(f"'{spec.name}'" for spec in file.inputs)
        raise ConfigError(
            f"{file.name} takes numbers of tokens ({names}), and there is no {_TOKENIZER} of its tokenizer in "
            f"{places[0].parent}; put it there."
        )
    if "," in str(found):
        raise ConfigError(f"The path {found} has a comma, which separates steps; move the file to another folder.")
    try:
        content = json.loads(found.read_bytes()) if found.stat().st_size <= _LIMIT_BYTES else {}
        return found, int((content.get("truncation") or {}).get("max_length", 0))
    except (OSError, ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{found} is not the file of a tokenizer: {error}.") from error


def _is_text(dataset: Dataset, name: str) -> bool:
    """Returns whether most cells of a column are strings that are no numbers."""
    cells = list(_some(dataset, name))
    texts = [cell for cell in cells if isinstance(cell, str) and _row(cell) is None]
    return 2 * len(texts) > len(cells)


def _truth(dataset: Dataset, columns: Sequence[str], label_counts: Collection[int]) -> Truth:
    """Returns the kind of the labels."""
    if dataset.label_column not in columns:
        return Truth()
    cells = list(_some(dataset, dataset.label_column))
    if not cells:
        return Truth()
    rows = [_row(cell) for cell in cells]
    lengths = {len(row) if row is not None else 0 for row in rows}
    if lengths != {1}:
        return Truth("classes") if 0 in lengths else Truth("numbers", max(lengths))
    numbers = [row[0] for row in rows if row is not None]
    if any(number != round(number) for number in numbers):
        return Truth("numbers", 1)
    many = len(set(numbers)) > max(_FEW, _MOST_CLASSES * len(numbers))
    return Truth("numbers", 1) if many and max(numbers) >= max(label_counts, default=0) else Truth("classes")


def _row(cell: Any) -> list[float] | None:
    """Returns the numbers of a label, one or a list; None for text."""
    try:
        found = np.atleast_1d(np.asarray(json.loads(cell) if isinstance(cell, str) else cell, np.float64))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    return found.tolist() if found.ndim == 1 and np.isfinite(found).all() else None


def _some(dataset: Dataset, name: str) -> Iterator[Any]:
    """Yields the first cells of a column that are not empty."""
    if dataset.table is None:
        return
    values = dataset.table.column(name)
    cells = (values[sample.row] for sample in dataset.samples)
    for cell in islice(cells, _CELLS):
        value = cell.strip() if isinstance(cell, str) else cell
        if value is not None and (not isinstance(value, str) or value):
            yield value
