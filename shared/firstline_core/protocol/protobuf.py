"""Splits protobuf messages into fields without copies, and loads compiled declarations of messages.

The wire format is at https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def load_declaration(compiled: bytes) -> FileDescriptor:
    """Returns the messages and the services of one compiled `.proto` file.

    Generated Python code requires a protobuf package of the same age; a compiled declaration does not.
    """
    (declared,) = FileDescriptorSet.FromString(compiled).file
    pool = DescriptorPool()  # of its own: another package may have generated code for the same names
    pool.Add(declared)
    return pool.FindFileByName(declared.name)


def spans(data: memoryview) -> Iterator[tuple[int, int | memoryview, memoryview]]:
    """Yields the fields of a message in order, without copies: number, value, and all bytes with number and length.

    A value is an integer, or bytes.

    Raises:
        ValueError: not protobuf.
    """
    position, length = 0, len(data)
    while position < length:
        start = position
        key, position = _varint(data, position)
        kind = key & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield key >> 3, value, data[start:position]
            continue
        if kind == _BYTES:
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
    """Returns the number that begins at a position, and the position after it."""
    value = shift = 0
    while position < len(data) and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("it ends too early" if shift < 70 else "a number has more than ten bytes")
