import io
import json
import tracemalloc
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from firstline.workbench.data import tables
from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.data.tables import row_of
from firstline_core.errors import ConfigError
from firstline_core.processing.steps import InputSpec
from firstline_core.tasks.anomaly import Anomaly
from firstline_core.tasks.arrays import LABEL
from firstline_core.tasks.base import Task
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.regression import Regression
from firstline_core.tasks.text import Text
from firstline_core.types import Tensor

CARAT, WINDOW, COLOR = (
    InputSpec("carat", "FP32", (-1, 1)),
    InputSpec("window", "FP32", (-1, 2)),
    InputSpec("color", "BYTES", (-1,), "text"),
)
CUTS = Classification(("Fair", "Good", "Ideal"))
ROWS = [
    {"carat": 0.25, "window": [1.0, 2.0], "color": "E", "cut": "Ideal"},
    {"carat": 3, "window": [3.5, 4.0], "color": "é", "cut": "Fair"},
]


def _csv(folder: Path) -> Path:
    path = folder / "rows.csv"
    lines = [f'{row["carat"]},"{row["window"]}",{row["color"]},{row["cut"]},not read\n' for row in ROWS]
    path.write_text("carat,window,color,cut,other\n" + "".join(lines), encoding="utf-8")
    return path


def _json_lines(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def _npz(folder: Path) -> Path:
    path = folder / "rows.npz"
    columns: dict[str, Any] = {name: np.array([row[name] for row in ROWS]) for name in ROWS[0]}
    np.savez_compressed(path, allow_pickle=False, **columns)
    return path


def _parquet(folder: Path) -> Path:
    path = folder / "rows.parquet"
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{**row, "carat": float(row["carat"])} for row in ROWS]), path
    )
    return path


@pytest.mark.parametrize("write", [_csv, _json_lines, _npz, _parquet])
def test_columns_are_inputs_of_their_names(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    found = open_dataset(write(tmp_path), label="cut")
    assert len(found) == 2
    rows = [row for _, row in found.rows((CARAT, WINDOW, COLOR))]
    assert [row["carat"].tolist() for row in rows] == [[[0.25]], [[3.0]]]
    assert [row["window"].tolist() for row in rows] == [[[1.0, 2.0]], [[3.5, 4.0]]]
    assert [row["color"].tolist() for row in rows] == [[b"E"], ["é".encode()]]
    assert {Tensor(name, array).datatype for row in rows for name, array in row.items()} == {"FP32", "BYTES"}
    assert found.required_truth(CUTS)[LABEL].tolist() == [2, 0]


def test_table_in_a_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("text,label,group\nhello there,1,a\nbye,-1,\n")
    found = open_dataset(tmp_path)
    assert [row["text"][0] for _, row in found.rows((InputSpec("text", "BYTES", (-1,), "text"),))] == [
        b"hello there",
        b"bye",
    ]
    assert found.required_truth(CUTS)[LABEL].tolist() == [1, -1]
    assert found.clusters == ("a", "")


def test_rows_of_equal_inputs_have_equal_digests(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("carat,other\n1,a\n1.0,b\n2,a\n")
    first, same, other = open_dataset(tmp_path / "rows.csv").row_digests((CARAT,))
    assert first == same != other


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"carat\n1\nmany\n", r"rows\.csv:3, column 'carat', is 'many'; write a number, .*: the model takes FP32"),
        (b'carat\n"[1, ""a""]"\n', r"rows\.csv:2, column 'carat', is \['1', 'a'\]|is \[1, 'a'\]"),
        (b"carat,x\n1,2,\n1,5,2\n", r"rows\.csv:3 has more than 2 cells"),
        (b'{"carat": 1}\n\n{"carat": \n', r"rows\.jsonl:3 is not a JSON object"),
        (b'{"carat": 1}\n{}\n', r"rows\.jsonl:2, column 'carat', is empty"),
        (
            b'{"carat": {"a": 1}}\n',
            r"rows\.jsonl:1, column 'carat', is \{'a': 1\}; write a number, .*: the model takes FP32",
        ),
        (b'{"carat": [[1, true]]}\n', r"rows\.jsonl:1, column 'carat', is \[\[1, True\]\], which mixes truth values"),
        (b'{"carat": [[1], [2, 3]]}\n', r"rows\.jsonl:1, column 'carat', is not an array"),
        (b'{"carat": ' + b"[" * 100_000, r"rows\.jsonl:1 is not a JSON object"),
        (b"\xff\n", r"rows\.jsonl:1 is not a JSON object"),
    ],
)
def test_error_of_a_table_names_line_and_column(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / ("rows.csv" if content.startswith(b"carat") else "rows.jsonl")
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        list(open_dataset(file).rows((CARAT,)))


@pytest.mark.parametrize(
    ("value", "datatype", "expected"),
    [
        (7, "INT64", 7), (7.0, "INT64", 7), ("7", "INT64", 7), (True, "BOOL", True), ("true", "BOOL", True),
        ("1e3", "FP32", 1000.0), (2**53 + 1, "INT64", 2**53 + 1), ("+5", "INT32", 5), (0.1, "FP32", np.float32(0.1)),
    ],
)  # fmt: skip
def test_number_is_converted_without_loss(value: Any, datatype: str, expected: Any) -> None:
    assert row_of(value, datatype, (1,), "x").tolist() == [expected]


@pytest.mark.parametrize(
    ("value", "datatype"),
    [
        (7.5, "INT64"),
        (300, "UINT8"),
        (-1, "UINT8"),
        (float("nan"), "INT32"),
        (1e39, "FP32"),
        (2, "BOOL"),
        (2**80, "INT64"),
        ("-1e400", "FP64"),
    ],
)
def test_number_that_does_not_fit_is_refused(value: Any, datatype: str) -> None:
    with pytest.raises(ConfigError, match=f"does not fit into {datatype}|takes {datatype}"):
        row_of(value, datatype, (1,), "x")


def test_axes_of_any_size_take_arrays_only() -> None:
    assert row_of([[1, 2, 3]], "FP32", (1, -1), "x").shape == (1, 3)
    assert row_of(5, "FP32", (-1,), "x").shape == (1,)
    with pytest.raises(ConfigError, match=r"has shape \[3\], and the model takes \[1, -1\]"):
        row_of([1, 2, 3], "FP32", (1, -1), "x")


def _npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 4)}"), "declares 16000000000 bytes"),
        (_npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"), "holds Python objects"),
        (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': ()}", b"1234"), "holds no array of rows"),
        (_npy("{'descr': '<f4', 'shape': (1,)}"), "cannot be read as an NPZ file"),
        (_npy("{'descr': '<V0', 'fortran_order': False, 'shape': (99999999999,)}"), "at most 67108864 are read"),
        (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 0)}"), "at most 67108864 are read"),
        (_npy("{[]: 1}"), "cannot be read as an NPZ file"),
        (_npy("'''"), "cannot be read as an NPZ file"),
        (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 0)}"), "at most 67108864"),
    ],
)  # fmt: skip
def test_npz_is_checked_before_it_is_read(tmp_path: Path, member: bytes, message: str) -> None:
    with zipfile.ZipFile(tmp_path / "rows.npz", "w") as archive:
        archive.writestr("carat.npy", member)
    with pytest.raises(ConfigError, match=message):
        open_dataset(tmp_path / "rows.npz")


