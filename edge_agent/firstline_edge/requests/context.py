"""The context of one request between its arrival and its answer: its rows, their keys, and the models' outputs.

Each row is decided separately; in order, the rows make the answer. Pure.

A key names a computation, not a request: it holds no request id, no client id and no caller's preference, so that equal
rows share their results. The content of a row is hashed once, in full width; every key begins with that digest.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from firstline_core import processing
from firstline_core.clock import Clock
from firstline_core.routing.account import Denial
from firstline_core.types import (
    DATATYPES,
    Answer,
    Arrays,
    Attempt,
    InferRequest,
    InferResponse,
    Reason,
    RowAnswer,
    Status,
    Tensor,
    Tier,
    Wait,
)

if TYPE_CHECKING:
    from hashlib import _Hash

# Looking a member up in its enumeration takes as long as reading a clock.
_FIRST, _FINAL = Wait.FIRST, Status.FINAL
# From the caller outwards: a batch names the farthest tier that answered one of its rows.
_DISTANCE = {Tier.CACHE: 0, Tier.EDGE: 1, Tier.CLOUD: 2}
_FALLS_SHORT = (Reason.LINK_DOWN, Reason.DEADLINE, Reason.BUDGET, Reason.OUTBOX_FULL, Reason.CLOUD_ERROR)
_NOT_HELD: Mapping[str, Any] = MappingProxyType({"threshold": None})

_ELEMENTS_LIMIT = 2**31 - 1  # of a stored output: no real limit, because the output kept the limits when it was stored


class _StoredOutput(Struct, frozen=True, array_like=True):
    """A `ModelOutput` in the cache's file: each tensor as dtype, shape, and its bytes or its elements of type BYTES."""

    score: float | None
    value: float | None
    tensors: dict[str, tuple[str, tuple[Annotated[int, Meta(ge=0, le=_ELEMENTS_LIMIT)], ...], bytes | list[bytes]]]


_STORED = msgspec.msgpack.Decoder(_StoredOutput)
_DTYPES = {dtype.str: dtype for dtype in DATATYPES.values()}


class ModelOutput(Struct, frozen=True, eq=False):
    """The output of one model for one row.

    Args:
        outputs: the task's outputs, each of one row.
        score: the edge model's confidence; None for the full model.
        value: P(edge wrong and full right), the value of asking the full model; None if the bundle learned none.
    """

    outputs: Arrays
    score: float | None = None
    value: float | None = None

    def encode(self) -> bytes:
        """Returns the output as bytes, for `decode`."""
        tensors = {}
        for name, array in self.outputs.items():
            data = array.ravel().tolist() if array.dtype.hasobject else array.tobytes()
            tensors[name] = (array.dtype.str, array.shape, data)
        return msgspec.msgpack.encode(_StoredOutput(self.score, self.value, tensors))

    @staticmethod
    def decode(encoded: bytes) -> ModelOutput | None:
        """Returns the output that `encode` wrote; None for anything else."""
        try:
            stored = _STORED.decode(encoded)
            outputs = {
                name: _array(data, _DTYPES[dtype]).reshape(shape)
                for name, (dtype, shape, data) in stored.tensors.items()
            }
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
            return None
        return ModelOutput(outputs, stored.score, stored.value)


def _array(data: bytes | list[bytes], dtype: np.dtype[Any]) -> NDArray[Any]:
    if not dtype.hasobject:
        return np.frombuffer(data, dtype)  # type: ignore[arg-type]  # a list raises TypeError
    array = np.empty(len(data), object)
    array[:] = data
    return array


class Row(Struct, eq=False):
    """The state of one row while its request is in progress.

    Args:
        position: in the request.
        content: sha256 of the row in the inputs that the full model reads, from `content_digests`.
        edge_key: of the edge model's output in the cache, see `result_key`.
        edge: the edge model's output, once it ran or was found in the cache.
        edge_tier: CACHE if it was found there, EDGE if the model ran.
        group: of the output by which the row was decided, see `DeviceModel.group`.
        policy_reason: why the request alone, or the policy, chose its tier.
        output: the output for the caller.
        answer: which tier gave it, and the reason for the caller, which may differ from the policy's.
    """

    position: int
    content: bytes
    edge_key: bytes
    edge: ModelOutput | None = None
    edge_tier: Tier = Tier.EDGE
    group: str | None = None
    policy_reason: Reason = Reason.UNCERTAIN
    output: ModelOutput | None = None
    answer: RowAnswer | None = None

    @property
    def confidence(self) -> float | None:
        return self.edge.score if self.edge is not None else None

    @property
    def score(self) -> float:
        """The confidence for the policy; NaN if there is none."""
        edge = self.edge
        return math.nan if edge is None or edge.score is None else edge.score

    def accept_edge(
        self, reason: Reason, digest: str, status: Status = Status.FINAL, *, certified: bool = False
    ) -> None:
        """Answers the row with the edge model's output."""
        self.output = self.edge
        self.answer = RowAnswer(self.edge_tier, reason, status, certified, self.confidence, digest)

    def accept_full(self, output: ModelOutput, tier: Tier, reason: Reason, digest: str) -> None:
        """Answers the row with the full model's output, which is certified if its digest is known."""
        self.output = output
        self.answer = RowAnswer(tier, reason, _FINAL, bool(digest), self.confidence, digest)


