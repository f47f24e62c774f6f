"""Requests with tensors of BYTES whose shapes, sizes and lengths of elements contradict each other, or nearly fit."""

from __future__ import annotations

import math
import struct
from random import Random
from typing import Any

import orjson

from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import Origin, decode_request
from firstline_core.types import InferRequest

_LIMITS = Limits(body_bytes=65_536, json_bytes=32_768, elements=8192, byte_elements=4096, rows=256)
_SIZES: tuple[Any, ...] = (
    *(0, 0, 1, 1, 2, 3, 255, 256, 257, 4096, 4097, -1, 2**31, 2**32, 2**63),
    1.0,
    True,
    "1",
    None,
)


def make_bytes(random: Random) -> tuple[bytes, int | None]:
    """Returns a body, and the length of its JSON."""
    inputs, data = [], b""
    for number in range(random.choice((1, 1, 2, 3))):
        shape: list[Any] = [random.randint(1, 3) for _ in range(random.randint(1, 2))]
        elements = [random.randbytes(random.randint(0, 9)) for _ in range(math.prod(shape))]
        if random.random() < 0.2:
            shape = [random.choice(_SIZES) for _ in range(random.choice((0, 1, 2, 17)))]
        if random.random() < 0.1:
            elements = [b""] * random.choice((0, 255, 256, 257, 4097))
            shape = [len(elements)] if random.random() < 0.5 else [random.randint(1, 3), len(elements)]
        tensor: dict[str, Any] = {"name": f"x{number}", "datatype": "BYTES", "shape": shape}
        if random.random() < 0.3:
            tensor["data"] = _nested(random, elements)
        else:
            part = _joined(random, elements)
            tensor["parameters"] = {"binary_data_size": len(part) + random.choice((0,) * 9 + (-1, 1, 2**31, -(2**63)))}
            data += part
        inputs.append(tensor)
    head = orjson.dumps({"inputs": inputs})
    return head + data, len(head)


def read_bytes(message: tuple[bytes, int | None]) -> InferRequest:
    """Returns a request that is accepted.

    Raises:
        RequestError: it is refused.
        AssertionError: it is accepted against the limits or its own shape.
    """
    body, header_length = message
    request = decode_request("digits", body, header_length, Origin(now_s=1.0, trust_request_id=True, limits=_LIMITS))
    stated = orjson.loads(body[:header_length])["inputs"]
    assert [list(tensor.shape) for tensor in request.inputs] == [each["shape"] for each in stated], "another shape"
    elements = [element for tensor in request.inputs for element in tensor.array.reshape(-1)]
    assert len(elements) <= _LIMITS.rows, f"{len(elements)} elements"
    assert all(isinstance(element, bytes) for element in elements), "an element that is not bytes"
    assert sum(map(len, elements)) <= len(body), "more bytes than were sent"
    return request


def _joined(random: Random, elements: list[bytes]) -> bytes:
    """Returns the binary data, of which a length may be wrong."""
    wrong = random.randrange(len(elements)) if elements and random.random() < 0.2 else -1
    found = b""
    for position, element in enumerate(elements):
        length = len(element)
        if position == wrong:
            length = random.choice((length + 1, max(0, length - 1), 2**31, 2**32 - 1))
        found += struct.pack("<I", length) + element
    return found if random.random() < 0.9 else found[: -random.randint(1, 3)] + bytes(random.choice((0, 3)))


def _nested(random: Random, elements: list[bytes]) -> Any:
    """Returns the data as JSON, flat or in lists of lists."""
    values: list[Any] = [element.hex() for element in elements]
    if values and random.random() < 0.2:
        values[random.randrange(len(values))] = random.choice((0, None, [], ["a"], {}, "\ud7ff"))
    return values if random.random() < 0.7 else [values]
