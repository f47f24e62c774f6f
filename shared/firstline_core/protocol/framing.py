"""The common form of V2 requests and responses: a JSON header and the tensors it lists.

Tensors with `binary_data_size` follow the header as raw bytes, in their order, up to the end of the body.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from firstline_core.errors import InvalidTensorError, PayloadTooLargeError
from firstline_core.protocol import tensors
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.tensors import shown
from firstline_core.types import DATATYPES, Tensor

# Extensions of Triton that must not be ignored, because they change the meaning of a request.
_REFUSED_INPUT = {"shared_memory_region": "send the data in the body"}

# Written by some JSON encoders (such as Python's) for numbers that are not finite.
_NOT_JSON = re.compile(rb"\bNaN\b|\bInfinity\b")


# Small JSON headers that are remembered.
_REMEMBERED_BYTES, _REMEMBERED_HEADS = 1024, 256


@dataclass(frozen=True, slots=True)
class Encoded:
    """A body; `header_length` is the size of its JSON header, None if the whole body is JSON."""

    body: bytes
    header_length: int | None


def parse_json(text: bytes | memoryview, limits: Limits) -> Any:
    """Parses JSON of limited size; orjson limits its depth.

    Raises:
        PayloadTooLargeError: more than `limits.json_bytes`.
        InvalidTensorError: not JSON.
    """
    if len(text) > limits.json_bytes:
        raise PayloadTooLargeError(
            f"The JSON is {len(text)} bytes; at most {limits.json_bytes} are accepted. Send tensors as binary data."
        )
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        hint = " JSON has no NaN and no Infinity: send such numbers as binary data." * bool(_NOT_JSON.search(text))
        raise InvalidTensorError(f"The body is not valid JSON: {error}.{hint}") from error


def split(body: bytes, header_length: int | None, limits: Limits) -> tuple[dict[str, Any], memoryview | None]:
    """Returns the JSON header and the bytes after it; None without a header length.

    Raises:
        InvalidTensorError: the header is not a JSON object of that length.
        PayloadTooLargeError: the body or its header are over `limits`.
    """
    if len(body) > limits.body_bytes:
        raise PayloadTooLargeError(f"The body is {len(body)} bytes; at most {limits.body_bytes} are accepted.")
    view = memoryview(body)
    if header_length is not None and not 0 < header_length <= len(body):
        raise InvalidTensorError(
            f"The inference header is said to be {header_length} bytes of a body of {len(body)}; give the "
            "length of the JSON at the body's start."
        )
    head = parse_json(view[:header_length], limits)
    if not isinstance(head, dict):
        raise InvalidTensorError(f"The body's JSON is {shown(head)}; V2 takes an object with 'inputs' or 'outputs'.")
    return head, None if header_length is None else view[header_length:]


class Head(NamedTuple):
    """The JSON header of a message, and the tensors that it lists; must not be changed."""

    values: dict[str, Any]
    tensors: tuple[DescribedTensor, ...]


_heads: dict[tuple[bytes, str, Limits], Head] = {}


def read_head(
    kind: str, key: str, body: bytes, header_length: int | None, limits: Limits
) -> tuple[Head, memoryview | None]:
    """Returns the header of a body and the bytes after it; see `split` and `described_tensors`.

    Clients send the same small header with every tensor of one model, so the latest ones without data are remembered.
    """
    known = None
    if header_length is not None and 0 < header_length <= len(body) <= limits.body_bytes:
        known = (body[:header_length], key, limits) if header_length <= _REMEMBERED_BYTES else None
        if known is not None and (head := _heads.get(known)) is not None:
            return head, memoryview(body)[header_length:]
    values, tail = split(body, header_length, limits)
    head = Head(values, tuple(described_tensors(kind, key, values.get(key), limits)))
    if known is not None and all("data" not in each.entry for each in head.tensors):
        if len(_heads) >= _REMEMBERED_HEADS:
            _heads.clear()
        _heads[known] = head
    return head, tail


def assemble(head: dict[str, Any], kind: str, key: str, entries: list[tuple[Tensor, bool]]) -> Encoded:
    """Returns the body of `head` with the tensors of `entries` added under `key`.

    Args:
        head: the header without the tensors.
        kind: "Input" or "Output", for messages.
        key: "inputs" or "outputs".
        entries: each tensor, and whether it travels as raw bytes.

    Raises:
        InvalidTensorError: a tensor cannot be encoded in this form.
    """
    described: list[dict[str, Any]] = []
    blobs: list[bytes | memoryview] = []
    for tensor, binary in entries:
        entry: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
        }
        if binary:
            blob = tensors.to_binary(kind, tensor)
            entry["parameters"] = {"binary_data_size": len(blob)}
            blobs.append(blob)
        else:
            entry["data"] = tensors.to_json(f"{kind} {shown(tensor.name)}", tensor)
        described.append(entry)
    head[key] = described
    text = orjson.dumps(head, option=orjson.OPT_SERIALIZE_NUMPY)
    if not blobs:
        return Encoded(text, None)
    # JSON may end in spaces. They align the first tensor to 8 bytes, so that it is read without a copy.
    text += b" " * (-len(text) % 8)
    return Encoded(b"".join([text, *blobs]), len(text))


def decode_tensors(key: str, listed: Iterable[DescribedTensor], tail: memoryview | None) -> tuple[Tensor, ...]:
    """Decodes tensors from JSON or from `tail`, up to its end.

    Args:
        key: "inputs" or "outputs", for messages.
        listed: as the header lists them.
        tail: the bytes after the header.

    Raises:
        InvalidTensorError: an entry, or the bytes after the header, are not valid V2.
    """
    found: dict[str, Tensor] = {}
    offset = 0
    for described in listed:
        where, entry = described.where, described.entry
        size = _binary_size(where, entry, tail, offset)
        if size is None or tail is None:
            array = tensors.from_json(where, described.datatype, described.shape, entry.get("data"))
        else:
            array = tensors.from_binary(where, described.datatype, described.shape, tail[offset : offset + size])
            offset += size
        found[described.name] = Tensor(described.name, array)
    if tail is not None and offset != len(tail):
        raise InvalidTensorError(
            f"{len(tail) - offset} bytes follow the last binary tensor; the 'binary_data_size' of all "
            f"{key} must add up to the {len(tail)} bytes after the JSON header."
        )
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class DescribedTensor:
    """The description of a tensor without its data; `where` is its name in error messages."""

    where: str
    name: str
    datatype: str
    shape: tuple[int, ...]
    entry: dict[str, Any]


def described_tensors(kind: str, key: str, entries: object, limits: Limits) -> Iterator[DescribedTensor]:
    """Yields the tensors that a message lists; each is checked against the limits before its data is read.

    Args:
        kind: "Input" or "Output", for messages.
        key: "inputs" or "outputs", for messages.
        entries: objects with `name`, `datatype` and `shape`.
        limits: for all tensors together.

    Raises:
        InvalidTensorError: an entry is not valid V2.
        PayloadTooLargeError: a declared size is over `limits`.
    """
    if not isinstance(entries, list) or not entries:
        found_there = "missing" if entries is None else shown(entries)
        raise InvalidTensorError(f"'{key}' is {found_there}; give an array of at least one tensor.")
    if len(entries) > limits.tensors:
        raise PayloadTooLargeError(f"'{key}' has {len(entries)} tensors; at most {limits.tensors} are accepted.")
    names: set[str] = set()
    elements = byte_elements = 0
    for position, entry in enumerate(entries):
        name = name_of(entry, f"{kind} {position}")
        where = f"{kind} {shown(name)}"
        if name in names:
            raise InvalidTensorError(f"{where} is there twice; names must be unique.")
        names.add(name)
        datatype = entry.get("datatype")
        if not isinstance(datatype, str) or datatype not in DATATYPES:
            raise InvalidTensorError(f"{where} has datatype {shown(datatype)}; use one of {', '.join(DATATYPES)}.")
        shape = tensors.parse_shape(where, entry.get("shape"), limits)
        elements += math.prod(shape)
        byte_elements += math.prod(shape) if datatype == "BYTES" else 0
        if elements > limits.elements or byte_elements > limits.byte_elements:
            raise PayloadTooLargeError(
                f"{where} brings the message over {limits.elements} elements, or over "
                f"{limits.byte_elements} of BYTES; send fewer rows at a time."
            )
        yield DescribedTensor(where, name, datatype, shape, entry)


def input_parameters(where: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Returns the parameters of an input.

    Raises:
        InvalidTensorError: they are not an object, or have one that must not be ignored.
    """
    parameters = object_at(entry, "parameters", where)
    for key, instead in _REFUSED_INPUT.items():
        if key in parameters:
            raise InvalidTensorError(f"{where} asks for '{key}', which is not offered; {instead}.")
    return parameters


