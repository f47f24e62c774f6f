"""Recognises the kind of a data set, and reads its samples, labels and clusters.

A data set is

- a folder of images or recordings, in it or in its `images/`, `images.zip`, `audio/` or `audio.zip`, with or without
  `labels.csv`, whose column `file` names them, or with a folder for each label; boxes may be next to it, as COCO JSON
  or in `labels/STEM.txt`, and the classes of pixels in `masks/STEM.png`,
- videos, of which one frame in N is taken,
- or a table: CSV, JSON lines, NPZ or Parquet, whose columns have the names of the bundle's inputs.

Only what a bundle declares is read.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from firstline.workbench.data import tables, videos
from firstline.workbench.data.boxes import CocoBoxes, class_numbers, joined, read_yolo_boxes, yolo_file
from firstline.workbench.data.files import FileStore, Where, is_inside
from firstline.workbench.data.masks import mask_file, read_mask
from firstline.workbench.data.sample import Sample
from firstline.workbench.data.tables import Table, one_column, read_csv, read_table, row_of
from firstline.workbench.data.videos import VideoStore
from firstline_core.errors import ConfigError, RequestError
from firstline_core.processing.boxes import BOXES
from firstline_core.processing.image_header import read_header
from firstline_core.processing.steps import InputSpec
from firstline_core.storage.files import naming
from firstline_core.storage.structs import fault_of
from firstline_core.tasks.anomaly import SEQUENCE, TIME
from firstline_core.tasks.arrays import LABEL, UNLABELLED
from firstline_core.tasks.base import Task
from firstline_core.tasks.embedding import Embedding
from firstline_core.tasks.regression import Regression
from firstline_core.telemetry.wording import counted
from firstline_core.types import DATATYPES, Array, Arrays, Tensor, TensorSpec, object_array

_T = TypeVar("_T")

LABELS_NAME = "labels.csv"
EVERY = 30
"""Frames of a video from one sample to the next: about a second."""

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
AUDIO = (".wav", ".flac", ".ogg")
MASK = "mask"
_FLOATS = ("FP16", "FP32", "FP64")
_MOST_DIGITS = 19
_WHOLE_FLOAT = re.compile(r"(-1|[0-9]+)\.0*", re.ASCII)

_STORES = ("images", "images.zip", "audio", "audio.zip")
_COCO_NAMES = ("annotations.json", "*.coco.json", "instances*.json")
_NEXT_TO_IMAGES = ("masks/", "labels/", "annotations/")
_EXPECTED = (
    f"name a folder with {LABELS_NAME} (columns file, label) and images/ or audio/, a folder or zip archive of images "
    "or recordings, a video, a COCO file, or a table (.csv, .jsonl, .npz, .parquet)"
)


class Media(Protocol):
    """Images, recordings or frames: encoded files."""

    def read(self, samples: Sequence[Sample], where: Where) -> Iterator[bytes]:
        """Yields the content of each sample.

        Raises:
            ConfigError: a file is missing, unreadable or too large.
        """


@dataclass(frozen=True, slots=True)
class Dataset:
    """Samples in the order of the file that names them, or of their names. Content is read on demand.

    Attributes:
        path: the folder or file.
        samples: of which there is at least one.
        media: images, recordings or frames, one for each sample; None if the table has all inputs.
        table: rows by `Sample.row`; None if there is no table.
        coco: labelled boxes, if they are in COCO's form.
        label_column: the table's column with the label.
    """

    path: Path
    samples: tuple[Sample, ...]
    media: Media | None = None
    table: Table | None = None
    coco: CocoBoxes | None = None
    label_column: str = LABEL

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def clusters(self) -> tuple[str, ...]:
        """Returns the cluster of each sample; () if none are known."""
        clusters = tuple(sample.cluster for sample in self.samples)
        return clusters if any(clusters) else ()

    @property
    def kind(self) -> Literal["image", "audio", "tensor"]:
        """Returns what the samples are: images or frames, recordings, or rows of a table."""
        if self.media is None:
            return "tensor"
        return "audio" if Path(self.samples[0].file).suffix.lower() in AUDIO else "image"

    def some(self, limit: int | None) -> Dataset:
        """Returns at most `limit` of the samples, spread evenly; all without a limit."""
        return replace(self, samples=tuple(spread(self.samples, limit)))

    def contents(self) -> Iterator[bytes]:
        """Yields the encoded image, recording or frame of each sample.

        Raises:
            ConfigError: the data is a table, or a file is missing, unreadable or too large.
        """
        if self.media is None:
            raise ConfigError(f"{self.path} is a table, which holds no images and no recordings.")
        return self.media.read(self.samples, self.entry_of)

    def rows(self, inputs: Sequence[InputSpec]) -> Iterator[tuple[Sample, Arrays]]:
        """Yields each sample with a bundle's inputs by name, as arrays of one row.

        Args:
            inputs: of the bundle. The table's column of the name is read; for encoded images and recordings the file.

        Raises:
            ConfigError: an input has neither, a file is missing, unreadable or too large, or a value does not fit.
        """
        columns = {spec.name: self._column(spec.name) for spec in inputs if self._has(spec.name)}
        from_files = [spec for spec in inputs if spec.name not in columns]
        for spec in from_files:
            if spec.datatype != "BYTES" or self.media is None:
                raise ConfigError(self._lacks(spec))
        contents = self.contents() if from_files else (b"" for _ in self.samples)
        for sample, content in zip(self.samples, contents, strict=True):
            row = {spec.name: object_array([content]) for spec in from_files}
            for spec in inputs:
                if (values := columns.get(spec.name)) is not None:
                    where = f"{self.place_of(sample)}, column '{spec.name}',"
                    row[spec.name] = row_of(values[sample.row], spec.datatype, spec.shape[1:], where)[None]
            yield sample, row

    def truth(self, task: Task, inputs: Sequence[InputSpec] = ()) -> Arrays | None:
        """Returns the labels of all samples in the form of `task.truth`; None if the data has none.

        An empty cell is a row without a label, see `labelled`.

        Args:
            task: of the bundle.
            inputs: of the bundle. Their columns are left out, except the label's column.

        Raises:
            ConfigError: labels that are not valid for the task, or cannot be read.
        """
        first = task.truth[0]
        if first.name == BOXES:
            return self._boxes(task)
        if first.name == MASK:
            return self._masks(first, task)
        if first.name == LABEL and first.datatype == "INT64":
            labels = self._labels(task, inputs) if task.labels else self._classes()
            if labels is None or (labels == UNLABELLED).all():
                return None
            return {LABEL: labels, **self._order({spec.name for spec in task.truth})}
        if first.name == LABEL and first.datatype == "BOOL":
            return self._label_sets(task.labels)
        found = {
            spec.name: self._truth_column(spec, task, inputs, is_label=position == 0)
            for position, spec in enumerate(task.truth)
        }
        arrays = {name: array for name, array in found.items() if array is not None}
        return arrays if len(arrays) == len(found) else None

    def required_truth(self, task: Task, inputs: Sequence[InputSpec] = ()) -> Arrays:
        """Returns `truth`.

        Raises:
            ConfigError: there is none, or it is not valid.
        """
        found = self.truth(task, inputs)
        if found is None:
            raise ConfigError(self._without_truth(task))
        return found

    def row_digests(self, inputs: Sequence[InputSpec]) -> Iterator[str]:
        """Yields the SHA-256 of each sample's inputs, as hexadecimal digits.

        Raises:
            ConfigError: see `rows`.
        """
        for _, row in self.rows(inputs):
            total = hashlib.sha256()
            for name, array in sorted(row.items()):
                datatype = Tensor(name, array).datatype
                total.update(f"{name} {datatype} {list(array.shape)} {_sha256(array)}\n".encode())
            yield total.hexdigest()

    def digest(self, inputs: Sequence[InputSpec], truth: Arrays | None = None) -> str:
        """Returns the SHA-256 of every sample's inputs and labels, in order; file names do not count.

        Args:
            inputs: of the bundle.
            truth: see `truth`.

        Raises:
            ConfigError: see `rows`.
        """
        total = hashlib.sha256()
        for position, digest in enumerate(self.row_digests(inputs)):
            labels = [
                f"{name} {_sha256(array[position : position + 1])}" for name, array in sorted((truth or {}).items())
            ]
            total.update(" ".join((digest, *labels, "\n")).encode())
        return total.hexdigest()

    def place_of(self, sample: Sample) -> str:
        """Returns the file and line, or the name of a sample, for messages."""
        if isinstance(self.media, FileStore):
            return str(self.media.place / sample.file)
        if self.table is None or self.media is not None:
            return f"'{sample.file}' of {self.path}"
        return self.table.where(sample.row)

    def entry_of(self, sample: Sample) -> str:
        """Returns the entry that names a sample, for messages: "labels.csv:3 names 'a.png'"."""
        if self.table is not None:
            return f"{self.table.where(sample.row)} names '{sample.file}'"
        source = self.coco.path if self.coco is not None else self.path
        return f"{source} {'names' if self.coco is not None else 'holds'} '{sample.file}'"

    def _has(self, column: str) -> bool:
        return self.table is not None and column in self.table.columns

    def _column(self, name: str) -> Sequence[Any]:
        return self.table.column(name) if self.table is not None else ()

    def _cells(self, name: str) -> list[Any]:
        """Returns the cell of each sample in a column."""
        values = self._column(name)
        return [values[sample.row] for sample in self.samples]

    def _texts(self, name: str) -> list[str]:
        """Returns the text of each sample in a column, without spaces around it; "" for an empty cell."""
        return list(map(_text, self._cells(name)))

    def _lacks(self, spec: InputSpec) -> str:
        if self.table is None or self.media is not None:
            return (
                f"The bundle's input '{spec.name}' is {spec.datatype}, and {self.path} holds encoded files; give data "
                "with a column of that name, or give the bundle a preprocessing that starts with decode."
            )
        if fault := one_column(self.table.columns):
            return f"{self.table.path}{fault}"
        has = _listed(self.table.columns)
        lacks = f"has no column '{spec.name}', which is an input of the bundle"
        return f"{self.table.path} {lacks}; rename the column that holds it (there are {has})."

    def _labels(self, task: Task, inputs: Sequence[InputSpec]) -> Array | None:
        """Returns the label of each sample; `UNLABELLED` where the data says -1 or nothing."""
        labels = task.labels
        unique = () if isinstance(task, Embedding) else labels  # rows of a gallery with one label are one class
        if self.table is None:
            return self._folder_labels(labels, unique)
        has_labels, has_names = self._has(self.label_column), self._has_truth("name", inputs)
        if not (has_labels or has_names):
            return None
        cells = self._texts(self.label_column) if has_labels else [""] * len(self)
        names = self._texts("name") if has_names else [""] * len(self)
        positions = {label: position for position, label in enumerate(labels)}
        found = np.empty(len(self), np.int64)
        for position, (sample, cell, name) in enumerate(zip(self.samples, cells, names, strict=True)):
            where = self.table.where(sample.row)
            if not has_labels:
                if name and name not in positions:
                    raise ConfigError(f"{where} names the class '{name}', which is not one of the bundle's labels.")
                _refuse_shared(name, unique, where)
                found[position] = positions[name] if name else UNLABELLED
                continue
            _refuse_shared(cell, unique, where)
            advice = "" if name in positions else "add a column 'name' with the names"
            found[position] = label = _label_of(cell, positions, len(labels), where, advice)
            expected = positions.get(name, label)
            if label not in (UNLABELLED, expected) and list(labels).count(name) == 1:
                raise ConfigError(
                    f"{where} calls '{name}' label {label}, but in the bundle it is label {expected}; correct the "
                    "bundle's labels or the label offset."
                )
        return found

    def _classes(self) -> Array | None:
        """Returns a number for each different label of the data, for tasks without labels of their own."""
        if not self._has(self.label_column):
            return None
        cells = self._texts(self.label_column)
        numbers = {cell: number for number, cell in enumerate(dict.fromkeys(cells))}
        numbers |= dict.fromkeys(("", "-1", "-1.0", "nan"), UNLABELLED)
        return np.array([numbers[cell] for cell in cells], np.int64)

    def _folder_labels(self, labels: Sequence[str], unique: Sequence[str]) -> Array | None:
        """Returns the labels of files that are all in folders named by labels, otherwise None.

        Args:
            labels: of the task.
            unique: those that may name a file only if they occur once.
        """
        folders = [PurePosixPath(sample.file).parent.name for sample in self.samples]
        if any(folder not in labels or list(unique).count(folder) > 1 for folder in set(folders)):
            return None
        return np.array([list(labels).index(folder) for folder in folders], np.int64)

    def _label_sets(self, labels: Sequence[str]) -> Arrays | None:
        """Returns which labels each sample has, BOOL (n, labels): numbers or names, separated by semicolons."""
        if self.table is None or not self._has(self.label_column):
            return None
        positions = {label: position for position, label in enumerate(labels)}
        found = np.zeros((len(self), len(labels)), np.bool_)
        for position, (sample, cell) in enumerate(zip(self.samples, self._texts(self.label_column), strict=True)):
            for part in filter(None, map(str.strip, cell.split(";"))):
                where = self.table.where(sample.row)
                _refuse_shared(part, labels, where)
                label = _label_of(part, positions, len(labels), where, "rename the bundle's label")
                if label != UNLABELLED:
                    found[position, label] = True
        return {LABEL: found}

    def _boxes(self, task: Task) -> Arrays | None:
        if self.coco is not None:
            sized = zip(self.samples, self._sizes(), strict=True)
            return joined(self.coco.read(sample.file, size, task.labels) for sample, size in sized)
        folder = self.path / "labels"
        if not isinstance(self.media, FileStore) or not any(
            yolo_file(folder, sample.file).is_file() for sample in self.samples
        ):
            return None
        return joined(
            read_yolo_boxes(yolo_file(folder, sample.file), size, len(task.labels))
            for sample, size in zip(self.samples, self._sizes(), strict=True)
        )

    def _masks(self, spec: TensorSpec, task: Task) -> Arrays | None:
        folder = self.path / "masks"
        if not folder.is_dir():
            return None
        height, width = spec.shape[1:3]
        masks = [
            read_mask(mask_file(folder, sample.file), image, (width, height), len(task.labels))
            for sample, image in zip(self.samples, self._sizes(), strict=True)
        ]
        return {MASK: np.stack(masks)}

    def _order(self, names: Collection[str]) -> dict[str, Array]:
        """Returns those of the names that the data has: the seconds and the number of the cluster of each sample."""
        found: dict[str, Array] = {}
        if TIME in names and self._has(TIME):
            cells = zip(self.samples, self._cells(TIME), strict=True)
            found[TIME] = np.array([_seconds(cell, self.place_of(sample)) for sample, cell in cells])
        if SEQUENCE in names and self.clusters:
            found[SEQUENCE] = np.unique(np.array(self.clusters), return_inverse=True)[1].astype(np.int64)
        return found

    def _sizes(self) -> Iterator[tuple[int, int]]:
        """Yields width and height of each sample's upright image, in pixels."""
        for sample, content in zip(self.samples, self.contents(), strict=True):
            try:
                yield read_header(content, self.place_of(sample)).upright_size
            except RequestError as error:
                raise ConfigError(error.message) from error

    def _has_truth(self, column: str, inputs: Sequence[InputSpec]) -> bool:
        return self._has(column) and column not in {spec.name for spec in inputs}

    def _truth_column(
        self, spec: TensorSpec, task: Task, inputs: Sequence[InputSpec], *, is_label: bool
    ) -> Array | None:
        """Returns the values of a truth: the label's column, the column of its name, or a column of each value."""
        name = self.label_column if is_label and self._has(self.label_column) else spec.name
        values: Sequence[Any]
        if self._has(name) if name == self.label_column else self._has_truth(name, inputs):
            values = self._cells(name)
        elif isinstance(task, Regression) and all(self._has_truth(column, inputs) for column in task.names):
            name, values = task.names[0], list(zip(*map(self._numbers, task.names), strict=True))
        else:
            return None
        may_be_absent = spec.datatype in _FLOATS
        rows = [
            None
            if may_be_absent and is_empty(value)
            else row_of(value, spec.datatype, spec.shape[1:], f"{self.place_of(sample)}, column '{name}',")
            for sample, value in zip(self.samples, values, strict=True)
        ]
        shapes = {row.shape for row in rows if row is not None}
        if len(shapes) > 1:
            raise ConfigError(f"{self.path}, column '{name}', has rows of different shapes: {sorted(shapes)[:3]}.")
        if not shapes:
            return None
        absent = np.full(shapes.pop(), np.nan)
        return np.stack([absent if row is None else row for row in rows]).astype(DATATYPES[spec.datatype])

    def _numbers(self, name: str) -> list[Any]:
        """Returns the number of each sample in a column; NaN for an empty cell."""
        return [
            np.nan if is_empty(cell) else row_of(cell, "FP64", (), f"{self.place_of(sample)}, column '{name}',")[()]
            for sample, cell in zip(self.samples, self._cells(name), strict=True)
        ]

    def _without_truth(self, task: Task) -> str:
        names = {spec.name for spec in task.truth}
        if BOXES in names:
            return f"{self.path} has no labelled boxes; give COCO JSON (annotations.json) or labels/STEM.txt."
        if MASK in names:
            return f"{self.path} has no folder masks/ with a PNG file for each image."
        if self._has(self.label_column) and self.table is not None:
            return f"{self.table.path} has no label in any row of the column {self.label_column}."
        if self.table is not None:
            first = "; its first line names the columns" if self.table.path.suffix == ".csv" else ""
            return f"{self.table.path} has no column {self.label_column}{first}."
        if self.path.is_file():
            return f"{self.path} has no labels; name a folder with it and {LABELS_NAME} (columns file, label)."
        return f"{self.path / LABELS_NAME} cannot be read: there is no such file; {_EXPECTED}."


