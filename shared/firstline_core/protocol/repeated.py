"""Heads of requests that come again: read once, known from then on.

A client says the same of every request: the tensors' names, datatypes and shapes, the outputs, its wishes. What that
means is kept by the head's bytes, so that most heads cost one look-up instead of some twenty microseconds. Three values
do change from request to request, `id` and the parameters `request_id` and `timeout`; they are taken out of the head
before it is looked up, and put back into what was found. Of a body that is all JSON the head is what is left without
the numbers of its one tensor.

Nothing here decides what a head means: `oip.request_of` has read each that is known, and one that is not goes there.
"""

from __future__ import annotations

import re
import secrets
import sys
import threading
from typing import NamedTuple

import numpy as np
import orjson
from msgspec.structs import replace

from firstline_core.protocol import json_numbers
from firstline_core.protocol.limits import Limits
from firstline_core.types import InferRequest, Tensor

_HEADS = 1024
_HEAD_BYTES = 4096
_SEEN = 8192

# Values that need no escapes, so that they mean the same wherever they stand.
_CHANGING = re.compile(rb'"(id|request_id|timeout)": ?(?:"([\w.-]{1,64})"|([1-9]\d{0,14}))', re.ASCII)
_DATA = b'"data"'
AS_JSON = -1
_PLACE = rb'"\1":?'  # no JSON, so no head is taken for what stands for others
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Input(NamedTuple):
    """Where one tensor lies in the body; `start` counts from the end of the head."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    elements: int
    start: int


class Plan(NamedTuple):
    """What a head means.

    Args:
        request: as it was read the first time; its ids and deadline are that time's, its arrays have but a shape.
        inputs: of every request with this head.
        tail_bytes: that follow the head; `AS_JSON` where the numbers are JSON.
        limits: that it was held against.
    """

    request: InferRequest
    inputs: tuple[Input, ...]
    tail_bytes: int
    limits: Limits


class Asked(NamedTuple):
    """A head as it is looked up, and the values that change; "" and 0 where they are not there.

    `numbers` is the JSON array that was taken out of a body that is all JSON, `head` what is left of it.
    """

    key: tuple[bytes, bool]
    id: str
    request_id: str
    timeout_us: int
    head: bytes
    numbers: bytes = b""


class Plans:
    """Those of one process; bounded. From any thread: a plan that is lost is made again."""

    def __init__(self) -> None:
        self._plans: dict[tuple[bytes, bool], Plan] = {}
        self._seen: set[int] = set()
        self._learning = threading.Lock()

    def find(self, asked: Asked, tail_bytes: int, limits: Limits) -> Plan | None:
        """The plan of a head, where there is one for such a body."""
        plan = self._plans.get(asked.key)
        if plan is None or plan.tail_bytes != tail_bytes or plan.limits is not limits:
            return None
        return plan

    def learn(self, asked: Asked, request: InferRequest, tail_bytes: int, limits: Limits) -> None:
        """Keeps what a head means, once it has come twice: some clients never say the same."""
        mark = hash(asked.key)
        if mark not in self._seen:
            if len(self._seen) >= _SEEN:
                self._seen.clear()
            self._seen.add(mark)
            return
        plain = _is_one(request, asked.head) if asked.numbers else _is_plain(request, tail_bytes)
        if not plain or not _is_understood(asked.head):
            return
        inputs, shapes, start = [], [], 0
        for tensor in request.inputs:
            array = tensor.array
            inputs.append(Input(tensor.name, array.dtype, array.shape, array.size, start))
            # Its own would keep the whole body, for as long as the head is known.
            shapes.append(Tensor(tensor.name, np.broadcast_to(np.zeros((), array.dtype), array.shape)))
            start += array.nbytes
        request = replace(request, inputs=tuple(shapes))
        with self._learning:
            if len(self._plans) >= _HEADS:
                del self._plans[next(iter(self._plans))]
            self._plans[asked.key] = Plan(request, tuple(inputs), tail_bytes, limits)


def looked_up(body: bytes, header_length: int, *, trusted: bool) -> Asked | None:
    """How the head of a body is looked up; None where such a head is never known.

    Args:
        body: the head and what follows.
        header_length: of the head.
        trusted: whether its sender's word on ids is taken, which makes it mean something else.
    """
    if not 0 < header_length <= min(len(body), _HEAD_BYTES):
        return None
    return _asked(body[:header_length], b"", trusted=trusted)


def looked_up_json(body: bytes, *, trusted: bool) -> Asked | None:
    """How a body that is all JSON is looked up: without the numbers of its one tensor, where that is flat."""
    named = body.find(_DATA)
    begin = body.find(b"[", named)
    end = body.find(b"]", begin)
    if named < 0 or begin < 0 or end < 0 or body[named + len(_DATA) : begin].strip(b" :\n\t\r"):
        return None
    if begin + len(body) - end > _HEAD_BYTES or body.find(_DATA, end) >= 0:
        return None
    return _asked(body[: begin + 1] + body[end:], body[begin : end + 1], trusted=trusted)


def _asked(head: bytes, numbers: bytes, *, trusted: bool) -> Asked | None:
    if b'id":' not in head and b'"timeout"' not in head:
        return Asked((head, trusted), "", "", 0, head, numbers)
    values: dict[bytes, str] = {}
    for name, text, number in _CHANGING.findall(head):
        if name in values or (name == b"timeout") == bool(text):
            return None  # twice, or what it cannot be: for those who say what is wrong with it
        values[name] = (text or number).decode("ascii")
    key = _CHANGING.sub(_PLACE, head)
    return Asked(
        (key, trusted),
        values.get(b"id", ""),
        values.get(b"request_id", ""),
        int(values.get(b"timeout", "0")),
        head,
        numbers,
    )


def is_canonical(request_id: str) -> bool:
    """Whether this is a UUID as Firstline writes them."""
    return _UUID.fullmatch(request_id) is not None


def tensors(plan: Plan, asked: Asked, body: bytes, header_length: int) -> tuple[Tensor, ...]:
    """The tensors of a body; views of it, copied only where they are misaligned, or made of JSON numbers.

    Raises:
        InvalidTensorError: the JSON is none, or its numbers are not what the head says.
    """
    if asked.numbers:
        only = plan.request.inputs[0]
        return (Tensor(only.name, json_numbers.read(only, asked.numbers)),)
    found = []
    for name, dtype, shape, elements, start in plan.inputs:
        array = np.frombuffer(body, dtype, elements, header_length + start).reshape(shape)
        found.append(Tensor(name, array if array.flags.aligned else array.copy()))
    return tuple(found)


def _is_plain(request: InferRequest, tail_bytes: int) -> bool:
    """Whether every input is numbers that lie in the tail: BOOL's bits and BYTES' lengths are looked at each time."""
    return (
        sys.byteorder == "little"
        and all(tensor.array.dtype.kind in "iuf" and tensor.array.size for tensor in request.inputs)
        and sum(tensor.array.nbytes for tensor in request.inputs) == tail_bytes
    )


def _is_one(request: InferRequest, head: bytes) -> bool:
    """Whether the numbers that were taken out of the JSON are those of its only tensor, wherever they stood."""
    if len(request.inputs) != 1 or request.inputs[0].array.dtype.kind not in "iuf" or head.count(_DATA) != 1:
        return False
    token = secrets.token_hex(16)
    begin = head.find(b"[", head.find(_DATA))
    try:
        inputs = orjson.loads(head[: begin + 1] + orjson.dumps(token) + head[begin + 1 :])["inputs"]
    except orjson.JSONDecodeError:  # what was taken out was no whole array: it is nested
        return False
    return bool(inputs[0].get("data") == [token] and not inputs[0].get("parameters"))


def _is_understood(head: bytes) -> bool:
    """Whether the values that were taken out are those that V2 and Firstline mean by their names, wherever they stand.

    Each is put in its place as a number that nobody can know, and the head is read: they have to be where they belong,
    and everything else as it was.
    """
    tokens = {name: secrets.token_hex(16) for name in (b"id", b"request_id")}
    number = secrets.randbits(60) + 1

    def put(found: re.Match[bytes]) -> bytes:
        name = found[1]
        return b'"%s":%s' % (name, str(number).encode() if name == b"timeout" else f'"{tokens[name]}"'.encode())

    before, after = orjson.loads(head), orjson.loads(_CHANGING.sub(put, head))
    taken = {found[1] for found in _CHANGING.finditer(head)}
    parameters = before.get("parameters") or {}
    # Spelled in another way they stay in the head; what they mean still changes from one time to the next.
    if any(parameters.get(name.decode()) and name not in taken for name in (b"request_id", b"timeout")):
        return False
    for name in taken:
        holders = [value if name == b"id" else value.get("parameters") for value in (before, after)]
        if not all(isinstance(holder, dict) and name.decode() in holder for holder in holders):
            return False
        if holders[1][name.decode()] != (number if name == b"timeout" else tokens[name]):
            return False
        for holder in holders:
            del holder[name.decode()]
    return bool(before == after)


PLANS = Plans()
"""Of this process."""
