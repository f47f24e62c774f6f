"""Heads of binary requests that come again: read once, known from then on.

A client says the same of every request: the tensors' names, datatypes and shapes, the outputs, its wishes. What that
means is kept by the head's bytes, so that most heads cost one look-up instead of some twenty microseconds. Three values
do change from request to request, `id` and the parameters `request_id` and `timeout`; they are taken out of the head
before it is looked up, and put back into what was found.

Nothing here decides what a head means: `oip.request_of` has read each that is known, and one that is not goes there.
"""

from __future__ import annotations

import re
import secrets
import sys
from typing import NamedTuple

import numpy as np
import orjson

from firstline_core.protocol.limits import Limits
from firstline_core.types import InferRequest, Tensor

_HEADS = 1024
_HEAD_BYTES = 4096
_SEEN = 8192

# Values that need no escapes, so that they mean the same wherever they stand.
_CHANGING = re.compile(rb'"(id|request_id|timeout)": ?(?:"([\w.-]{1,64})"|([1-9]\d{0,14}))', re.ASCII)
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
        request: as it was read the first time; its arrays, ids and deadline are that time's.
        inputs: of every request with this head.
        tail_bytes: that follow the head.
        limits: that it was held against.
    """

    request: InferRequest
    inputs: tuple[Input, ...]
    tail_bytes: int
    limits: Limits


class Asked(NamedTuple):
    """A head as it is looked up, and the values that change; "" and 0 where they are not there."""

    key: tuple[bytes, bool]
    id: str
    request_id: str
    timeout_us: int


class Plans:
    """Those of one process; bounded. From any thread: a plan that is lost is made again."""

    def __init__(self) -> None:
        self._plans: dict[tuple[bytes, bool], Plan] = {}
        self._seen: set[int] = set()

    def find(self, asked: Asked, tail_bytes: int, limits: Limits) -> Plan | None:
        """The plan of a head, where there is one for such a body."""
        plan = self._plans.get(asked.key)
        if plan is None or plan.tail_bytes != tail_bytes or plan.limits is not limits:
            return None
        return plan

    def learn(self, asked: Asked, head: bytes, request: InferRequest, tail_bytes: int, limits: Limits) -> None:
        """Keeps what a head means, once it has come twice: some clients never say the same."""
        mark = hash(asked.key)
        if mark not in self._seen:
            if len(self._seen) >= _SEEN:
                self._seen.clear()
            self._seen.add(mark)
            return
        if not _is_plain(request, tail_bytes) or not _is_understood(head):
            return
        if len(self._plans) >= _HEADS:
            self._plans.pop(next(iter(self._plans)), None)
        inputs, start = [], 0
        for tensor in request.inputs:
            array = tensor.array
            inputs.append(Input(tensor.name, array.dtype, array.shape, array.size, start))
            start += array.nbytes
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
    head = body[:header_length]
    if b'id":' not in head and b'"timeout"' not in head:
        return Asked((head, trusted), "", "", 0)
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
    )


def is_canonical(request_id: str) -> bool:
    """Whether this is a UUID as Firstline writes them."""
    return _UUID.fullmatch(request_id) is not None


def tensors(plan: Plan, body: bytes, header_length: int) -> tuple[Tensor, ...]:
    """The tensors of a body; views of it, copied only where they are misaligned."""
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
    for name in {found[1] for found in _CHANGING.finditer(head)}:
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
