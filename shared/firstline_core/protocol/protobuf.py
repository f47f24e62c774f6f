"""A minimal reader of the protobuf wire format (https://protobuf.dev/programming-guides/encoding/)."""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TWO_BYTES = 0x80
"""The least number that takes two bytes."""


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yields the fields of a message in order: (number, value); a value is an integer, or bytes.

    Raises:
        ValueError: not protobuf.
    """
    return ((number, value) for number, value, _ in spans(data))


def parts(message: memoryview, number: int, *path: int) -> Iterator[memoryview]:
    """Yields the length-delimited fields of a number; with more numbers, those that the path leads to inside of them.

    Raises:
        ValueError: not protobuf.
    """
    for field, value in fields(message):
        if field == number and isinstance(value, memoryview):
            yield from parts(value, *path) if path else (value,)


def spans(data: memoryview) -> Iterator[tuple[int, int | memoryview, memoryview]]:
    """Like `fields`, each with all of its bytes, including number and length.

    Raises:
        ValueError: not protobuf.
    """
    position, length = 0, len(data)
    while position < length:
        start = position
        key = data[position]
        if key < _TWO_BYTES:  # most numbers have one byte: a model has tens of thousands of fields
            position += 1
        else:
            key, position = _varint(data, position)
        kind = key & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield key >> 3, value, data[start:position]
            continue
        if kind == _BYTES:
            if position < length and data[position] < _TWO_BYTES:
                size, position = data[position], position + 1
            else:
                size, position = _varint(data, position)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError("its content has another format")
        end = position + size
        if end > length:
            raise ValueError("it ends too early")
        yield key >> 3, data[position:end], data[start:end]
        position = end


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ValueError("it ends too early")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < _TWO_BYTES:
            return value, position
    raise ValueError("a number has more than ten bytes")