def test_npz_with_arrays_of_different_lengths_is_refused(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "rows.npz", carat=np.zeros((3, 1), np.float32), label=np.zeros(2, np.int64), scale=np.float32(1)
    )
    with pytest.raises(ConfigError, match=r"different numbers of rows: 'carat' 3, 'label' 2; save equally many"):
        open_dataset(tmp_path / "rows.npz")


def test_arrays_that_nothing_names_need_not_have_the_rows(tmp_path: Path) -> None:
    columns = {"carat": np.zeros((3, 1), np.float32), "label": np.zeros(3, np.int64), "other": np.zeros(3)}
    objects = np.array([{}, {}, {}])
    np.savez(tmp_path / "rows.npz", classes=np.array(["Fair", "Good"]), objects=objects, scale=np.float32(1), **columns)
    found = open_dataset(tmp_path / "rows.npz", inputs=["carat", "absent"])
    assert (len(found), found.table.columns) == (3, ("carat", "label", "other"))
    assert found.table.unused == ("classes", "objects", "scale")
    with pytest.raises(ConfigError, match="different numbers of rows: 'classes' 2, 'carat' 3"):
        open_dataset(tmp_path / "rows.npz", inputs=["carat", "classes"])


def test_pictures_have_no_column_of_labels(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"images has no table, and so no column 'kut'"):
        open_dataset(tmp_path / "images", label="kut")


def test_large_table_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "TABLE_LIMIT_BYTES", 10)
    (tmp_path / "rows.csv").write_text("carat\n" + "1\n" * 10)
    with pytest.raises(ConfigError, match="more than 10 bytes"):
        open_dataset(tmp_path / "rows.csv")
    monkeypatch.setattr(tables, "COLUMN_LIMIT_BYTES", 10)
    for path in (_npz(tmp_path), _parquet(tmp_path)):
        with pytest.raises(ConfigError, match=r"at most 10 are read|more than 10 bytes"):
            list(open_dataset(path).rows((CARAT,)))


def test_an_npz_header_is_not_read_further_than_its_limit(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "rows.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("carat.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(20_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match="cannot be read as an NPZ file"):
            open_dataset(tmp_path / "rows.npz")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_rows_that_take_no_bytes_in_a_parquet_file_are_limited(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"carat": pyarrow.nulls(67_108_865)}), tmp_path / "rows.parquet")
    with pytest.raises(ConfigError, match="has 67108865 rows; at most 67108864 are read"):
        open_dataset(tmp_path / "rows.parquet")


