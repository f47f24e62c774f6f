"""A promise that waits in the outbox, and its form on disk: the V2 binary bodies that also travel, sealed.

The two bodies of an item have a seal each, so that damage to the request still leaves the answer that was given. A
seal also covers the columns that identify its body. The other columns are part of an index too, which SQLite compares
when the outbox is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import orjson
from msgspec import structs

from firstline_core.errors import IntegrityError, LinkDownError, ProtocolError
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import Encoded, decode_request, decode_response, encode_request, encode_response
from firstline_core.storage.seals import DECODING_ERRORS, Seal
from firstline_core.types import InferRequest, InferResponse, Reason, Status, Tier
from firstline_edge.outbox.database import ITEM_OVERHEAD_BYTES

# The agent reads back what it accepted and wrote, whatever limits are set by then.
_ANY = 1 << 62
_NO_LIMITS = Limits(
    body_bytes=_ANY, json_bytes=_ANY, elements=_ANY, byte_elements=_ANY, rows=_ANY, tensors=_ANY, id_chars=_ANY
)

_REQUEST, _PROVISIONAL, _ANSWER = "request", "provisional", "answer"


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
    def reached_gateway(self) -> bool:
        """Whether the gateway received the request before the promise was made."""
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
    request_header: int | None
    provisional: bytes
    provisional_header: int | None
    reached_gateway: bool

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
    """Returns the item in its form on disk.

    Args:
        item: its `created_wall_s` is ignored.
        created_wall_s: when the promise was made, as it is stored.
        seal: closes it.

    Raises:
        InvalidTensorError: an input or output that V2 cannot carry.
    """
    request = encode_request(structs.replace(item.request, deadline_s=None), binary=True, traced=True)
    provisional = pack_response(item.provisional)
    stored = StoredItem(
        request_id=item.request.request_id,
        principal=item.request.principal,
        model=item.request.model,
        version=item.request.version,
        rows=orjson.dumps(item.rows).decode(),
        request=request.body,
        request_header=request.header_length,
        provisional=provisional.body,
        provisional_header=provisional.header_length,
        reached_gateway=item.reached_gateway,
    )
    return replace(
        stored,
        request=seal.close(stored.request, _about_request(stored, created_wall_s)),
        provisional=seal.close(
            stored.provisional, _about(_PROVISIONAL, stored.request_id, stored.principal, stored.provisional_header)
        ),
    )


@_decoding()
def unpack(stored: StoredItem, created_wall_s: float, seal: Seal) -> OutboxItem:
    """Returns the item from its form on disk.

    Raises:
        FirstlineError: the bytes are not what `pack` wrote.
    """
    request = decode_request(
        stored.model,
        seal.open(stored.request, _about_request(stored, created_wall_s)),
        stored.request_header,
        version=stored.version,
        principal=stored.principal,
        trust_request_id=True,
        limits=_NO_LIMITS,
    )
    provisional = unpack_provisional(
        stored.provisional, stored.provisional_header, stored.request_id, stored.principal, seal
    )
    return OutboxItem(request, _positions(stored.rows, request.rows), provisional, created_wall_s)


@_decoding()
def restamp_request(stored: StoredItem, seal: Seal, *, before_s: float, after_s: float) -> bytes:
    """Returns the request, sealed with another time.

    Raises:
        IntegrityError: the bytes are not what `pack` wrote.
    """
    return seal.close(seal.open(stored.request, _about_request(stored, before_s)), _about_request(stored, after_s))


@_decoding()
def unpack_provisional(
    body: bytes, header_length: int | None, request_id: str, principal: str, seal: Seal
) -> InferResponse:
    """Returns the answer that was given with the promise.

    Raises:
        FirstlineError: the bytes are not what `pack` wrote.
    """
    return unpack_response(seal.open(body, _about(_PROVISIONAL, request_id, principal, header_length)), header_length)


def seal_answer(encoded: Encoded, request_id: str, principal: str, stored_wall_s: float, seal: Seal) -> Encoded:
    """Seals a packed answer with its id, principal and time."""
    about = _about_answer(encoded.header_length, stored_wall_s, request_id, principal)
    return encoded._replace(body=seal.close(encoded.body, about))


@_decoding()
def restamp_answer(
    encoded: Encoded, request_id: str, principal: str, seal: Seal, *, before_s: float, after_s: float
) -> Encoded:
    """Returns the answer, sealed with another time.

    Raises:
        IntegrityError: the bytes are not what `seal_answer` made.
    """
    body = seal.open(encoded.body, _about_answer(encoded.header_length, before_s, request_id, principal))
    return seal_answer(encoded._replace(body=body), request_id, principal, after_s, seal)


@_decoding()
def unpack_answer(encoded: Encoded, stored_wall_s: float, request_id: str, principal: str, seal: Seal) -> InferResponse:
    """Returns the answer from its form on disk.

    Raises:
        FirstlineError: the bytes are not what `seal_answer` made.
    """
    about = _about_answer(encoded.header_length, stored_wall_s, request_id, principal)
    return unpack_response(seal.open(encoded.body, about), encoded.header_length)


def _about(kind: str, request_id: str, principal: str, header_length: int | None, *more: object) -> bytes:
    return orjson.dumps((kind, request_id, principal, header_length, *more))


def _about_request(stored: StoredItem, created_wall_s: float) -> bytes:
    more = (stored.model, stored.version, stored.rows, float(created_wall_s))
    return _about(_REQUEST, stored.request_id, stored.principal, stored.request_header, *more)


def _about_answer(header_length: int | None, stored_wall_s: float, request_id: str, principal: str) -> bytes:
    return _about(_ANSWER, request_id, principal, header_length, float(stored_wall_s))


def _positions(text: str, count: int) -> tuple[int, ...]:
    try:
        rows: Any = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"The positions of its rows are not JSON: {error}.") from error
    if not isinstance(rows, list) or len(rows) != count or not all(type(row) is int and row >= 0 for row in rows):
        raise ProtocolError(f"The positions of its rows are not {count} whole numbers.")
    return tuple(rows)


def pack_response(response: InferResponse) -> Encoded:
    """Encodes an answer with all its outputs in binary, so that NaN and raw bytes survive."""
    everything = InferRequest(model=response.model, inputs=(), request_id="", binary_output=True)
    return encode_response(everything, response)


def unpack_response(body: bytes, header_length: int | None) -> InferResponse:
    """Decodes an answer that `pack_response` wrote.

    Raises:
        ProtocolError: the bytes are not what it wrote.
    """
    return decode_response(body, header_length, _NO_LIMITS)


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
        answer,
        status=Status.EXPIRED,
        reason=reason or answer.reason,
        rows=rows,
        refusal=refusal or answer.refusal,
    )
    return structs.replace(provisional, answer=expired)