class RequestContext(Struct, eq=False):
    """The state of one request in the cascade.

    Args:
        request: as the caller sent it.
        deadline_s: on the monotonic clock.
        inputs: of the request by name, in the manifest's order; empty until the model is found on this device.
        rows: the request's rows in order; empty until the model is found on this device.
        row_ms: the shortest measured time of one of its rows, by the edge variant; infinite without one.
        attempts: all tries so far.
        tier: the tier that was to answer last; None if the request was refused before any.
        reason: why that tier was to answer.
        cause: the failure that the edge answer replaces, in a sentence; "" if there was none.
        denials: by row position, why an escalation was not worth its price.
        shedding: why this device computes nothing at the moment; "" if it does.
        decision_record: thresholds and variant, for the decision log.
    """

    request: InferRequest
    deadline_s: float
    inputs: Arrays = {}
    rows: list[Row] = []
    row_ms: float = math.inf
    attempts: list[Attempt] = []
    tier: Tier | None = None
    reason: Reason | None = None
    cause: str = ""
    denials: dict[int, Denial] = {}
    shedding: str = ""
    decision_record: Mapping[str, Any] = _NOT_HELD

    def turn_to(self, tier: Tier, reason: Reason | None) -> None:
        """Notes which tier is to answer from now on, and why."""
        self.tier, self.reason = tier, reason

    def answer(self, version: str, *, durable: bool = False) -> InferResponse:
        """Returns the answer that the rows make together; each of them has been answered.

        Args:
            version: of the model that answered.
            durable: whether a correction was promised and stored.
        """
        request = self.request
        row_answers: list[RowAnswer] = []
        outputs: list[Arrays] = []
        for row in self.rows:
            if row.answer is not None and row.output is not None:
                row_answers.append(row.answer)
                outputs.append(row.output.outputs)
        refused = self.cause and any(row.reason is Reason.CLOUD_ERROR for row in row_answers)
        together = []
        for name, array in outputs[0].items():
            # Always copied: the cache holds them too, and the caller may do with them as they like.
            joined = array.copy() if len(outputs) == 1 else np.concatenate([each[name] for each in outputs])
            together.append(Tensor(name, joined))
        return InferResponse(
            model=request.model,
            version=version,
            outputs=tuple(together),
            id=request.id,
            answer=summarise(
                request.request_id, row_answers, self.attempts, durable=durable, refusal=self.cause if refused else ""
            ),
        )

    def log_record(self) -> Mapping[str, Any]:
        """Returns what the decision log records in addition to the answer; JSON-able."""
        waits_for_first = self.request.wait is _FIRST
        if not self.cause and not self.denials and not waits_for_first:
            return self.decision_record
        record = dict(self.decision_record)
        if self.cause:
            record["cause"] = self.cause
        if waits_for_first:
            record["wait"] = self.request.wait.value
        if self.denials:
            record["denied"] = [
                {"row": row, "value": one.value, "price": one.price, "cost": one.cost._asdict(), "short": one.short}
                for row, one in self.denials.items()
            ]
        return record


def attempt(clock: Clock, tier: Tier, outcome: str, started_s: float) -> Attempt:
    """Returns a try that ends now."""
    # As round(..., 3) does it, in a third of its time.
    return Attempt(tier, outcome, int((clock.monotonic_s() - started_s) * 1e6 + 0.5) / 1000)