def test_damaged_parquet_is_named(tmp_path: Path) -> None:
    path = _parquet(tmp_path)
    content = io.BytesIO(path.read_bytes()).getvalue()
    path.write_bytes(content[:-20])
    with pytest.raises(ConfigError, match=r"rows\.parquet cannot be read as a Parquet file.*[^.]\.$"):
        open_dataset(path)


def _truth(folder: Path, content: str, task: Task, *names: str, inputs: Sequence[InputSpec] = ()) -> list[Any]:
    (folder / "rows.csv").write_text(content)
    found = open_dataset(folder / "rows.csv").required_truth(task, inputs)
    return [found[name].tolist() for name in names]


def test_true_values_are_in_the_label_or_in_columns_of_their_names(tmp_path: Path) -> None:
    place = Regression(("x", "y"), absolute=1)
    for content in ('label\n"[1, 2]"\n"[3, 4]"\n', 'values\n"[1, 2]"\n"[3, 4]"\n', "y,x\n2,1\n4,3\n"):
        assert _truth(tmp_path, content, place, "values") == [[[1, 2], [3, 4]]]
    assert _truth(tmp_path, "label\n0.5\n", Regression(("price",), absolute=1), "values") == [[[0.5]]]
    with pytest.raises(
        ConfigError, match=r"rows\.csv:3, column 'y', is 'much'; write a number, .*: the model takes FP64"
    ):
        _truth(tmp_path, "x,y\n1,2\n1,much\n", place, "values")
    some = open_dataset(tmp_path / "rows.csv", limit=1).required_truth(place)  # the other row is not read
    assert some["values"].tolist() == [[1, 2]]


def test_input_is_not_the_truth(tmp_path: Path) -> None:
    text = (InputSpec("text", "BYTES", (-1,), "text"),)
    assert _truth(tmp_path, "text,label\na,b\n", Text(), "text", inputs=text) == [[b"b"]]
    assert _truth(tmp_path, "carat,text\n1,b\n", Text(), "text", inputs=(CARAT,)) == [[b"b"]]
    price, values = Regression(("carat",), absolute=1), InputSpec("values", "FP32", (-1, 1))
    names = InputSpec("name", "BYTES", (-1,), "text")
    for content, task, spec in (
        ("text\na\n", Text(), text[0]),
        ("carat\n1\n", price, CARAT),
        ("values\n1\n", price, values),
        ("name\nFair\n", CUTS, names),
    ):
        with pytest.raises(ConfigError, match="has no column label"):
            _truth(tmp_path, content, task, inputs=(spec,))


def test_empty_cell_is_no_label(tmp_path: Path) -> None:
    assert _truth(tmp_path, "x,label\n1,\n1,2.0\n1,-1.0\n1,nan\n1,Good\n", CUTS, LABEL) == [[-1, 2, -1, -1, 1]]
    assert _truth(tmp_path, "x,label\n1,0\n1\n", CUTS, LABEL) == [[0, -1]]  # a short row
    assert _truth(tmp_path, "x,name\n1,\n1,Ideal\n", CUTS, LABEL) == [[-1, 2]]
    place = Regression(("x", "y"), absolute=1)
    for content in ("x,y\n1,2\n3,\n,\n", 'label,z\n"[1, 2]",0\n,0\n,0\n'):
        (values,) = _truth(tmp_path, content, place, "values")
        assert values[0] == [1, 2]
        assert np.isnan(values[1:]).any(axis=1).all()
    (tmp_path / "rows.jsonl").write_text('{"label": null}\n{"label": 1}\n{}\n')
    assert open_dataset(tmp_path / "rows.jsonl").required_truth(CUTS)[LABEL].tolist() == [-1, 1, -1]
    with pytest.raises(ConfigError, match=r"rows\.csv:2 has label '2\.5'"):
        _truth(tmp_path, "x,label\n1,2.5\n", CUTS)
    for task in (CUTS, place):
        with pytest.raises(ConfigError, match="has no label in any row of the column label"):
            _truth(tmp_path, "x,label\n1,\n", task)


def test_times_accompany_the_labels_of_anomalies(tmp_path: Path) -> None:
    found = _truth(tmp_path, "label,time\n0,10\nanomaly,20\n-1,30\n", Anomaly(), "label", "time")
    assert found == [[0, 1, -1], [10, 20, 30]]


def test_a_cell_may_hold_many_numbers(tmp_path: Path) -> None:
    numbers = [0.5] * 60_000
    (tmp_path / "data.csv").write_text(f'x,label\n"{numbers}",1\n')
    ((_, row),) = open_dataset(tmp_path / "data.csv").rows([InputSpec("x", "FP32", (-1, 60_000))])
    assert row["x"].sum() == 30_000


def test_json_lines_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"x": 1}\n{"x": 2}\n', encoding="utf-8-sig")
    assert open_dataset(tmp_path / "data.jsonl").table.columns == ("x",)
