"""Which bytes a Range means, against a slow reading of RFC 9110; and how structs are described."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_gateway.api.messages import SCHEMAS, ByteRange, byte_range_of, has_already, schemas

ETAG = '"e"'
NUMBERS = st.integers(0, 30)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_a_range_equals_a_slice(size_bytes: int, first: int, last: int) -> None:
    content = bytes(range(size_bytes))
    expected = content[first : last + 1]
    range_header = f"bytes={first}-{last}"
    if last < first:  # not a range at all: all of it is sent
        assert byte_range_of(size_bytes, range_header, None, ETAG) is None
    elif first >= size_bytes:
        with pytest.raises(ValueError, match="end"):
            byte_range_of(size_bytes, range_header, None, ETAG)
    else:
        part = byte_range_of(size_bytes, range_header, None, ETAG)
        assert part is not None and content[slice(*part)] == expected


@given(NUMBERS, NUMBERS)
def test_open_and_suffix_ranges_equal_slices(size_bytes: int, number: int) -> None:
    content = bytes(range(size_bytes))
    for range_header, expected in (
        (f"bytes={number}-", content[number:]),
        (f"bytes=-{number}", content[-number:] if number else b""),
    ):
        if expected:
            part = byte_range_of(size_bytes, range_header, ETAG, ETAG)
            assert part is not None and content[slice(*part)] == expected
        else:
            with pytest.raises(ValueError, match="end"):
                byte_range_of(size_bytes, range_header, ETAG, ETAG)


@pytest.mark.parametrize(
    "header", [None, "", "bytes=", "bytes=-", "bytes=a-b", "lines=1-2", "bytes=0-1,3-4", "bytes=" + "9" * 40 + "-"]
)
def test_anything_but_a_single_range_gets_the_whole_file(header: str | None) -> None:
    assert byte_range_of(10, header, None, ETAG) is None


def test_a_file_that_has_changed_is_sent_whole() -> None:
    assert byte_range_of(10, "bytes=5-", '"other"', ETAG) is None
    assert byte_range_of(10, "bytes=5-", "Sat, 01 Jan 2028 00:00:00 GMT", ETAG) is None
    assert byte_range_of(10, "Bytes = 5 -", ETAG, ETAG) == ByteRange(5, 10)


def test_a_cached_version_is_recognised_by_its_etag() -> None:
    assert has_already('"x", W/"e"', ETAG)
    assert has_already("*", ETAG)
    assert not has_already('"x"', ETAG)
    assert not has_already(None, ETAG)


class Box(msgspec.Struct):
    """A box.

    Attributes:
        width: in metres; None if it was
            never measured.
        depth: in metres.
    """

    width: float | None
    depth: float = msgspec.field(name="depth_metres", default=0.0)
    height: float = 0.0


def test_fields_are_described_by_the_entries_of_docstrings() -> None:
    described = schemas(Box)[SCHEMAS]["Box"]
    texts = {name: field.get("description") for name, field in described["properties"].items()}
    assert texts == {"width": "in metres; null if it was never measured.", "depth_metres": None, "height": None}
    assert described["description"] == "A box.\n\ndepth: in metres."
