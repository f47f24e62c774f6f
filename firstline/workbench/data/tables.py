"""Tables: columns of CSV, JSON lines, NPZ and Parquet files, one row for each sample."""

from __future__ import annotations

import csv
import io
import math
import zipfile
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

import msgspec
import numpy as np

from firstline.workbench.data.files import DAMAGED_ZIP
from firstline_core.errors import ConfigError
from firstline_core.storage.files import naming, read_limited, unreadable
from firstline_core.storage.structs import fault_of
from firstline_core.telemetry.wording import counted
from firstline_core.types import DATATYPES, Array, object_array

TABLE_LIMIT_BYTES = 256 * 1024 * 1024
"""Largest file of text."""

COLUMN_LIMIT_BYTES = 2 * 1024 * 1024 * 1024
"""Largest column of an NPZ or Parquet file, unpacked."""

ROWS_LIMIT = 1 << 26
"""Number of rows of an NPZ or Parquet file: a row may take no bytes in the file, and takes eight or more here."""

_NPY_HEADER_BYTES = 1 << 16

SUFFIXES = (".csv", ".jsonl", ".ndjson", ".npz", ".parquet")


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Rows with named columns.

    Attributes:
        path: of the file.
        columns: their names.
        rows: number of rows.
        column: returns the values of a column by its name, one for each row. A cell of text, as in CSV, is a `str`; it
            may hold a number or a JSON array. None is a value that is absent. A column that cannot be read is a
            `ConfigError`.
        lines: line of each row; () for a file without lines, whose rows are counted from 1 in messages.
        unused: names of arrays that are no columns, because they do not have the rows.
    """

    path: Path
    columns: tuple[str, ...]
    rows: int
    column: Callable[[str], Sequence[Any]]
    lines: Sequence[int] = ()
    unused: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.rows

    def where(self, row: int) -> str:
        """Returns the file and the line or row, for messages."""
        return f"{self.path}:{self.lines[row]}" if self.lines else f"{self.path} row {row + 1}"

    def line(self, row: int) -> int:
        """Returns the row's line in the file; 0 in a file without lines."""
        return self.lines[row] if self.lines else 0


def _text_table(path: Path, columns: Iterable[str], rows: Sequence[dict[str, Any]], lines: Sequence[int]) -> Table:
    return Table(path, tuple(columns), len(rows), lambda name: [row.get(name) for row in rows], lines)


def read_csv(path: Path) -> Table:
    """Reads a CSV file; see `parse_csv`.

    Raises:
        ConfigError: it cannot be read, or is not such a file.
    """
    return parse_csv(_content(path), path)


def parse_csv(content: bytes, path: Path | str) -> Table:
    """Reads CSV whose first line names the columns; spaces around these names and before cells are ignored.

    Args:
        content: UTF-8, also with a byte order mark, as spreadsheets write it.
        path: of the file, or a name for messages.

    Raises:
        ConfigError: it is not CSV in UTF-8, columns have the same name, or a row has more cells than the first line has
            columns.
    """
    csv.field_size_limit(TABLE_LIMIT_BYTES)  # a cell may hold an array; by default 128 KiB
    line = 1
    try:
        reader = csv.DictReader(
            io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True, skipinitialspace=True
        )
        reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        rows, lines = list[dict[str, Any]](), list[int]()
        columns, line = reader.fieldnames, reader.line_num + 1
        if repeated := [name for name, count in Counter(columns).items() if name and count > 1]:
            raise ConfigError(f"{path}:1 has several columns '{repeated[0]}'; give each a name of its own.")
        for row in reader:
            if any(filter(None, row.get(None, ()))):
                raise ConfigError(
                    f"{path}:{reader.line_num} has more than {counted(len(columns), 'cell')}, and line 1 names no "
                    "more columns; put quotes around cells with commas, and write decimals with a point."
                )
            rows.append(row)
            lines.append(reader.line_num)
            line = reader.line_num + 1
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} {unreadable(error)}") from error
    except csv.Error as error:
        if str(error) == "unexpected end of data":
            raise ConfigError(f"{path}:{line} opens a quote that is not closed; close it.") from error
        raise ConfigError(f"{path}:{line} is not CSV ({error}); save it as CSV again.") from error
    return _text_table(Path(path), columns, rows, lines)


