"""Opens the data of a pair: finds the column of the labels, and cuts series of numbers into windows for forecasts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.data.dataset import Dataset, is_empty
from firstline.workbench.data.tables import Table, read_csv
from firstline.workbench.model_file import ModelFile
from firstline_core.errors import ConfigError
from firstline_core.storage.files import naming
from firstline_core.types import TensorSpec

WINDOWS = "windows.npz"
"""Table of windows below the output folder."""

_LEAST_WINDOW = 8
_MOST_ROWS = 20_000
_TIMES = ("time", "timestamp", "date", "datetime", "ds")


def open_data(
    path: Path,
    open_it: Callable[[Path], Dataset],
    files: Mapping[str, ModelFile],
    *,
    lists: Collection[Sequence[str]],
    out: Path,
    show: Callable[[str], None],
) -> Dataset:
    """Opens a data set.

    Args:
        path: of the data.
        open_it: opens a data set.
        files: of the models, by role.
        lists: known lists of labels, among whose names a column may be recognised as the label.
        out: folder for windows that are cut from series.
        show: receives what was assumed.

    Raises:
        ConfigError: there is no data set, or it cannot be read.
    """
    if (size := _window(files)) and (series := _series(path, {spec.name for spec in _inputs(files)})):
        table = _write_windows(series, size, {spec.name for spec in _inputs(files)}, out / WINDOWS)
        show(f"data: windows of {size} numbers and the next one, from {len(series)} series: {table}.")
        return open_it(table)
    dataset = open_it(path)
    column = _label_column(dataset, {spec.name for spec in _inputs(files)}, lists)
    if column is None:
        return dataset
    show(f"data: the column '{column}' holds the labels, because all of its values are among them.")
    return replace(dataset, label_column=column)


def _inputs(files: Mapping[str, ModelFile]) -> list[TensorSpec]:
    return [spec for file in files.values() for spec in file.inputs]


def _label_column(dataset: Dataset, inputs: Collection[str], lists: Collection[Sequence[str]]) -> str | None:
    """Returns the only column whose values are all labels; None if the data has a column of labels, or none is such."""
    table = dataset.table
    if table is None or dataset.label_column in table.columns:
        return None
    others = [name for name in table.columns if name not in inputs and name not in ("file", "group", "name")]
    values = {name: {str(cell) for cell in table.column(name) if not is_empty(cell)} for name in others}
    found = [name for name, cells in values.items() if cells and any(cells <= set(labels) for labels in lists)]
    return found[0] if len(found) == 1 else None


def _window(files: Mapping[str, ModelFile]) -> int:
    """Returns the length of the windows that all models take; 0 if they are no models of windows."""
    inputs = _inputs(files)
    if len(inputs) != len(files):
        return 0
    sizes = {spec.shape[1] if len(spec.shape) == 2 and spec.datatype in ("FP32", "FP64") else 0 for spec in inputs}
    size = sizes.pop()
    return size if not sizes and size >= _LEAST_WINDOW else 0


def _series(path: Path, inputs: Collection[str]) -> dict[str, NDArray[np.float64]]:
    """Returns the series of a CSV file or of a folder of them: tables with one column of numbers besides the time."""
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path] if path.suffix.lower() == ".csv" else []
    found: dict[str, NDArray[np.float64]] = {}
    for file in files:
        table = read_csv(file)
        values = _only_numbers(table) if not set(inputs) & set(table.columns) else None
        if values is None:
            return {}
        found[file.stem] = values
    return found


def _only_numbers(table: Table) -> NDArray[np.float64] | None:
    names = [name for name in table.columns if name.lower() not in _TIMES]
    if len(names) != 1:
        return None
    try:
        values = np.array(table.column(names[0]), np.float64)
    except (TypeError, ValueError):
        return None
    return values if np.isfinite(values).all() else None


def _write_windows(series: Mapping[str, NDArray[np.float64]], size: int, inputs: Collection[str], file: Path) -> Path:
    """Writes a table with a column for each input, label and group; of many windows, evenly spread ones.

    Raises:
        ConfigError: no series is longer than a window, or the table cannot be written.
    """
    step = max(1, -(-sum(map(len, series.values())) // _MOST_ROWS))
    parts = list(_cut(series, size, step))
    if not parts:
        raise ConfigError(f"No series is longer than {size} numbers, the window of the models; give longer ones.")
    names, rows = [name for name, _ in parts], np.concatenate([cut for _, cut in parts])
    columns: dict[str, Any] = dict.fromkeys(inputs, rows[:, :size])
    columns |= {"label": rows[:, size], "group": np.repeat(names, [len(cut) for _, cut in parts])}
    with naming(file, "written"):
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, **columns)
    return file


def _cut(series: Mapping[str, NDArray[np.float64]], size: int, step: int) -> Iterator[tuple[str, NDArray[np.float64]]]:
    for name, values in series.items():
        if len(values) > size:
            yield name, np.lib.stride_tricks.sliding_window_view(values, size + 1)[::step]
