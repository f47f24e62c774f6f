from pathlib import Path

import onnx
import pytest
from support.sample_models import linear_model

from firstline_core.protocol.protobuf import spans


def test_fields_written_by_protobuf_are_read(tmp_path: Path) -> None:
    """Every kind of field: a number, bytes, and both fixed sizes."""
    model = onnx.load(linear_model(tmp_path / "m.onnx", pixels=4, classes=2))
    found = {number: value for number, value, _ in spans(memoryview(model.SerializeToString()))}
    assert found[1] == model.ir_version
    assert bytes(found[7]) == model.graph.SerializeToString()
    attribute = onnx.helper.make_attribute("alpha", 0.5)
    assert {
        number: len(value) for number, value, _ in spans(memoryview(attribute.SerializeToString())) if number == 2
    } == {2: 4}
    assert [(n, bytes(v)) for n, v, _ in spans(memoryview(b"\x09abcdefgh"))] == [(1, b"abcdefgh")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x0a\x05abc", "ends too early"),
        (b"\x0d\x00\x00", "ends too early"),
        (b"\x08", "ends too early"),
        (b"\x08\xff", "ends too early"),
        (b"\xff" * 11, "more than ten bytes"),
        (b"\x0b", "has another format"),
    ],
)
def test_truncated_or_foreign_bytes_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(spans(memoryview(data)))