def _binary_size(where: str, entry: dict[str, Any], tail: memoryview | None, offset: int) -> int | None:
    parameters = input_parameters(where, entry)
    size = parameters.get("binary_data_size")
    if size is None:
        if entry.get("data") is None:
            raise InvalidTensorError(f"{where} has neither 'data' nor 'binary_data_size'; give one of them.")
        return None
    if type(size) is not int or size < 0:
        raise InvalidTensorError(f"{where} has 'binary_data_size' {shown(size)}; give a number of bytes.")
    if entry.get("data") is not None:
        raise InvalidTensorError(f"{where} has both 'data' and 'binary_data_size'; give only one of them.")
    if tail is None:
        raise InvalidTensorError(
            f"{where} has 'binary_data_size', but the length of the JSON header did not come with the body; "
            "send it as Inference-Header-Content-Length."
        )
    if size > len(tail) - offset:
        raise InvalidTensorError(
            f"{where} has 'binary_data_size' {size}, but {len(tail) - offset} bytes are left in the body; "
            "send all of it, or correct the size."
        )
    return size


def name_of(entry: object, where: str) -> str:
    """Returns the name of an entry of `inputs` or `outputs`.

    Raises:
        InvalidTensorError: it has no name.
    """
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not name:
        raise InvalidTensorError(f"{where} is {shown(entry)}; it must be an object with a 'name'.")
    return name


def object_at(holder: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """Returns an optional object inside another, empty if absent.

    Raises:
        InvalidTensorError: the value is not an object.
    """
    value = holder.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidTensorError(f"{where} has '{key}' {shown(value)}; it must be an object.")
    return value
