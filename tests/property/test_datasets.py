"""Whatever bytes a data set has, its readers answer or raise a ConfigError."""

import io
import json
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.images import encode

from firstline.workbench.data.dataset import open_dataset
from firstline.workbench.data.masks import read_mask
from firstline_core.errors import ConfigError
from firstline_core.processing.steps import InputSpec
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection

INPUTS = (InputSpec("x", "FP32", (-1, 2)),)
TASKS = (Classification(("a", "b")), Detection(("a", "b"), k=2))


def _npz() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, x=np.ones((3, 2), np.float32), label=np.array([0, 1, 0]))
    return buffer.getvalue()


def _parquet() -> bytes:
    buffer = io.BytesIO()
    rows = [{"x": [1.0, 2.0], "label": 1, "group": "g"}] * 3
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", encode(np.zeros((4, 4, 3), np.uint8)))
    return buffer.getvalue()


def _video() -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="avi") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height = 32, 32
        for _ in range(3):
            for packet in stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), "rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return buffer.getvalue()


def _coco() -> bytes:
    boxes = [{"image_id": 1, "category_id": 2, "bbox": [0, 0, 1, 1], "iscrowd": 0}]
    images, categories = [{"id": 1, "file_name": "a.png"}], [{"id": 2, "name": "a"}]
    return json.dumps({"images": images, "annotations": boxes, "categories": categories}).encode()


FILES: dict[str, bytes] = {
    "rows.csv": b'x,label,group\n"[1, 2]",0,a\n"[3, 4]",b,\n',
    "rows.jsonl": b'{"x": [1, 2], "label": 0}\n{"x": [3, 4], "label": "b", "group": 7}\n',
    "rows.npz": _npz(),
    "rows.parquet": _parquet(),
    "images.zip": _zip(),
    "clip.avi": _video(),
    "annotations.json": _coco(),
    "labels.csv": b"file,label,name\na.png,0,a\n",
    "labels/a.txt": b"0 0.5 0.5 0.1 0.1\n1 0.2 0.2 0.1 0.1\n",
    "images/a.png": encode(np.zeros((4, 4, 3), np.uint8)),
}


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Returns the content with some bytes replaced, inserted or cut off; or arbitrary bytes."""
    if draw(st.integers(0, 5)) == 0:
        return draw(st.binary(max_size=200))
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(changed)))
        end = draw(st.sampled_from([start, start + 1, start + 4, len(changed)]))
        changed[start:end] = draw(st.binary(max_size=8))
    return bytes(changed)


def _only_config_errors(call: Callable[[], object]) -> None:
    try:
        call()
    except ConfigError as error:
        assert error.message.endswith((".", "?"))


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
@settings(max_examples=60)
def test_damaged_file_is_read_or_refused(name: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.parent.mkdir(exist_ok=True)
        if "/" in name:
            (Path(folder) / "images").mkdir(exist_ok=True)
            (Path(folder) / "images/a.png").write_bytes(FILES["images/a.png"])
            (Path(folder) / "labels").mkdir(exist_ok=True)
            (Path(folder) / "labels/a.txt").write_bytes(FILES["labels/a.txt"])
        path.write_bytes(data.draw(damaged(FILES[name])))
        for place in {path, Path(folder)}:

            def read(place: Path = place) -> None:
                dataset = open_dataset(place, every=1)
                for task in TASKS:
                    _only_config_errors(lambda task=task: dataset.truth(task))
                _only_config_errors(lambda: list(dataset.rows(INPUTS)))
                _only_config_errors(lambda: list(dataset.contents()))

            _only_config_errors(read)


@given(data=st.data())
def test_damaged_mask_is_read_or_refused(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.png"
        path.write_bytes(data.draw(damaged(encode(np.zeros((4, 4), np.uint8)))))
        _only_config_errors(lambda: read_mask(path, (4, 4), (3, 3), 2))
