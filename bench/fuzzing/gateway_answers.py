"""Answers of a gateway that an intermediary swapped or altered: a device accepts none that is not its request's.

Each input is a request and what came back for it: the genuine answer, that to another request, or either of them with
another id, digest, status, shape, datatype or values, and sometimes with damaged bytes. Other code checks again what
the device accepts.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
from msgspec.structs import replace

from bench.fuzzing.mutation import damaged
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.oip import decode_response, encode_response
from firstline_core.tasks.classification import Classification
from firstline_core.types import Answer, InferRequest, InferResponse, Reason, Status, Tensor, Tier
from firstline_edge.requests.full_answers import check_answer

_LABELS = 10
_TASK = Classification(tuple(map(str, range(_LABELS))))
_DIGESTS = ("a" * 64, "b" * 64, "")
_IDS = ("01890a5d-ac96-774b-bcce-b302099a8057", "01890a5d-ac96-774b-bcce-b302099a8058", "")
_LIMITS = Limits(body_bytes=65_536, json_bytes=32_768, elements=65_536)
_VALUES = (math.nan, math.inf, -math.inf, -0.1, -1e-3, 0.0, 0.9, 1.0, 1.06, 2.0, 1e30)


def make_answer(random: Random) -> tuple[InferRequest, bytes, int | None]:
    """Returns a request, and the body and header length of what came back."""
    rows = random.randint(1, 3)
    request = InferRequest("m", (Tensor("x", np.zeros((rows, 1), np.float32)),), _IDS[0], id=_IDS[0])
    request = replace(request, full_model_digest=_DIGESTS[0], binary_output=random.random() < 0.8)
    answered = request if random.random() < 0.6 else replace(request, request_id=_IDS[1], id=_IDS[1])
    response = _genuine(random, answered, rows)
    for _ in range(random.choice((0, 1, 1, 2))):
        response = _altered(random, response)
    if any(not np.isfinite(tensor.array).all() for tensor in response.outputs):
        request = replace(request, binary_output=True)
    encoded = encode_response(request, response)
    body = encoded.body
    if random.random() < 0.2:
        body = damaged(random, body, [body])
    return request, body, encoded.header_length


def read_answer(exchange: tuple[InferRequest, bytes, int | None]) -> InferResponse:
    """Returns an answer that the device accepts.

    Raises:
        ProtocolError: the device does not accept it.
        AssertionError: the device accepts it against the rules.
    """
    request, body, header_length = exchange
    response = decode_response(body, header_length, _LIMITS)
    check_answer(request, response, _TASK.declared(rounded=False, cut=False))
    answer = response.answer
    assert response.id == _IDS[0], f"another request's: {response.id}"
    assert answer is not None and answer.model_digest == _DIGESTS[0], f"another model's: {answer}"
    assert answer.status is Status.FINAL, "not final"
    rows: list[list[Any]] = response.output("probabilities").tolist()
    assert len(rows) == request.rows and all(len(row) == _LABELS for row in rows), "another shape"
    for row in rows:
        assert all(-1e-5 <= value <= 1.00001 for value in row), f"impossible values: {row}"
        assert 0.8499 <= math.fsum(row) <= 1.0501, f"sums to {math.fsum(row)}"
    return response


def _genuine(random: Random, request: InferRequest, rows: int) -> InferResponse:
    logits = np.array([[random.gauss(0, 3) for _ in range(_LABELS)] for _ in range(rows)])
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    if random.random() < 0.3:
        probabilities = np.floor(probabilities * 256) / 256  # in eight bits
    answer = Answer(
        request.request_id, Status.FINAL, True, False, Tier.CLOUD, Reason.REQUESTED, None, request.full_model_digest
    )
    outputs = (Tensor("probabilities", probabilities.astype(np.float32)),)
    return InferResponse("m", "1", outputs, id=request.id, answer=answer)


def _altered(random: Random, response: InferResponse) -> InferResponse:
    answer, array = response.answer, response.outputs[0].array.copy()
    match random.randrange(9):
        case 0:
            return replace(response, id=random.choice(_IDS))
        case 1:
            return replace(response, answer=None)
        case 2 if answer is not None:
            return replace(response, answer=replace(answer, model_digest=random.choice(_DIGESTS)))
        case 3 if answer is not None:
            return replace(response, answer=replace(answer, status=random.choice(list(Status))))
        case 4:
            array[random.randrange(len(array)), random.randrange(array.shape[1])] = random.choice(_VALUES)
        case 5:
            array[:] = random.choice(_VALUES)
        case 6:
            array = random.choice((array[:, 1:], array[:1], np.repeat(array, 2, axis=0), array.astype(np.float64)))
        case 7:
            array *= np.float32(random.choice((-1.0, 0.5, 1.01, 1.5, 10.0)))
        case _:
            return replace(response, outputs=(Tensor(random.choice(("logits", "probabilities")), array),))
    return replace(response, outputs=(Tensor(response.outputs[0].name, array),))