def one_column(columns: Sequence[str]) -> str:
    """Returns the end of a sentence about a first line that other characters than commas separate; "" for others."""
    if len(columns) == 1 and (";" in columns[0] or "\t" in columns[0]):
        return f":1 is {columns[0][:80]!a}, which is read as one column; separate the columns by commas."
    return ""


def read_json_lines(path: Path) -> Table:
    """Reads a file with one JSON object a line; the columns are the keys of all.

    Raises:
        ConfigError: it cannot be read, or a line is not a JSON object.
    """
    rows, lines, columns = list[dict[str, Any]](), list[int](), dict[str, None]()
    decoder = msgspec.json.Decoder(dict[str, Any])
    for number, line in enumerate(_content(path).removeprefix(BOM_UTF8).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(
                f'{path}:{number} is not a JSON object, such as {{"text": "hello"}}: {fault_of(error)}; correct the '
                "line."
            ) from error
        rows.append(row)
        lines.append(number)
        columns |= dict.fromkeys(row)
    return _text_table(path, columns, rows, lines)


def _content(path: Path) -> bytes:
    with naming(path):
        return read_limited(path, TABLE_LIMIT_BYTES)


def read_npz(path: Path, named: Collection[str] = ()) -> Table:
    """Opens the arrays of an NPZ file, whose first axes are the rows.

    The arrays that are named say how many rows there are. Other arrays are columns if they have equally many.

    Args:
        path: of the file.
        named: the columns that are wanted, as far as the file has them; none: all arrays.

    Raises:
        ConfigError: the file cannot be read, or an array that is named is too large, holds Python objects, has no rows,
            or has another number of them.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {
                info.filename.removesuffix(".npy"): info.filename
                for info in archive.infolist()
                if info.filename.endswith(".npy")
            }
            wanted = {name for name in members if name in named} or set(members)
            shapes = {name: _npy_header(archive, members[name], path) for name in wanted}
            others = {name: _shape(archive, members[name], path) for name in members if name not in wanted}
    except (*_DAMAGED, OSError) as error:
        raise ConfigError(
            f"{path} cannot be read as an NPZ file ({fault_of(error)}); save it with numpy.savez(FILE, NAME=ARRAY)."
        ) from error
    counts = {name: shapes[name][0] for name in members if shapes.get(name)}
    if not counts:
        raise ConfigError(f"{path} holds no array of rows; save it with numpy.savez(FILE, NAME=ARRAY).")
    if len(set(counts.values())) > 1:
        lengths = ", ".join(f"'{name}' {length}" for name, length in counts.items())
        raise ConfigError(f"The arrays of {path} have different numbers of rows: {lengths}; save equally many of each.")
    rows = next(iter(counts.values()))
    columns = tuple(name for name in members if name in counts or others.get(name, ())[:1] == (rows,))

    def column(name: str) -> Sequence[Any]:
        try:
            with zipfile.ZipFile(path) as archive:
                _npy_header(archive, members[name], path)
                with archive.open(members[name]) as stream:
                    array: Array = np.lib.format.read_array(stream, allow_pickle=False)
        except (*_DAMAGED, OSError) as error:
            raise ConfigError(f"Array '{name}' of {path} cannot be read: {error}.") from error
        return array  # type: ignore[return-value]  # an array is a sequence of its rows

    return Table(path, columns, rows, column, unused=tuple(name for name in members if name not in columns))


_DAMAGED = (
    *DAMAGED_ZIP,
    KeyError,
    # Of headers of arrays, which NumPy parses as Python's literals.
    SyntaxError,
    TypeError,
    OverflowError,
    MemoryError,
    TokenError,
)


def _npy_header(archive: zipfile.ZipFile, member: str, path: Path) -> tuple[int, ...]:
    """Returns the shape of an array, after a check of its declared size.

    Raises:
        ConfigError: the array is too large, or holds Python objects.
    """
    with archive.open(member) as content:
        stream = io.BytesIO(content.read(_NPY_HEADER_BYTES))  # a header may declare 4 GiB
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    name = member.removesuffix(".npy")
    if dtype.hasobject:
        raise ConfigError(f"Array '{name}' of {path} holds Python objects; save numbers, or text with dtype=str.")
    needed = math.prod(shape) * dtype.itemsize
    if needed > COLUMN_LIMIT_BYTES or needed > archive.getinfo(member).file_size:
        raise ConfigError(
            f"Array '{name}' of {path} declares {needed} bytes; at most {COLUMN_LIMIT_BYTES} are read, and the file "
            f"holds {archive.getinfo(member).file_size}."
        )
    _check_rows(shape[0] if shape else 0, f"Array '{name}' of {path}")
    return tuple(int(size) for size in shape)


def _check_rows(rows: int, what: str) -> None:
    if rows > ROWS_LIMIT:
        raise ConfigError(f"{what} has {rows} rows; at most {ROWS_LIMIT} are read. Split the file.")


def _shape(archive: zipfile.ZipFile, member: str, path: Path) -> tuple[int, ...]:
    """Returns the shape of an array that need not be readable; () if it is not."""
    try:
        return _npy_header(archive, member, path)
    except (*_DAMAGED, ConfigError):
        return ()


def read_parquet(path: Path) -> Table:
    """Opens a Parquet file; pyarrow reads its columns.

    Raises:
        ConfigError: it cannot be read, or pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ConfigError("Parquet files are read by pyarrow: pip install 'firstline[data]'.") from error
    damaged = (pyarrow.ArrowException, OSError, ValueError, TypeError, NotImplementedError, IndexError, OverflowError)
    try:
        with ParquetFile(path) as opened:
            columns, rows = tuple(opened.schema_arrow.names), opened.metadata.num_rows
            _check_rows(rows, str(path))
    except damaged as error:
        raise ConfigError(
            f"{path} cannot be read as a Parquet file: it is empty, damaged or not Parquet; write it again."
        ) from error

    def column(name: str) -> Sequence[Any]:
        values, size_bytes = list[Any](), 0
        try:
            with ParquetFile(path) as opened:
                for batch in opened.iter_batches(columns=[name]):
                    size_bytes += batch.nbytes
                    _check_rows(len(values) + len(batch), str(path))
                    if size_bytes > COLUMN_LIMIT_BYTES:
                        raise ConfigError(f"Column '{name}' of {path} has more than {COLUMN_LIMIT_BYTES} bytes.")
                    values += batch.column(0).to_pylist()
        except damaged as error:
            raise ConfigError(f"Column '{name}' of {path} cannot be read: {str(error).rstrip('.')}.") from error
        if len(values) != rows:
            raise ConfigError(f"Column '{name}' of {path} has {len(values)} rows instead of {rows}.")
        return values

    return Table(path, columns, rows, column)


def read_table(path: Path, named: Collection[str] = ()) -> Table:
    """Opens a table by the suffix of its name.

    Args:
        path: of the file.
        named: see `read_npz`.

    Raises:
        ConfigError: it cannot be read.
    """
    match path.suffix.lower():
        case ".csv":
            return read_csv(path)
        case ".npz":
            return read_npz(path, named)
        case ".parquet":
            return read_parquet(path)
        case _:
            return read_json_lines(path)


def row_of(value: Any, datatype: str, shape: Sequence[int], where: str) -> Array:
    """Returns one value of a column as an array of a tensor's row.

    Args:
        value: a number, text, a list of numbers, or an array.
        datatype: of the tensor, such as FP32; BYTES for text.
        shape: of the row, without the axis of rows; -1 is any size.
        where: file, row and column, for messages.

    Returns:
        An array of the shape, with the datatype. Numbers are converted if no value changes by more than rounding.

    Raises:
        ConfigError: the value is absent, or is not of the datatype or the shape.
    """
    if isinstance(value, str) and datatype != "BYTES":
        value = _parsed(value, datatype, where)
    if value is None:
        raise ConfigError(f"{where} is empty; give a value, or leave the row out.")
    dtype = np.dtype(DATATYPES[datatype])
    try:
        given = np.asarray(value)
    except (ValueError, OverflowError) as error:  # rows of unequal length
        raise ConfigError(f"{where} is not an array: {error}.") from error
    if isinstance(value, list) and len({isinstance(one, bool) for one in np.asarray(value, object).flat}) > 1:
        raise ConfigError(f"{where} is {_short(value)}, which mixes truth values with numbers.")
    if datatype == "BYTES":
        array = _texts(given, value, where)
    else:
        if given.dtype.kind not in "biuf":
            raise ConfigError(f"{where} is {_short(value)}; {_taken(datatype)}.")
        array = _converted(given, dtype, datatype, where)
    free = list(shape).count(-1)
    sizes = tuple(shape)
    if free == 0 and array.size == math.prod(sizes):
        return array.reshape(sizes)  # a number for [1], or a flat list
    if free == 1 and not array.ndim and set(sizes) <= {1, -1}:
        return array.reshape([1] * len(sizes))
    if array.ndim != len(sizes) or any(want not in (-1, has) for want, has in zip(sizes, array.shape, strict=True)):
        raise ConfigError(
            f"{where} has shape {list(array.shape)}, and the model takes {list(sizes)} in each row; give as many "
            "values."
        )
    return array


def _parsed(text: str, datatype: str, where: str) -> Any:
    """Returns the number or the JSON array of a cell."""
    text = text.strip()
    if not text:
        return None
    try:
        if text.startswith("["):
            return msgspec.json.decode(text)
        if datatype == "BOOL" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        number = int(text) if text.lstrip("+-").isdecimal() else float(text)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{where} is {_short(text)}; {_taken(datatype)}.") from error
    if isinstance(number, float) and math.isinf(number) and any(map(str.isdigit, text)):
        raise ConfigError(
            f"{where} is {_short(text)}, which does not fit into {datatype}; scale it, or leave the row out."
        )
    return number


def _taken(datatype: str) -> str:
    """Returns what to write into a cell, as the end of a sentence."""
    return f"write a number, or a JSON array of numbers without NaN: the model takes {datatype}"


def _texts(given: Array, value: Any, where: str) -> Array:
    values = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    listed = values if isinstance(values, list) else [values]
    if not all(isinstance(one, str | bytes) for one in listed):
        raise ConfigError(f"{where} is {_short(value)}, and the model takes text.")
    try:
        array = object_array([one.encode() if isinstance(one, str) else one for one in listed])
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where} is not text in UTF-8: {error}.") from error
    return array if given.ndim else array.reshape(())


def _converted(given: Array, dtype: np.dtype[Any], datatype: str, where: str) -> Array:
    with np.errstate(all="ignore"):
        array: Array = given.astype(dtype)
    if dtype.kind in "iub":
        lossless = bool((array == given).all()) and (given.dtype.kind != "f" or bool(np.isfinite(given).all()))
    else:
        lossless = bool((np.isfinite(array) | ~np.isfinite(given.astype(np.float64))).all())
    if not lossless:
        raise ConfigError(
            f"{where} is {_short(given.tolist())}, which does not fit into {datatype}; scale it, or leave the row out."
        )
    return array


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
