"""Records of deliveries: the device, a digest of its request, and the answer; each call is in the caller's transaction.

A record is sealed with a checksum: SQLite does not notice a byte that the disk changed, and a device would accept the
answer as that of the full model. A damaged record counts as missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import orjson
from msgspec.structs import replace
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Double,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    delete,
    select,
    update,
)

from firstline_core.errors import FirstlineError, IntegrityError
from firstline_core.protocol.oip import decode_response, encode_response
from firstline_core.storage.seals import Seal
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferRequest, InferResponse
from firstline_gateway.serving.request_digest import request_digest
from firstline_gateway.store.schema import METADATA, SEQUENCE, insert

log = logger(__name__)

ANSWER_LIMIT_BYTES = 64 * 1024
"""A longer answer is not recorded: a repeat runs again, and is not recorded again."""

_SEAL = Seal()

DELIVERIES = Table(
    "deliveries",
    METADATA,
    Column("sequence", SEQUENCE, primary_key=True, autoincrement=True),
    Column("device", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Column("service_s", Double, nullable=False),
    Column("answer", LargeBinary),  # sealed
    Column("answer_header", Integer),
    UniqueConstraint("device", "request_id"),
    Index(None, "service_s"),
)


class DeliveryKey(NamedTuple):
    """The key of a delivery: a device, and its own request id."""

    device: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Record:
    """A delivery with an answer.

    Args:
        content: SHA-256 of the request; see `content_of`.
        answer: in the V2 format, or None if it exceeds the limit.
        answer_header: the bytes of JSON at its start, or None if all of it is JSON.
    """

    content: bytes
    answer: bytes | None
    answer_header: int | None

    def response(self) -> InferResponse | None:
        """Returns the answer, or None if it was not recorded or cannot be read."""
        if self.answer is None:
            return None
        try:
            return decode_response(self.answer, self.answer_header)
        except FirstlineError as error:
            log.error("recorded answer not readable", why=error.message)
            return None


def content_of(request: InferRequest) -> bytes:
    """Returns the SHA-256 of a request: its model and the exact inputs, without its deadline."""
    return request_digest((request.model, request.version, request.full_model_digest), request.inputs)


def recorded(content: bytes, response: InferResponse) -> Record:
    """Returns the record of an answer, without the state of the contract, which changes."""
    if response.answer is not None:
        response = replace(response, answer=replace(response.answer, contract=None))
    everything = InferRequest(model=response.model, inputs=(), request_id="", binary_output=True)
    encoded = encode_response(everything, response)
    if len(encoded.body) > ANSWER_LIMIT_BYTES:
        return Record(content, None, None)
    return Record(content, encoded.body, encoded.header_length)


def find(connection: Connection, key: DeliveryKey) -> Record | None:
    """Returns the record of a delivery, or None if it is missing or damaged."""
    table = DELIVERIES.c
    row = connection.execute(select(table.content, table.answer, table.answer_header).where(*_is(key))).first()
    if row is None:
        return None
    content, sealed, header = row
    try:
        answer = _SEAL.open(sealed or b"", _about(key, content, header))
    except IntegrityError as error:
        log.error("recorded delivery is damaged", device=key.device, request_id=key.request_id, why=error.message)
        return None
    return Record(content, answer or None, header)


def put(connection: Connection, key: DeliveryKey, record: Record, *, service_s: float, limit: int) -> Record | None:
    """Records a delivery, and deletes all but the newest `limit`.

    Returns:
        The record that exists under the key, or None if this one is new.
    """
    row = {
        "device": key.device,
        "request_id": key.request_id,
        "content": record.content,
        "service_s": service_s,
        "answer": _SEAL.close(record.answer or b"", _about(key, record.content, record.answer_header)),
        "answer_header": record.answer_header,
    }
    added = insert(connection, DELIVERIES).values(row).on_conflict_do_nothing().returning(DELIVERIES.c.sequence)
    sequence = connection.execute(added).scalar()
    if sequence is None:
        existing = find(connection, key)
        if existing is None:
            connection.execute(update(DELIVERIES).where(*_is(key)).values(row))
        return existing
    # By their order, which does not depend on a clock.
    connection.execute(delete(DELIVERIES).where(DELIVERIES.c.sequence <= sequence - limit))
    return None


def forget(connection: Connection, before_s: float) -> None:
    """Deletes the deliveries that were answered before a time of service."""
    connection.execute(delete(DELIVERIES).where(DELIVERIES.c.service_s < before_s))


def _is(key: DeliveryKey) -> tuple[ColumnElement[bool], ...]:
    return DELIVERIES.c.device == key.device, DELIVERIES.c.request_id == key.request_id


def _about(key: DeliveryKey, content: bytes, header: int | None) -> bytes:
    """Returns the other data that the seal of an answer covers."""
    return orjson.dumps((*key, content.hex(), header))