def _sha256(array: Array) -> str:
    if not array.dtype.hasobject:
        return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    parts = [hashlib.sha256(element).hexdigest() for element in array.ravel().tolist()]
    return parts[0] if len(parts) == 1 else hashlib.sha256("".join(parts).encode()).hexdigest()


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in columns[:10]) or "none"


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def is_empty(cell: Any) -> bool:
    """Returns whether a cell of a table has no value."""
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _seconds(cell: Any, where: str) -> float:
    """Returns a time in seconds, from a number or from a date and time in ISO 8601."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        pass
    try:
        moment = datetime.fromisoformat(_text(cell))
    except ValueError:
        raise ConfigError(f"{where} has the time '{cell}'; give seconds, or a date and time in ISO 8601.") from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _refuse_shared(name: str, labels: Sequence[str], where: str) -> None:
    """Raises ConfigError if several labels have a name."""
    if name in labels and (count := list(labels).count(name)) > 1:
        raise ConfigError(f"{where} names the class '{name}', and {count} labels have this name; give its number.")


def _label_of(cell: str, positions: Mapping[str, int], count: int, where: str, advice: str) -> int:
    """Returns the number of a label that is given as a number, also with the decimals of a float, or by its name.

    Args:
        cell: with the label.
        positions: of the labels, by name.
        count: of the labels.
        where: place of the cell, for messages.
        advice: what to do about a number that is the name of another label; "" if it is certainly a number.

    Raises:
        ConfigError: there is no such label, or it is the name of one label and the number of another.
    """
    if cell not in positions and _WHOLE_FLOAT.fullmatch(cell):
        cell = cell.partition(".")[0]
    if cell in ("", str(UNLABELLED)) or (cell == "nan" and cell not in positions):
        return UNLABELLED
    if cell.isascii() and cell.isdigit() and len(cell) <= _MOST_DIGITS:
        if advice and positions.get(cell, int(cell)) != int(cell):
            raise ConfigError(
                f"{where} has label '{cell}', which is the name of label {positions[cell]} and the number of another; "
                f"{advice}."
            )
        if int(cell) >= count:
            raise ConfigError(
                f"{where} has label {int(cell)}, but the bundle's {count} labels are 0 to {count - 1}; correct the "
                "line."
            )
        return int(cell)
    if cell not in positions:
        some = ", ".join(list(positions)[:10]) + ", ..." * (len(positions) > 10)
        raise ConfigError(
            f"{where} has label '{cell}'; use a label of the bundle ({some}), or its number, {class_numbers(count)}."
        )
    return positions[cell]


def open_dataset(
    path: Path, limit: int | None = None, *, label: str = LABEL, every: int = EVERY, inputs: Collection[str] = ()
) -> Dataset:
    """Recognises the kind of a data set, and lists its samples.

    Args:
        path: a folder or a file, see the module.
        limit: number of samples, spread evenly over the file, which is often sorted by class; None for all.
        label: name of the table's column with the label.
        every: of videos, frames from one sample to the next.
        inputs: names of the columns that are inputs; () if they are not known. They say how many rows an NPZ file has.

    Raises:
        ConfigError: there is no data set, it cannot be read, or it lacks a column of labels that is not the default.
    """
    named = {label, "group", *inputs} if inputs else ()
    try:
        found = _folder(path, every, named) if path.is_dir() else _file(path, every, named)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise ConfigError(f"{path} cannot be read: {fault_of(error)}; {_EXPECTED}.") from error
    if not found.samples:
        what = "rows" if found.media is None else "images"
        place = f"{path} holds" if found.table is None else f"{found.table.path} has"
        raise ConfigError(f"{place} no {what}; add at least one.")
    if label not in (LABEL, *(found.table.columns if found.table is not None else ())):
        raise ConfigError(
            f"{path} has no table, and so no column '{label}' of labels; leave --label-column out."
            if found.table is None
            else f"{found.table.path} has no column '{label}' of labels; it has "
            f"{_listed(found.table.columns)}: name one with --label-column."
        )
    return replace(found.some(limit), label_column=label)


def _file(path: Path, every: int, named: Collection[str]) -> Dataset:
    suffix = path.suffix.lower()
    if not path.is_file():
        with naming(path):
            path.stat()
        raise ConfigError(f"{path} is neither a folder nor a file with data: {_EXPECTED}.")
    if suffix in tables.SUFFIXES:
        return _tabular(path, read_table(path, named))
    if suffix in videos.SUFFIXES:
        store = VideoStore(path)
        return Dataset(path, tuple(store.samples([path.name], every)), store)
    if suffix == ".json":
        return _coco(path, path.parent, path)
    if zipfile.is_zipfile(path):
        store_of_files = FileStore(path)
        return Dataset(path, _named(store_of_files.names()), store_of_files)
    if suffix in (*IMAGES, *AUDIO):
        return Dataset(path, (Sample(path.name),), FileStore(path.parent))
    if suffix == ".zip":
        raise ConfigError(f"{path} is not a zip archive, or it is damaged; make it again.")
    raise ConfigError(f"{path} is not a data set; {_EXPECTED}.")


def _folder(path: Path, every: int, named: Collection[str]) -> Dataset:
    place = next((path / name for name in _STORES if (path / name).exists()), None)
    labels = path / LABELS_NAME
    if labels.exists():
        return _with_labels(path, labels, place)
    coco = sorted(
        {file for folder in (path, path / "annotations") for name in _COCO_NAMES for file in folder.glob(name)}
    )
    if len(coco) > 1:
        raise ConfigError(f"{path} has several files of boxes: {', '.join(map(str, coco[:5]))}; name one of them.")
    if coco:
        return _coco(path, path, coco[0])
    if place is not None:
        store = FileStore(place)
        return Dataset(path, _named(store.names()), store)
    return _loose(path, every, named)


def _with_labels(path: Path, labels: Path, place: Path | None) -> Dataset:
    """Returns the samples of labels.csv: of files, or a table if it names no files and there are none."""
    table = read_csv(labels)
    if "file" not in table.columns:
        if place is None and table.columns:
            return _tabular(path, table)
        if fault := one_column(table.columns):
            raise ConfigError(f"{labels}{fault}")
        fault = "has no column 'file'" if table.columns else "is empty"
        raise ConfigError(f"{labels} {fault}; its first line names the columns, such as file,label.")
    groups = table.column("group") if "group" in table.columns else [""] * len(table)
    samples = []
    for row, (name, group) in enumerate(zip(table.column("file"), groups, strict=True)):
        file = name or ""  # a short row gives None
        if not is_inside(file):
            raise ConfigError(
                f"{table.where(row)} names '{file}', which is outside of the data; copy the file into it, and write "
                "its path there."
            )
        samples.append(Sample(file, table.line(row), (group or "").strip(), row))
    return Dataset(path, tuple(samples), _Absent(path) if place is None else FileStore(place), table)


class _Absent(FileStore):
    """Files that are not there, although labels.csv names them: labels can be read without them."""

    def read(self, samples: Sequence[Sample], where: Where) -> Iterator[bytes]:
        raise ConfigError(f"{self.place} has neither images/ nor images.zip, and neither audio/ nor audio.zip.")


def _tabular(path: Path, table: Table) -> Dataset:
    groups = table.column("group") if "group" in table.columns else None
    samples = (
        Sample(f"row {row + 1}", table.line(row), "" if groups is None else _text(groups[row]), row)
        for row in range(len(table))
    )
    return Dataset(path, tuple(samples), table=table)


def _coco(path: Path, folder: Path, file: Path) -> Dataset:
    coco = CocoBoxes(file)
    above = folder.parent if folder.name == "annotations" else folder
    places = (above / "images", above / "images.zip")
    place = next((place for place in places if place.exists()), above)
    return Dataset(path, _named(coco.files), FileStore(place), coco=coco)


def _loose(path: Path, every: int, named: Collection[str]) -> Dataset:
    """Returns the samples of a folder that holds files of one kind, and nothing that names them."""
    suffixes = {"images": IMAGES, "recordings": AUDIO, "videos": videos.SUFFIXES, "tables": tables.SUFFIXES}
    names = [name for name in FileStore(path).names() if not name.startswith(_NEXT_TO_IMAGES)]
    kinds = {kind: [name for name in names if name.lower().endswith(suffix)] for kind, suffix in suffixes.items()}
    found = [kind for kind, some in kinds.items() if some and kind != "tables"]
    if len(found) > 1:
        raise ConfigError(f"{path} holds {' and '.join(found)}; give a folder of one kind.")
    if not found:
        if (path / "masks").is_dir():
            raise ConfigError(f"{path} has masks/, and no images were found next to it; {_EXPECTED}.")
        if len(kinds["tables"]) == 1:
            return _tabular(path, read_table(path / kinds["tables"][0], named))
        raise ConfigError(f"{path} has no images, recordings, videos or table; {_EXPECTED}.")
    chosen = kinds[found[0]]
    if found == ["videos"]:
        store = VideoStore(path)
        return Dataset(path, tuple(store.samples(chosen, every)), store)
    return Dataset(path, _named(chosen), FileStore(path))


def _named(names: Sequence[str]) -> tuple[Sample, ...]:
    return tuple(Sample(name, row=row) for row, name in enumerate(names))


def spread(all_of_them: Sequence[_T], limit: int | None) -> Sequence[_T]:
    """Returns at most `limit` samples, spread evenly; all without a limit."""
    if limit is None or limit >= len(all_of_them):
        return all_of_them
    return [all_of_them[position * len(all_of_them) // limit] for position in range(limit)]


def read_groups(file: Path, dataset: Dataset) -> list[str]:
    """Returns the group of each sample, in the data set's order.

    Args:
        file: names images as the data set's labels.csv does; further images are ignored.
        dataset: the data set to group.

    Raises:
        ConfigError: the file or a column is missing, a line is not valid, or an image has no group.
    """
    table = read_csv(file)
    missing = {"file", "group"} - set(table.columns)
    if missing:
        raise ConfigError(f"{file}:1 has no column {_listed(sorted(missing))}; line 1 names the columns: file,group.")
    group_of: dict[str, str] = {}
    for row, cells in enumerate(zip(table.column("file"), table.column("group"), strict=True)):
        name, group = map(_text, cells)
        if not name or not group:
            raise ConfigError(f"{table.where(row)} needs both a file and a group.")
        if group_of.setdefault(name, group) != group:
            raise ConfigError(f"{table.where(row)} puts '{name}' into a second group, '{group}'.")
    absent = [sample.file for sample in dataset.samples if sample.file not in group_of]
    if absent:
        raise ConfigError(
            f"{file} names no group for '{absent[0]}' and {counted(len(absent) - 1, 'other image')} of "
            f"{dataset.path}; add them."
        )
    return [group_of[sample.file] for sample in dataset.samples]
