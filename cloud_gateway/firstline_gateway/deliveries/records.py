"""What is kept of a delivery: whose it was, what it asked and what it was answered, within a caller's transaction."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlalchemy import Connection, delete, select

from firstline_core.errors import FirstlineError
from firstline_core.protocol.oip import decode_response, encode_response
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferRequest, InferResponse
from firstline_gateway.deliveries.tables import DELIVERIES
from firstline_gateway.store.statements import insert

log = logger(__name__)

ANSWER_LIMIT_BYTES = 64 * 1024
"""A longer answer is not kept: a repeat is run again, and not recorded again."""


class DeliveryKey(NamedTuple):
    """A device's own request id."""

    device: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Record:
    """A delivery that was answered.

    Args:
        content: SHA-256 of what it asked.
        answer: as V2 carries it, None where it is over the limit.
        answer_header: bytes of JSON at its start, None where all is JSON.
    """

    content: bytes
    answer: bytes | None
    answer_header: int | None

    def response(self) -> InferResponse | None:
        """The answer; None where it was not kept, or cannot be read."""
        if self.answer is None:
            return None
        try:
            return decode_response(self.answer, self.answer_header)
        except FirstlineError as error:
            log.error("recorded answer not readable", why=error.message)
            return None


def content_of(request: InferRequest) -> bytes:
    """SHA-256 of what a request asks: the model, and the inputs to the last bit; not how long it may take."""
    digest = hashlib.sha256()

    def add(part: bytes) -> None:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)

    for text in (request.model, request.version, request.full_model_digest):
        add(text.encode())
    for tensor in request.inputs:
        add(f"{tensor.name}\0{tensor.datatype}\0{tensor.shape}".encode())
        if tensor.array.dtype.hasobject:
            for element in tensor.array.flat:
                add(element)
        else:
            add(tensor.array.tobytes())
    return digest.digest()


def recorded(content: bytes, response: InferResponse) -> Record:
    """What is kept of an answer: all of it but how a contract stands, which changes."""
    if response.answer is not None:
        response = replace(response, answer=replace(response.answer, contract=None))
    everything = InferRequest(model=response.model, inputs=(), request_id="", binary_output=True)
    encoded = encode_response(everything, response)
    if len(encoded.body) > ANSWER_LIMIT_BYTES:
        return Record(content, None, None)
    return Record(content, encoded.body, encoded.header_length)


def find(connection: Connection, key: DeliveryKey) -> Record | None:
    """The record of a delivery that was answered."""
    table = DELIVERIES.c
    query = select(table.content, table.answer, table.answer_header).where(
        table.device == key.device, table.request_id == key.request_id
    )
    row = connection.execute(query).first()
    return None if row is None else Record(*row)


def put(connection: Connection, key: DeliveryKey, record: Record, *, service_s: float, limit: int) -> Record | None:
    """Keeps a delivery, and the newest `limit` of them.

    Returns:
        What is kept under the key already; None where this is new.
    """
    row = {
        "device": key.device,
        "request_id": key.request_id,
        "content": record.content,
        "service_s": service_s,
        "answer": record.answer,
        "answer_header": record.answer_header,
    }
    added = insert(connection, DELIVERIES).values(row).on_conflict_do_nothing().returning(DELIVERIES.c.sequence)
    sequence = connection.execute(added).scalar()
    if sequence is None:
        return find(connection, key)
    # By their order, which no clock can change.
    connection.execute(delete(DELIVERIES).where(DELIVERIES.c.sequence <= sequence - limit))
    return None


def forget(connection: Connection, before_s: float) -> None:
    """Forgets the deliveries that were answered before a time of service."""
    connection.execute(delete(DELIVERIES).where(DELIVERIES.c.service_s < before_s))
