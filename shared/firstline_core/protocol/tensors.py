"""Encodes and decodes one tensor in V2's two forms: JSON `data` and raw little-endian bytes.

The binary form is Triton's: numbers are concatenated in row-major order, a BYTES element is a 4-byte
little-endian length and its bytes.
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from __future__ import annotations

import math
import reprlib
import struct
from collections.abc import Sequence
from itertools import chain, compress
from typing import Any

import numpy as np

from firstline_core.errors import InvalidTensorError, PayloadTooLargeError
from firstline_core.protocol.limits import Limits
from firstline_core.telemetry.wording import counted
from firstline_core.types import DATATYPES, Array, Tensor, all_finite, object_array

# JSON types by numpy kind. Python's bool is an int, so types are compared exactly.
_JSON_TYPES: dict[str, tuple[frozenset[type], str]] = {
    "b": (frozenset({bool}), "true or false"),
    "i": (frozenset({int}), "whole numbers"),
    "u": (frozenset({int}), "whole numbers"),
    "f": (frozenset({int, float}), "numbers, without NaN and Infinity"),
    "O": (frozenset({str}), "strings (bytes that are not UTF-8 travel only as binary data)"),
}


# Elements of JSON from which numpy finds the few suspects sooner than Python looks at all of them.
_MANY = 300

_LITTLE_ENDIAN = {name: dtype.newbyteorder("<") for name, dtype in DATATYPES.items()}

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


_WORDS = {None: "null", True: "true", False: "false"}


def shown(value: object) -> str:
    """Returns a value of JSON as quoted in error messages: short, and on one line."""
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    if type(value) is str and len(value) <= _SHORT.maxstring:
        plain = repr(value)
        if len(plain) <= _SHORT.maxstring:  # most are names; this is the fast case
            return plain
    return _SHORT.repr(value)


def sizes(shape: Sequence[int]) -> str:
    """Returns a declared shape for messages, such as "[any, 3]"."""
    return f"[{', '.join('any' if size < 0 else str(size) for size in shape)}]"


def parse_shape(where: str, shape: object, limits: Limits) -> tuple[int, ...]:
    """Returns the declared shape, checked against the limits.

    Args:
        where: name of the tensor in messages: "Input 'x'".
        shape: value in the JSON.
        limits: limits of dimensions and elements.

    Raises:
        InvalidTensorError: not an array of whole numbers of at least 0.
        PayloadTooLargeError: more dimensions or elements than `limits` allow.
    """
    if not isinstance(shape, list):
        given = "no 'shape'" if shape is None else f"shape {shown(shape)}"
        raise InvalidTensorError(f"{where} has {given}; give an array of sizes such as [1, 64].")
    if len(shape) > limits.dimensions:
        raise PayloadTooLargeError(f"{where} has {len(shape)} dimensions; at most {limits.dimensions} are accepted.")
    elements = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise InvalidTensorError(
                f"{where} has size {shown(size)} in its shape; each size is a whole number of at least 0."
            )
        elements *= size or 1  # a 0 must not hide a size that numpy cannot hold
    if elements > limits.elements:
        raise PayloadTooLargeError(
            f"{where} has shape {shown(shape)}; at most {limits.elements} elements are accepted; send fewer rows at "
            "a time."
        )
    return tuple(shape)


def from_json(where: str, datatype: str, shape: tuple[int, ...], data: object) -> Array:
    """Returns the array of JSON `data`, flat or nested.

    Args:
        where: the tensor, as a sentence begins.
        datatype: a key of `DATATYPES`.
        shape: shape that `parse_shape` returned.
        data: parsed JSON.

    Raises:
        InvalidTensorError: the data do not fill the shape, or a value does not fit the datatype.
    """
    flat = _flattened(where, shape, data)
    dtype = DATATYPES[datatype]
    if dtype.kind == "f":
        return _floats(where, datatype, flat).reshape(shape)
    if not _JSON_TYPES[dtype.kind][0].issuperset(map(type, flat)):
        raise _other_type(where, datatype, flat)
    if dtype.kind == "O":
        return object_array([text.encode() for text in flat]).reshape(shape)
    if dtype.kind != "b":
        _check_range(where, datatype, flat)
    return np.array(flat, dtype=dtype).reshape(shape)


def from_binary(where: str, datatype: str, shape: tuple[int, ...], raw: memoryview) -> Array:
    """Returns the array of raw bytes; numbers are a read-only view, copied only if misaligned.

    Args:
        where: the tensor, as a sentence begins.
        datatype: a key of `DATATYPES`.
        shape: shape that `parse_shape` returned.
        raw: exactly this tensor's bytes.

    Raises:
        InvalidTensorError: the bytes are more or fewer than the shape needs, or not of the datatype.
    """
    count = math.prod(shape)
    dtype = DATATYPES[datatype]
    if dtype.kind == "O":
        return object_array(_split_elements(where, count, raw)).reshape(shape)
    if raw.nbytes != count * dtype.itemsize:
        raise InvalidTensorError(
            f"{where} has {counted(raw.nbytes, 'byte')} of binary data; shape {list(shape)} of {datatype} needs "
            f"{count * dtype.itemsize}."
        )
    if dtype.kind == "b" and count and np.frombuffer(raw, np.uint8).max() > 1:
        raise InvalidTensorError(f"{where} has a byte other than 0 and 1 in its binary BOOL data.")
    array: Array = np.ndarray(shape, _LITTLE_ENDIAN[datatype], raw)
    return array if array.flags.aligned and array.dtype.isnative else array.astype(dtype)


def to_json(kind: str, tensor: Tensor) -> Array | list[str]:
    """Returns flat `data` for orjson with `OPT_SERIALIZE_NUMPY`.

    Args:
        kind: "Input" or "Output", for messages.
        tensor: to encode.

    Raises:
        InvalidTensorError: JSON cannot represent a number that is not finite, or an element that is not UTF-8.
    """
    flat = np.ascontiguousarray(tensor.array).reshape(-1)
    if tensor.datatype == "BYTES":
        where = f"{kind} {shown(tensor.name)}"
        return [_utf8(where, index, element) for index, element in enumerate(flat)]
    if flat.dtype.kind == "f" and not all_finite(flat):
        where = f"{kind} {shown(tensor.name)}"
        index = int(np.argmin(np.isfinite(flat)))
        raise InvalidTensorError(
            f"{where} has {flat[index]} at element {index}, which JSON cannot hold; ask for it as binary data "
            '("binary_data": true in the output\'s parameters).'
        )
    return flat


def to_binary(kind: str, tensor: Tensor) -> memoryview:
    """Returns a view of the tensor's raw bytes; numbers in row-major order are not copied.

    Args:
        kind: "Input" or "Output", for messages.
        tensor: to encode.

    Raises:
        InvalidTensorError: an element of a BYTES tensor is not `bytes`.
    """
    datatype = tensor.datatype
    if datatype != "BYTES":
        return np.ascontiguousarray(tensor.array, _LITTLE_ENDIAN[datatype]).data
    where, parts = f"{kind} {shown(tensor.name)}", list[bytes]()
    for index, element in enumerate(tensor.array.flat):
        content = _content(where, index, element)
        parts += (struct.pack("<I", len(content)), content)
    return memoryview(b"".join(parts))


def _flattened(where: str, shape: tuple[int, ...], data: object) -> list[Any]:
    if not isinstance(data, list):
        raise InvalidTensorError(f"{where} has data {shown(data)}; give an array, flat or nested.")
    level: list[Any] = data
    if len(shape) > 1 and data and isinstance(data[0], list):
        level = [data]
        for axis, size in enumerate(shape):
            if any(not isinstance(item, list) or len(item) != size for item in level):
                raise InvalidTensorError(
                    f"{where} has nested data that do not fit shape {list(shape)}: on axis {axis} each list must have "
                    f"the length {size}; make both agree, or send the data flat."
                )
            level = list(chain.from_iterable(level))
    elif len(data) != math.prod(shape):
        raise InvalidTensorError(
            f"{where} has {len(data)} values; shape {list(shape)} needs {math.prod(shape)}, so make both agree."
        )
    return level


def _check_range(where: str, datatype: str, flat: list[int]) -> None:
    bounds = np.iinfo(DATATYPES[datatype])
    if flat and (min(flat) < bounds.min or max(flat) > bounds.max):
        index = next(index for index, value in enumerate(flat) if not bounds.min <= value <= bounds.max)
        raise InvalidTensorError(
            f"{where} has {flat[index]} at element {index}; {datatype} holds {bounds.min} to {bounds.max}."
        )


def _other_type(where: str, datatype: str, flat: Sequence[object]) -> InvalidTensorError:
    """Returns the error about the first value of another JSON type than the datatype takes."""
    types, expected = _JSON_TYPES[DATATYPES[datatype].kind]
    index = next(index for index, value in enumerate(flat) if type(value) not in types)
    return InvalidTensorError(f"{where} has {shown(flat[index])} at element {index}; {datatype} takes {expected}.")


def _floats(where: str, datatype: str, flat: list[float]) -> Array:
    try:  # in a third of numpy's time; refuses all but numbers and booleans
        numbers = np.frombuffer(struct.pack(f"{len(flat)}d", *flat))
    except struct.error:
        raise _other_type(where, datatype, flat) from None
    # A boolean has become 0 or 1: of many elements, only the types of such ones are looked at.
    suspects = flat if len(flat) < _MANY else compress(flat, ((numbers == 0) | (numbers == 1)).tobytes())
    if bool in set(map(type, suspects)):
        raise _other_type(where, datatype, flat)
    with np.errstate(all="ignore"):
        array = numbers.astype(DATATYPES[datatype])
    if not all_finite(array):
        index = int(np.argmin(np.isfinite(array)))
        raise InvalidTensorError(
            f"{where} has {shown(flat[index])} at element {index}, which is out of {datatype}'s range; "
            "scale the values."
        )
    return array


def _split_elements(where: str, count: int, raw: memoryview) -> list[bytes]:
    if count * 4 > raw.nbytes:
        raise InvalidTensorError(
            f"{where} has {counted(raw.nbytes, 'byte')} of binary data; its {count} BYTES elements "
            "need a 4-byte length each."
        )
    elements: list[bytes] = []
    offset = 0
    for index in range(count):
        start = offset + 4
        end = start + int.from_bytes(raw[offset:start], "little")
        if end > raw.nbytes:
            raise InvalidTensorError(
                f"{where} ends inside BYTES element {index}; each element is a 4-byte little-endian length "
                "and that many bytes."
            )
        elements.append(bytes(raw[start:end]))
        offset = end
    if offset != raw.nbytes:
        raise InvalidTensorError(
            f"{where} has {counted(raw.nbytes - offset, 'byte')} after its last BYTES element; its shape says {count} "
            f"element{'s' * (count != 1)}."
        )
    return elements


def _content(where: str, index: int, element: object) -> bytes:
    """Returns an element of BYTES."""
    if not isinstance(element, bytes):
        raise InvalidTensorError(
            f"{where} has a {type(element).__name__} at element {index}; BYTES elements are `bytes`."
        )
    return element


def _utf8(where: str, index: int, element: object) -> str:
    try:
        return _content(where, index, element).decode()
    except UnicodeDecodeError:
        raise InvalidTensorError(
            f"{where} has bytes at element {index} that are not UTF-8, which JSON cannot hold; ask for it as "
            'binary data ("binary_data": true in the output\'s parameters).'
        ) from None
