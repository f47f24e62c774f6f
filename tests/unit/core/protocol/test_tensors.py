"""One tensor in JSON and in raw bytes: what fits its shape and datatype, and what does not."""

from typing import Any

import numpy as np
import pytest

from firstline_core.errors import InvalidTensorError
from firstline_core.protocol.tensors import from_binary, from_json, to_binary, to_json
from firstline_core.types import DATATYPES, Tensor


@pytest.mark.parametrize(
    ("datatype", "values", "message"),
    [
        ("UINT8", [300], "300 at element 0; UINT8 holds 0 to 255"),
        ("INT8", [0, -129], "-129 at element 1"),
        ("UINT64", [-1], "-1"),
        ("INT64", [2**63], "INT64 holds"),
        ("UINT64", [float(2**64)], "whole numbers"),
        ("INT32", [1.5], "1.5 at element 0; INT32 takes whole numbers"),
        ("INT32", [1.0], "whole numbers"),
        ("INT32", [True], "whole numbers"),
        ("FP32", [True], "FP32 takes numbers"),
        ("FP32", [1.0, 0, 0.5, False], "false at element 3; FP32 takes numbers"),
        ("FP32", [1.0, None], "null at element 1; FP32 takes numbers"),
        ("FP32", [0.5, 0, 1] * 1000 + [True], "true at element 3000; FP32 takes numbers"),
        ("FP32", ["1"], "FP32 takes numbers"),
        ("FP32", [1, 1e39], "1e\\+39 at element 1.*out of FP32's range"),
        ("FP16", [65520], "out of FP16's range"),
        ("BOOL", [1], "true or false"),
        ("BYTES", [7], "strings"),
        ("FP32", [[1.0]], "FP32 takes numbers"),
    ],
)
def test_a_value_that_does_not_fit_is_named(datatype: str, values: list[Any], message: str) -> None:
    with pytest.raises(InvalidTensorError, match=f"^Input 'x'.*{message}"):
        from_json("Input 'x'", datatype, (len(values),), values)


def test_whole_numbers_and_no_numbers_become_floats() -> None:
    assert from_json("x", "FP64", (3,), [1, 2.5, 2**63]).tolist() == [1.0, 2.5, 2.0**63]
    assert from_json("x", "FP32", (1, 0), []).shape == (1, 0)


@pytest.mark.parametrize("datatype", [name for name, dtype in DATATYPES.items() if dtype.kind in "iu"])
def test_the_ends_of_a_range_fit(datatype: str) -> None:
    bounds = np.iinfo(DATATYPES[datatype])
    array = from_json("x", datatype, (2,), [int(bounds.min), int(bounds.max)])
    assert array.tolist() == [bounds.min, bounds.max]
    assert array.dtype == DATATYPES[datatype]


@pytest.mark.parametrize(
    "data",
    [[[1, 2], [3]], [[1, 2], 3], [[1, 2, 3, 4]], [[[1], [2]], [[3], [4]]], [[1, 2], [3, 4], [5, 6]], [1, 2, 3], {}],
)
def test_data_of_another_shape(data: Any) -> None:
    with pytest.raises(InvalidTensorError, match=r"^Input 'x'"):
        from_json("Input 'x'", "INT8", (2, 2), data)


@pytest.mark.parametrize(
    ("datatype", "raw", "message"),
    [
        ("FP32", b"\0" * 7, "7 bytes.*needs 8"),
        ("FP32", b"\0" * 9, "9 bytes.*needs 8"),
        ("BOOL", b"\x01\x02", "other than 0 and 1"),
        ("BYTES", b"", "4-byte length each"),
        ("BYTES", b"\x01\0\0\0a\x01\0\0\0", "ends inside BYTES element 1"),
        ("BYTES", b"\xff\xff\xff\xff\0\0\0\0", "ends inside BYTES element 0"),
        ("BYTES", b"\x02\0\0\0ab\0\0\0", "ends inside BYTES element 1"),
        ("BYTES", b"\0" * 9, "1 byte after its last BYTES element"),
    ],
)
def test_raw_bytes_that_do_not_fit(datatype: str, raw: bytes, message: str) -> None:
    with pytest.raises(InvalidTensorError, match=f"^Input 'x'.*{message}"):
        from_binary("Input 'x'", datatype, (2,), memoryview(raw))


def test_raw_bytes_are_row_major_and_little_endian() -> None:
    transposed = np.array([[1, 2], [3, 4]], np.int16).T
    assert bytes(to_binary("x", Tensor("x", transposed))) == b"\x01\0\x03\0\x02\0\x04\0"
    assert to_json("x", Tensor("x", transposed)).tolist() == [1, 3, 2, 4]  # type: ignore[union-attr]


def test_no_raw_bytes_are_a_tensor_without_elements() -> None:
    for datatype in ("BOOL", "FP32", "BYTES"):
        assert from_binary("Input 'x'", datatype, (1, 0), memoryview(b"")).shape == (1, 0)


def test_a_bytes_tensor_holds_bytes() -> None:
    text = Tensor("x", np.array(["a"], np.object_))
    for encode in (to_binary, to_json):
        with pytest.raises(InvalidTensorError, match="has a str at element 0"):
            encode("Output 'x'", text)


def test_a_long_value_is_quoted_short() -> None:
    with pytest.raises(InvalidTensorError) as caught:
        from_json("x", "FP32", (1,), ["a" * 1_000_000])
    assert len(caught.value.message) < 300
