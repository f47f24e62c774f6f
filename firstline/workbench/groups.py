"""Which group each image of a data set belongs to: a CSV file with the columns `file` and `group`."""

from __future__ import annotations

import csv
from pathlib import Path

from firstline.workbench.dataset import Dataset
from firstline_core.errors import ConfigError
from firstline_core.telemetry.wording import counted


def read_groups(file: Path, dataset: Dataset) -> list[str]:
    """The group of each sample, in the data set's order.

    Args:
        file: names images as the data set's labels.csv does; images that it names besides do no harm.
        dataset: the data set to group.

    Raises:
        ConfigError: no such file, no such columns, a line that makes no sense, or an image without a group.
    """
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, strict=True)
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
