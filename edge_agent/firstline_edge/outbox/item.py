"""A promise that waits in the outbox, and its form on disk: the V2 binary bodies that also travel, sealed.

The two bodies of an item have a seal each, so that damage to the request still leaves the answer that was given. A
seal also covers the columns that identify its body. The times are part of an index too, which SQLite compares when the
outbox is opened.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Annotated

import msgspec
import orjson
from msgspec import Meta, structs

from firstline_core.errors import IntegrityError, LinkDownError
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import (
    Encoded,
    Origin,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from firstline_core.storage.seals import DECODING_ERRORS, Seal
from firstline_core.types import InferRequest, InferResponse, ModelVersion, Reason, Status, Tier

# The agent reads back what it accepted and wrote, whatever limits are set by then.
_NO_LIMITS = Limits(**{field.name: 1 << 62 for field in fields(Limits)})

ITEM_OVERHEAD_BYTES = 512
"""Estimated size of a promise's other columns and its share of the indexes."""

_HEADER_LENGTH = struct.Struct(">i")
_REQUEST = "request"
PROVISIONAL, ANSWER = "provisional", "answer"
"""The kinds of answers: one that was given with a promise, and one that ended a promise."""


@dataclass(frozen=True, slots=True)
class OutboxItem:
    """A promise of a correction.

    Args:
        request: the rows to send, with `request_id` and `principal`; its deadline has passed and is not stored.
        rows: their positions in the answer.
        provisional: the answer already given, all rows.
        created_wall_s: when the promise was made.
    """

    request: InferRequest
    rows: tuple[int, ...]
    provisional: InferResponse
    created_wall_s: float

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def model(self) -> ModelVersion:
        return self.request.model, self.request.version

    @property
    def may_have_reached_gateway(self) -> bool:
        """Whether the gateway may have received the request before: an attempt ended otherwise than by the link."""
        answer = self.provisional.answer
        return answer is not None and any(
            attempt.tier is Tier.CLOUD and attempt.outcome != LinkDownError.code for attempt in answer.attempts
        )


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item as columns of `items`."""

    request_id: str
    principal: str
    model: str
    version: str
    rows: str
    request: bytes
    provisional: bytes
    reached_gateway: bool
    created_wall_s: float

    @property
    def size_bytes(self) -> int:
        """Size in bytes, as `database.ITEM_BYTES`."""
        return len(self.request) + len(self.provisional) + len(self.rows) + ITEM_OVERHEAD_BYTES


@contextmanager
def _decoding() -> Iterator[None]:
    try:
        yield
    except DECODING_ERRORS as error:
        raise IntegrityError(f"Its columns are not as they were written: {error}.") from error


def pack(item: OutboxItem, created_wall_s: float, seal: Seal) -> StoredItem:
    """Returns the item in its form on disk, with this time instead of its own.

    Raises:
        InvalidTensorError: an input or output that V2 cannot carry.
    """
    request = _framed(encode_request(structs.replace(item.request, deadline_s=None), binary=True, traced=True))
    request_id, principal = item.request_id, item.request.principal
    (model, version), rows = item.model, orjson.dumps(item.rows).decode()
    return StoredItem(
        *(request_id, principal, model, version, rows),
        seal.close(request, _about(_REQUEST, request_id, principal, model, version, rows)),
        seal.close(pack_response(item.provisional), _about(PROVISIONAL, request_id, principal)),
        item.may_have_reached_gateway,
        created_wall_s,
    )


@_decoding()
def unpack(stored: StoredItem, seal: Seal) -> OutboxItem:
    """Returns the item from its form on disk.

    Raises:
        FirstlineError: the bytes are not what `pack` wrote.
    """
    request_id, principal, model = stored.request_id, stored.principal, stored.model
    about = _about(_REQUEST, request_id, principal, model, stored.version, stored.rows)
    header_length, body = _unframed(seal.open(stored.request, about))
    request = decode_request(
        model,
        body,
        header_length,
        Origin(principal=principal, trust_request_id=True, limits=_NO_LIMITS),
        version=stored.version,
    )
    provisional = open_answer(stored.provisional, PROVISIONAL, request_id, principal, seal)
    rows = msgspec.json.decode(stored.rows, type=tuple[Annotated[int, Meta(ge=0)], ...])
    if len(rows) != request.rows:
        raise IntegrityError(f"It has {len(rows)} positions for {request.rows} rows.")
    return OutboxItem(request, rows, provisional, stored.created_wall_s)


def seal_answer(packed: bytes, request_id: str, principal: str, seal: Seal) -> bytes:
    """Seals a packed answer that ended a promise, with its id and principal."""
    return seal.close(packed, _about(ANSWER, request_id, principal))


@_decoding()
def open_answer(sealed: bytes, kind: str, request_id: str, principal: str, seal: Seal) -> InferResponse:
    """Returns an answer of a kind from its form on disk.

    Raises:
        FirstlineError: the bytes are not what `pack` or `seal_answer` made.
    """
    header_length, body = _unframed(seal.open(sealed, _about(kind, request_id, principal)))
    return decode_response(body, header_length, _NO_LIMITS)


def _about(*fields: str) -> bytes:
    return orjson.dumps(fields)


def _framed(encoded: Encoded) -> bytes:
    """Returns a body with the length of its JSON header before it."""
    return _HEADER_LENGTH.pack(-1 if encoded.header_length is None else encoded.header_length) + encoded.body


def _unframed(framed: bytes) -> tuple[int | None, bytes]:
    (length,) = _HEADER_LENGTH.unpack_from(framed)
    return None if length < 0 else length, framed[_HEADER_LENGTH.size :]


def pack_response(response: InferResponse) -> bytes:
    """Encodes an answer with all its outputs in binary, so that NaN and raw bytes survive."""
    everything = InferRequest(model=response.model, inputs=(), request_id="", binary_output=True)
    return _framed(encode_response(everything, response))


def expire(provisional: InferResponse, reason: Reason | None = None, refusal: str = "") -> InferResponse:
    """Returns the provisional answer marked as expired: its waiting rows will not be corrected.

    Args:
        provisional: the answer already given.
        reason: why no correction comes; None keeps the reason of each row.
        refusal: the gateway's, see `Answer`; "" keeps an earlier one.
    """
    answer = provisional.answer
    if answer is None:
        return provisional
    rows = tuple(
        structs.replace(row, status=Status.EXPIRED, reason=reason or row.reason)
        if row.status is Status.PROVISIONAL
        else row
        for row in answer.rows
    )
    expired = structs.replace(
        answer, status=Status.EXPIRED, reason=reason or answer.reason, rows=rows, refusal=refusal or answer.refusal
    )
    return structs.replace(provisional, answer=expired)
