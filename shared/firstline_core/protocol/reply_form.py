"""Responses that differ only in their ids, their time and their numbers: written once, filled in from then on.

The first response of a kind is written by `oip.encode_response`, with marks in place of what changes; cut at the marks
it is the form of all others of its kind. So a form says nothing that the encoder does not say.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

import numpy as np
import orjson

from firstline_core.protocol.framing import Encoded
from firstline_core.types import Answer, Array, Attempt, InferRequest, InferResponse

_FORMS = 1024
_ALIGNMENT = 8
# What orjson writes for NaN and infinity.
_NOT_FINITE = b"null"

Kind = tuple[object, ...]
"""All that a response says beside what changes from one to the next."""


class Marks(NamedTuple):
    """What stands where a form is filled in; nobody can guess them, so that nothing else looks like one."""

    request_id: str
    id: str
    ms: float


MARKS = Marks(secrets.token_hex(16), secrets.token_hex(16), float(secrets.randbits(40)) + 0.125)


class Form(NamedTuple):
    """A response's pieces: before its `id`, its `request_id`, its milliseconds, and after. Of JSON, before its data."""

    pieces: tuple[bytes, ...]
    binary: bool


_forms: dict[Kind, Form | None] = {}


def kind_of(request: InferRequest, response: InferResponse) -> Kind | None:
    """The kind of a response; None where it is one of its own.

    One output of numbers, one attempt, and nothing that only some answers say.
    """
    answer = response.answer
    if answer is None or len(response.outputs) != 1 or len(answer.attempts) != 1:
        return None
    if answer.contract is not None or answer.rows or answer.changed is not None or answer.confidence is not None:
        return None
    tensor, attempt = response.outputs[0], answer.attempts[0]
    array = tensor.array
    if array.dtype.kind not in "fiu":
        return None
    for output in request.outputs:
        if output.classification:
            return None
    return (
        (response.model, response.version, bool(response.id), tensor.name, array.dtype.char, array.shape),
        (request.outputs, request.binary_output, answer.model_digest, answer.tier, answer.status, answer.reason),
        (answer.certified, answer.durable, attempt.tier, attempt.outcome),
    )


def known(kind: Kind) -> bool:
    """Whether it was seen whether this kind has a form."""
    return kind in _forms


def form_of(kind: Kind) -> Form | None:
    """The form of a kind; None where it has none, or none is known."""
    return _forms.get(kind)


def filled(kind: Kind, response: InferResponse) -> Encoded | None:
    """A response in the form of its kind; None where it has none, or the encoder has to say what is wrong."""
    form = _forms.get(kind)
    answer = response.answer
    if form is None or answer is None:
        return None
    return fill(form, response.id, answer.request_id, answer.attempts[0].ms, response.outputs[0].array)


def fill(form: Form, identifier: str, request_id: str, ms: float, array: Array) -> Encoded | None:
    """A form with what changes; None where the encoder has to say what is wrong.

    Args:
        form: of a kind.
        identifier: the caller's own `id`; "" where its kind has none.
        request_id: the answer's.
        ms: that the only attempt took.
        array: the output, of the kind's shape and dtype.
    """
    before, middle, after, end = form.pieces[-4:]
    start = form.pieces[0] + orjson.dumps(identifier) if identifier else b""
    head = b"%b%b%b%b%b%b" % (start, before, orjson.dumps(request_id), middle, orjson.dumps(ms), after)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    if not form.binary:
        data = orjson.dumps(array.reshape(-1), option=orjson.OPT_SERIALIZE_NUMPY)
        return None if _NOT_FINITE in data else Encoded(head + data + end, None)
    head += end
    head += b" " * (-len(head) % _ALIGNMENT)
    return Encoded(head + array.tobytes(), len(head))


def marked(response: InferResponse) -> InferResponse:
    """The response with marks in place of what changes."""
    answer = response.answer
    assert answer is not None  # noqa: S101 (`kind_of` looked)
    attempt = answer.attempts[0]
    return InferResponse(
        model=response.model,
        version=response.version,
        outputs=response.outputs,
        id=MARKS.id if response.id else "",
        answer=Answer(
            request_id=MARKS.request_id,
            status=answer.status,
            certified=answer.certified,
            durable=answer.durable,
            tier=answer.tier,
            reason=answer.reason,
            confidence=None,
            model_digest=answer.model_digest,
            attempts=(Attempt(attempt.tier, attempt.outcome, MARKS.ms),),
        ),
    )


def learn(kind: Kind, response: InferResponse, encoded: Encoded) -> None:
    """Keeps the form of a kind, as the encoder wrote its marked response; or that it has none."""
    if len(_forms) >= _FORMS:
        _forms.pop(next(iter(_forms)), None)
    array = response.outputs[0].array
    if encoded.header_length is None:
        data = orjson.dumps(np.ascontiguousarray(array).reshape(-1), option=orjson.OPT_SERIALIZE_NUMPY)
    else:
        data = b""
    text = encoded.body[: encoded.header_length].rstrip(b" ")
    pieces: list[bytes] = []
    marks = [orjson.dumps(MARKS.id)] if response.id else []
    for mark in (*marks, orjson.dumps(MARKS.request_id), orjson.dumps(MARKS.ms)):
        piece, found, text = text.partition(mark)
        if not found:
            _forms[kind] = None
            return
        pieces.append(piece)
    after, found, end = text.partition(b'"data":' + data) if data else (text, b"", b"")
    if data and not found:
        _forms[kind] = None
        return
    pieces += [after + b'"data":' if data else after, end]
    _forms[kind] = Form(tuple(pieces), encoded.header_length is not None)
