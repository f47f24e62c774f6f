"""Requests as a device escalates them, the gateway's answers, and links that behave as a test says."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import numpy as np

from firstline_core.ids import new_request_id
from firstline_core.types import (
    Answer,
    Attempt,
    InferRequest,
    InferResponse,
    Privacy,
    Reason,
    RowAnswer,
    Status,
    Tensor,
    Tier,
)

T = TypeVar("T")


def request(rows: int = 1, *, request_id: str = "", **fields: Any) -> InferRequest:
    """`rows` encoded images for the digits model, version 1."""
    images = np.array([b"image %d" % row for row in range(rows)], dtype=np.object_)
    fields = {"model": "digits", "version": "1", "principal": "local", "privacy": Privacy.ANY} | fields
    return InferRequest(inputs=(Tensor("image", images),), request_id=request_id or new_request_id(), **fields)


def row(status: Status) -> RowAnswer:
    tier = Tier.CLOUD if status is Status.FINAL else Tier.EDGE
    return RowAnswer(tier, Reason.UNCERTAIN, status, certified=False, confidence=None, model_digest="d" * 64)


def response(
    to: InferRequest, status: Status = Status.FINAL, *, value: float = 0.5, rows: int = 0, classes: int = 10
) -> InferResponse:
    """An answer whose probabilities are all `value`."""
    count = rows or to.rows
    tier = Tier.CLOUD if status is Status.FINAL else Tier.EDGE
    reason = Reason.UNCERTAIN if status is Status.FINAL else Reason.LINK_DOWN
    answer = Answer(
        request_id=to.request_id,
        status=status,
        certified=status is Status.FINAL,
        durable=status is Status.PROVISIONAL,
        tier=tier,
        reason=reason,
        confidence=0.4,
        model_digest="f" * 64,
        attempts=(Attempt(tier, "ok", 1.5),),
        rows=tuple(row(status) for _ in range(count)) if count > 1 else (),
    )
    probabilities = np.full((count, classes), value, dtype=np.float32)
    return InferResponse(to.model, to.version, (Tensor("probabilities", probabilities),), id=to.id, answer=answer)


Behaviour = Callable[[InferRequest, float], Awaitable[InferResponse]]


class ScriptedLink:
    """A link that does what `answer` says, and whose far side lives while `alive` holds."""

    def __init__(self, name: str, answer: Behaviour | None = None) -> None:
        self.name = name
        self.address = f"{name}.example"
        self.in_turn = False
        self.answer = answer or self._succeed
        self.error: Exception | None = None
        self.probe_error: Exception | None = None
        self.calls: list[tuple[InferRequest, float]] = []
        self.probes = 0
        self.started = self.closed = False
        self.discarded = 0
        self.probe_wanted = asyncio.Event()

    async def _succeed(self, infer_request: InferRequest, _timeout_s: float) -> InferResponse:
        if self.error is not None:
            raise self.error
        return response(infer_request)

    async def start(self) -> None:
        self.started = True

    async def infer(self, request: InferRequest, timeout_s: float) -> InferResponse:
        self.calls.append((request, timeout_s))
        return await self.answer(request, timeout_s)

    async def probe(self, timeout_s: float) -> None:
        self.probes += 1
        if self.probe_error is not None:
            raise self.probe_error

    async def reconnect(self) -> None:
        pass

    async def discard_connections(self) -> None:
        self.discarded += 1

    async def close(self) -> None:
        self.closed = True


async def begun(coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Starts a task, and lets every task run until it waits for something outside."""
    task = asyncio.create_task(coroutine)
    await settle()
    return task


async def settle(turns: int = 20) -> None:
    """Lets every task run until it waits for something outside."""
    for _ in range(turns):
        await asyncio.sleep(0)
