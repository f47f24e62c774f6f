"""Labelled images on disk: `DIR/labels.csv` with `DIR/images/` or `DIR/images.zip`.

The columns `file` and `label` are read, and `name` if it exists; others are ignored. `file` is the path below
`images/`, or a member of the archive; only named files are opened. `label` counts from 0 in the order of the bundle's
labels.

If labels are not needed, the column or labels.csv may be absent; without labels.csv all files are taken.
"""

from __future__ import annotations

import csv
import hashlib
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

from firstline.workbench.csv_files import open_csv
from firstline_core.errors import ConfigError
from firstline_core.storage.files import read_limited
from firstline_core.tasks.base import Task
from firstline_core.tasks.classification import Classification
from firstline_core.telemetry.wording import counted

_T = TypeVar("_T")

LABELS_NAME = "labels.csv"
UNLABELLED = -1
FILE_LIMIT_BYTES = 64 * 1024 * 1024
"""Largest image that is read; of an archive's member, before it is unpacked."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of labels.csv.

    Attributes:
        label: `UNLABELLED` if the CSV file has none.
        name: of the class; "" if the CSV file has none.
        line: in the CSV file; 0 without a CSV file.
    """

    file: str
    label: int
    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Dataset:
    """Samples in the order of the CSV file; images are read on demand."""

    folder: Path
    samples: tuple[Sample, ...]

    def __len__(self) -> int:
        return len(self.samples)

    def read(self) -> Iterator[tuple[bytes, int]]:
        """Yields the encoded images with their labels.

        Raises:
            ConfigError: an image is missing, unreadable or too large.
        """
        with _opened(self.folder) as images:
            for sample in self.samples:
                yield images.read(sample, self.folder / LABELS_NAME), sample.label

    def digest(self) -> str:
        """Returns the SHA-256 of every image's bytes and label, in order; file names do not count.

        Raises:
            ConfigError: an image is missing, unreadable or too large.
        """
        total = hashlib.sha256()
        for encoded, label in self.read():
            total.update(f"{hashlib.sha256(encoded).hexdigest()} {label}\n".encode())
        return total.hexdigest()

    def check_labels(self, labels: Sequence[str]) -> None:
        """Compares the labels with those of a bundle.

        Raises:
            ConfigError: a label is out of range, or the names have other positions than in the bundle, for example
                because a background class is missing.
        """
        where = self.folder / LABELS_NAME
        positions = {label: position for position, label in enumerate(labels)}
        for sample in self.samples:
            if sample.label >= len(labels):
                raise ConfigError(
                    f"{where}:{sample.line} has label {sample.label}, but the bundle's {len(labels)} labels are "
                    f"0 to {len(labels) - 1}."
                )
            position = positions.get(sample.name, sample.label)
            if position != sample.label and labels.count(sample.name) == 1:
                raise ConfigError(
                    f"{where}:{sample.line} calls '{sample.name}' label {sample.label}, but in the bundle it is label "
                    f"{position}; correct the bundle's labels or the label offset."
                )


def require_classifier(task: Task) -> None:
    """Refuses bundles of other tasks, because labelled images have one label each.

    Raises:
        ConfigError: the task is not classification.
    """
    if not isinstance(task, Classification):
        raise ConfigError(f"The bundle is of the task {task.kind}; only classifiers can be measured on data.")


def open_dataset(folder: Path, limit: int | None = None, *, labelled: bool = True) -> Dataset:
    """Reads `labels.csv`.

    Args:
        folder: see the module.
        limit: number of samples, spread evenly over the file, which is often sorted by class; None for all.
        labelled: whether labels are required.

    Raises:
        ConfigError: there is no such file, or a line is not valid.
    """
    file = folder / LABELS_NAME
    try:
        if not labelled and folder.is_dir() and not file.exists():
            with _opened(folder) as images:
                samples = tuple(Sample(name, UNLABELLED, "", 0) for name in _listed(images))
        else:
            with open_csv(file) as rows:
                samples = tuple(_samples(rows, file, labelled=labelled))
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}; a data folder has {LABELS_NAME} (columns file, label) and "
            "images/ or images.zip."
        ) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not a csv file in UTF-8: {error}.") from error
    if not samples:
        raise ConfigError(f"{file} names no images." if file.exists() else f"{folder} holds no images.")
    return Dataset(folder, tuple(spread(samples, limit)))


def read_images(place: Path, limit: int) -> Iterator[bytes]:
    """Returns encoded images, at most `limit` of them, spread evenly over their names.

    Args:
        place: a folder or a zip archive of images, or a data folder (see the module).
        limit: largest number of images.

    Raises:
        ConfigError: there is no image, or one cannot be read or is too large.
    """
    is_data = (place / "images").is_dir() or (place / "images.zip").is_file()
    with _opened(place) if is_data else _opened_at(place) as images:
        names = _listed(images)
        if not names:
            raise ConfigError(f"{place} holds no images.")
        for name in spread(names, limit):
            yield images.read(Sample(name, UNLABELLED, "", 0), place / LABELS_NAME)