def summarise(
    request_id: str, row_answers: Sequence[RowAnswer], attempts: Sequence[Attempt], *, durable: bool, refusal: str = ""
) -> Answer:
    """Returns the description of an answer of several rows.

    A row falls short if its edge answer replaces the full model's. The first such row gives the reason, because the
    caller must know it; provisional rows come first, and also give the status. Otherwise a row from the farthest tier
    that answered gives the reason.
    """
    if len(row_answers) == 1:  # most answers: this takes a seventh of the time
        (only,) = row_answers
        return Answer(
            request_id,
            only.status,
            only.certified,
            durable,
            only.tier,
            only.reason,
            only.confidence,
            only.model_digest,
            tuple(attempts),
            refusal=refusal,
        )
    farthest = max(row_answers, key=lambda row: _DISTANCE[row.tier])
    provisional = [row for row in row_answers if row.status is not _FINAL]
    short = [row for row in row_answers if row.reason in _FALLS_SHORT]
    decisive = next(chain(provisional, short), farthest)
    scores = [row.confidence for row in row_answers if row.confidence is not None]
    return Answer(
        request_id=request_id,
        status=decisive.status,
        certified=all(row.certified for row in row_answers),
        durable=durable,
        tier=farthest.tier,
        reason=decisive.reason,
        confidence=min(scores) if scores else None,
        model_digest=farthest.model_digest,
        attempts=tuple(attempts),
        rows=tuple(row_answers),
        refusal=refusal,
    )


def rows_of(inputs: Arrays, edge_names: Collection[str], full_names: frozenset[str], edge_digest: str) -> list[Row]:
    """Returns the rows of a request.

    Args:
        inputs: of the request, by name, in the manifest's order.
        edge_names: of the inputs that the edge model reads.
        full_names: of the inputs that the full model reads; without all of them it is not asked.
        edge_digest: of the edge model, see `EdgeModel.digest`; "" without one.
    """
    of_edge = contents = content_digests(inputs, edge_names)
    if full_names != {*edge_names} and inputs.keys() >= full_names:
        contents = content_digests(inputs, full_names)
    rows: list[Row] = []
    for position, content in enumerate(contents):
        rows.append(Row(position, content, result_key(of_edge[position], edge_digest)))
    return rows


def content_digests(inputs: Arrays, names: Collection[str]) -> list[bytes]:
    """Returns the sha256 of each row, over name, datatype, row shape and content of inputs, which are not copied.

    Every field is preceded by its length, so that two different rows never hash the same bytes. The digest of several
    inputs is that of their digests, in the order of `inputs`.

    Args:
        inputs: of a request, by name.
        names: of the inputs that count, of which there is at least one; others are ignored.
    """
    digests: list[list[bytes]] = []
    for name, array in inputs.items():
        if name not in names:
            continue
        if len(array) == 1:
            digests.append([_content_digest(name, array)])
        else:  # a slice, unlike an index, is an array whatever the number of axes
            digests.append([_content_digest(name, array[at : at + 1]) for at in range(len(array))])
    return (
        digests[0]
        if len(digests) == 1
        else [hashlib.sha256(_fields(*row)).digest() for row in zip(*digests, strict=True)]
    )


def result_key(content: bytes, answering_digest: str) -> bytes:
    """Returns the key under which a model's output for one row is cached.

    Args:
        content: the row's, from `content_digests`; always of one length, so that the two cannot be confused.
        answering_digest: of everything that computes the output: model, processing, and, if the bundle has them, its
            score and learned value. The key adds the generation of the processing, which it lacks.
    """
    return content + f"{processing.GENERATION} {answering_digest}".encode()


def flight_key(model: str, version: str, full_digest: str, content: bytes) -> bytes:
    """Returns the key under which equal rows on their way to a full model share one call.

    Args:
        model: of the request to the gateway; it identifies the full model of a bundle that names none.
        version: of the request to the gateway.
        full_digest: of the full model that the bundle names, or "".
        content: the row's, from `content_digests`.
    """
    return content + _fields(model.encode(), version.encode(), full_digest.encode())


def _content_digest(name: str, row: NDArray[Any]) -> bytes:
    dtype = row.dtype
    digest = _hashed_head(name, dtype, row.shape[1:]).copy()
    if dtype.hasobject:
        digest.update(_fields(*row.flat))
    else:
        digest.update(row if row.flags.c_contiguous else np.ascontiguousarray(row))  # type: ignore[arg-type]  # a buffer
    return digest.digest()


@functools.lru_cache(maxsize=64)
def _hashed_head(name: str, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> _Hash:
    """Returns the hash of what all rows of an input begin with, to be copied."""
    datatype = Tensor(name, np.empty(0, dtype)).datatype
    return hashlib.sha256(_fields(name.encode(), datatype.encode(), str(row_shape).encode()))


def _fields(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)
