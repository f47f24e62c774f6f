import sys
from collections.abc import Sequence
from types import FrameType

import pytest

from firstline_core import errors


def test_codes_are_unique_and_documented() -> None:
    classes = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.FirstlineError)
    ]
    assert set(errors.BY_CODE.values()) == set(classes)
    assert errors.__doc__ is not None
    for cls in classes:
        assert cls.__name__ in errors.__doc__


def test_only_capacity_and_link_errors_are_retryable() -> None:
    assert errors.QueueFullError("x").retryable
    assert errors.LinkDownError("x").retryable
    assert not errors.InvalidTensorError("x").retryable


@pytest.mark.parametrize(
    ("name", "names", "similar"),
    [
        ("egde", ("auto", "edge", "cloud"), "edge"),
        ("LOCAL-ONLY", ("any", "local_only"), "local_only"),
        ("moon", ("auto", "edge", "cloud"), ""),
        ("goldn retreiver", ("golden retriever", "tiger shark"), "golden retriever"),
        ("label 501", [f"{'abc'[place % 3]} {place}" for place in range(900)] + ["label 500"], "label 500"),
        ("a" * 65, ("a" * 64,), ""),
        (
            "mobilenet-v2-quantised-224-detector-int8.nnx",
            ("tiny", "mobilenet-v2-quantised-224-detector-int8.onnx"),
            "mobilenet-v2-quantised-224-detector-int8.onnx",
        ),
        ("", ("a",), ""),
    ],
)
def test_similar_name_is_found(name: str, names: Sequence[str], similar: str) -> None:
    assert errors.similar_name(name, names) == similar


@pytest.mark.parametrize("value", [None, 5, ["edge"], {"edge": "edge"}])
def test_a_value_that_is_no_text_is_similar_to_no_name(value: object) -> None:
    assert errors.did_you_mean(value, ("edge", "5", "None")) == "."


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("golden retreiver", [f"golden retriever {place}" for place in range(1000)]),
        ("a" * 32, [f"{'a' * 28}{place:04}" for place in range(1000)]),
        ("a" * 32, ["a\u0130" * 14 + f"{place:04}" for place in range(1000)]),
        ("a" * 64, [f"{'a' * 60}{place:04}" for place in range(1000)]),
        ("a\u0130" * 32, ["a\u0130" * 30 + f"{place:04}" for place in range(1000)]),
        ("a" * 10_000, ["a" * 9000] * 1000),
    ],
    ids=["two words", "one letter", "other scripts", "64 characters", "64 of other scripts", "long"],
)
def test_a_search_for_a_similar_name_is_short(name: str, names: Sequence[str]) -> None:
    lines = 0

    def count(_frame: FrameType, event: str, _argument: object) -> object:
        nonlocal lines
        lines += event == "line"
        return count

    previous = sys.gettrace()
    sys.settrace(count)
    try:
        errors.similar_name(name, names)
    finally:
        sys.settrace(previous)
    assert lines < 200_000  # a compared pair of 64 characters has 20,000; all of these lines take 6 ms at most
