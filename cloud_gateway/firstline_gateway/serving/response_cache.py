"""Answers of earlier requests: a model is a function of its input, so the same input and digest have the same answer.

Off by default (`cache.limit_bytes`): most inputs are measurements that never come again. The key is a whole SHA-256 of
everything that can change the answer, and of the principal: the time of an answer must not reveal requests of others.
"""

from __future__ import annotations

from collections import OrderedDict
from operator import attrgetter

from firstline_core import processing
from firstline_core.types import Arrays, InferRequest, payload_bytes
from firstline_gateway.models.repository import ServedModel
from firstline_gateway.serving.request_digest import request_digest

_NAME = attrgetter("name")

# Overhead of an entry: its key, the array object, its place in two orders.
_ENTRY_BYTES = 400


class ResponseCache:
    """The answers that were used last; belongs to one event loop.

    Args:
        limit_bytes: of all together.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._answers: OrderedDict[bytes, Arrays] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: bytes) -> Arrays | None:
        """Returns the outputs of a key, read-only, or None."""
        found = self._answers.get(key)
        if found is not None:
            self._answers.move_to_end(key)
        return found

    def put(self, key: bytes, outputs: Arrays) -> None:
        """Stores an answer; the least recently used ones make room."""
        if key in self._answers or _size_bytes(outputs) > self._limit_bytes:
            return
        answer = {name: array.copy() for name, array in outputs.items()}  # not views of a whole batch
        for array in answer.values():
            array.flags.writeable = False
        self._answers[key] = answer
        self.size_bytes += _size_bytes(answer)
        while self.size_bytes > self._limit_bytes:
            self.size_bytes -= _size_bytes(self._answers.popitem(last=False)[1])


def answer_key(request: InferRequest, served: ServedModel) -> bytes | None:
    """Returns the key of the answer to a request, or None if it has to be computed.

    The answers of audits and deliveries are always computed.
    """
    if request.audit is not None or request.promised:
        return None
    read = sorted([tensor for tensor in request.inputs if tensor.name in served.input_names], key=_NAME)
    return request_digest((str(processing.GENERATION), served.digest, request.principal), read)


def _size_bytes(answer: Arrays) -> int:
    return payload_bytes(answer.values()) + _ENTRY_BYTES