def read_some(dataset: Dataset, limit: int) -> Iterator[bytes]:
    """Returns at most `limit` of the encoded images, spread evenly.

    Raises:
        ConfigError: an image is missing, unreadable or too large.
    """
    some = replace(dataset, samples=tuple(spread(dataset.samples, limit)))
    return (encoded for encoded, _ in some.read())


def spread(all_of_them: Sequence[_T], limit: int | None) -> Sequence[_T]:
    """Returns at most `limit` samples, spread evenly; all without a limit."""
    if limit is None or limit >= len(all_of_them):
        return all_of_them
    return [all_of_them[position * len(all_of_them) // limit] for position in range(limit)]


def _listed(images: _Images) -> list[str]:
    """Returns all images, as labels.csv would name them; names that start with a dot are ignored."""
    if images.archive is not None:
        paths = [PurePosixPath(name) for name in images.archive.namelist() if not name.endswith("/")]
    else:
        paths = [
            PurePosixPath(*path.relative_to(images.folder).parts) for path in images.folder.rglob("*") if path.is_file()
        ]
    return sorted(str(path) for path in paths if not any(part.startswith(".") for part in path.parts))


def _samples(rows: csv.DictReader[str], file: Path, *, labelled: bool) -> Iterator[Sample]:
    missing = ({"file", "label"} if labelled else {"file"}) - set(rows.fieldnames or ())
    if missing:
        raise ConfigError(f"{file} has no column {' and '.join(sorted(missing))}; its first line names the columns.")
    for row in rows:
        # A short row gives None.
        name, label = row["file"] or "", (row.get("label") or "").strip()
        path = PurePosixPath(name)
        if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
            raise ConfigError(f"{file}:{rows.line_num} names the file '{name}'; paths are relative and stay inside.")
        if "label" in row and not (label.isascii() and label.isdigit()):
            raise ConfigError(f"{file}:{rows.line_num} has label '{label}'; a label is a number from 0.")
        yield Sample(name, int(label) if "label" in row else UNLABELLED, (row.get("name") or "").strip(), rows.line_num)


@dataclass(frozen=True, slots=True)
class _Images:
    """The images in a folder or an archive."""

    folder: Path
    archive: zipfile.ZipFile | None

    def read(self, sample: Sample, csv_file: Path) -> bytes:
        named = f"{csv_file}:{sample.line} names" if sample.line else f"{csv_file.parent} holds"
        where = f"{named} '{sample.file}', which"
        try:
            if self.archive is not None:
                member = self.archive.getinfo(sample.file)
                if member.file_size > FILE_LIMIT_BYTES:
                    raise ConfigError(f"{where} has {member.file_size} bytes; at most {FILE_LIMIT_BYTES} are read.")
                return self.archive.read(member)
            return read_limited(self.folder / sample.file, FILE_LIMIT_BYTES)
        except (KeyError, FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise ConfigError(f"{where} is not in {self.folder}.") from error
        except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
            raise ConfigError(f"{where} cannot be read from {self.folder}: {error}.") from error


@contextmanager
def _opened(folder: Path) -> Iterator[_Images]:
    images, archive = folder / "images", folder / "images.zip"
    if not images.is_dir() and not archive.exists():
        raise ConfigError(f"{folder} has neither images/ nor images.zip.")
    with _opened_at(images if images.is_dir() else archive) as opened:
        yield opened


@contextmanager
def _opened_at(place: Path) -> Iterator[_Images]:
    """Opens a folder or an archive of images."""
    if place.is_dir():
        yield _Images(place, None)
        return
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(zipfile.ZipFile(place))
        except (OSError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{place} cannot be read as a zip archive: {error}.") from error
        yield _Images(place, opened)


def read_groups(file: Path, dataset: Dataset) -> list[str]:
    """Returns the group of each sample, in the data set's order.

    Args:
        file: names images as the data set's labels.csv does; further images are ignored.
        dataset: the data set to group.

    Raises:
        ConfigError: the file or a column is missing, a line is not valid, or an image has no group.
    """
    try:
        with open_csv(file) as reader:
            missing = {"file", "group"} - set(reader.fieldnames or ())
            if missing:
                raise ConfigError(f"{file}:1 has no column {' and '.join(sorted(missing))}; it needs file and group.")
            group_of: dict[str, str] = {}
            for row in reader:
                name, group = (row["file"] or "").strip(), (row["group"] or "").strip()
                if not name or not group:
                    raise ConfigError(f"{file}:{reader.line_num} needs both a file and a group.")
                if group_of.setdefault(name, group) != group:
                    raise ConfigError(f"{file}:{reader.line_num} puts '{name}' into a second group, '{group}'.")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not a CSV file in UTF-8: {error}.") from error
    absent = [sample.file for sample in dataset.samples if sample.file not in group_of]
    if absent:
        raise ConfigError(
            f"{file} names no group for '{absent[0]}' and {counted(len(absent) - 1, 'other image')} of "
            f"{dataset.folder}."
        )
    return [group_of[sample.file] for sample in dataset.samples]
