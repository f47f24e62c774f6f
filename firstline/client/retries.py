"""Calls that are repeated: until a job is answered, until an answer is final, or until a request succeeds. No I/O.

Each function yields what its caller has to do next, a call to send or a time to wait (seconds), and receives the call's
answer. The synchronous and the asynchronous client perform these steps in their own ways.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from firstline.client.calls import Answered, Call, answer, ending, long_polling
from firstline.client.results import Prediction
from firstline_core.errors import (
    CapacityError,
    DeadlineExceededError,
    FirstlineError,
    LinkError,
    NotReadyError,
    ProtocolError,
    RemoteTimeoutError,
)
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.types import InferResponse, Status

T = TypeVar("T")

Steps: TypeAlias = Generator[Call[Any] | float, Any, T]
"""Yields calls and waiting times (seconds), receives the calls' answers, and returns a result."""

DEFAULT_PATIENCE_S = 60.0
_POLL_S = 0.1
_FOLLOW_S, _FOLLOW_MAX_S = 0.02, 1.0
_BACKOFF_S = 0.1
_BACKOFF_MAX_S = 5.0
_RNG = random.Random()  # noqa: S311 (jitter)


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The result of one of many requests.

    Attributes:
        position: index of the request, from 0.
        response: None if there is an error.
        error: why there is no response.
    """

    position: int
    response: T | None = None
    error: FirstlineError | None = None

    def result(self) -> T:
        """Returns the response.

        Raises:
            FirstlineError: the request failed.
        """
        if self.response is None:
            raise self.error or FirstlineError("There is neither a response nor an error.")
        return self.response


def is_temporary(error: FirstlineError) -> bool:
    """Returns whether the same call may succeed later; a server repeats any other refusal.

    A proxy in front of a server that restarts answers 502, which is a plain `LinkError`.
    """
    return isinstance(error, CapacityError | LinkError) and not isinstance(error, DeadlineExceededError | ProtocolError)


def retried(position: int, build: Callable[[], Call[T]], patience_s: float) -> Steps[Outcome[T]]:
    """Repeats one of many requests while it fails with a temporary error.

    Args:
        position: index of the request.
        build: returns its call.
        patience_s: how long to retry (seconds); each wait is at least the server's `Retry-After`.
    """
    end_s, failures = time.monotonic() + patience_s, 0
    while True:
        try:
            return Outcome(position, (yield build()))
        except FirstlineError as error:
            if not is_temporary(error):
                return Outcome(position, error=error)
            wait_s = _retry_wait_s(error, failures)
            if time.monotonic() + wait_s > end_s:
                return Outcome(position, error=error)
        failures += 1
        yield wait_s


def _retry_wait_s(error: FirstlineError, failures: int) -> float:
    """Returns how long the server asks to wait, and a random time that grows with the failures (seconds)."""
    drawn_s = full_jitter_s(_RNG, failures, base_s=_BACKOFF_S, max_s=_BACKOFF_MAX_S)
    return (error.retry_after_s or 0.0) + drawn_s


def job_result(call: Call[T], job_id: str, *, timeout_s: float, silence_s: float) -> Steps[T]:
    """Repeats a long-polling call until a job is answered.

    Args:
        call: asks for the job's answer.
        job_id: id of the job.
        timeout_s: how long to wait (seconds).
        silence_s: how long the server may stay silent (seconds).
    """
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            left_s = end_s - time.monotonic()
            result: T = yield ending(long_polling(call, min(left_s, silence_s)), left_s)
            return result
        except FirstlineError as error:
            if not is_temporary(error):  # as is a deadline, which is the job's
                raise
            if time.monotonic() >= end_s:
                raise RemoteTimeoutError(
                    f"The job {job_id} was not answered within {timeout_s} s; ask again later. {error.message}"
                ) from error
        yield _POLL_S


def final_answer(request_id: str, *, timeout_s: float) -> Steps[InferResponse]:
    """Repeats a call while the answer with an id is provisional, or the server is overloaded or cannot be reached."""
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            latest: InferResponse = yield ending(answer(request_id), end_s - time.monotonic())
        except FirstlineError as error:
            if not is_temporary(error) or time.monotonic() >= end_s:
                raise
        else:
            if not provisional_id(latest):
                return latest
            if time.monotonic() >= end_s:
                raise RemoteTimeoutError(
                    f"The answer {request_id} was still provisional after {timeout_s} s; ask again later."
                )
        yield _POLL_S


def provisional_id(answered: InferResponse | Prediction) -> str:
    """Returns the id under which the final answer comes after a provisional one; "" for any other answer."""
    described = answered.answer
    return described.request_id if described is not None and described.status is Status.PROVISIONAL else ""


def once(call: Call[T]) -> Steps[T]:
    """Sends a call once."""
    result: T = yield call
    return result


def followed(call: Call[Answered], *, patience_s: float, silence_s: float, final: bool = True) -> Steps[Answered]:
    """Polls until the answer with an id is final: often at first, and every second later.

    Args:
        call: for the answer with an id; a gateway holds it until the job is answered.
        patience_s: how long to retry while the server is overloaded or cannot be reached (seconds).
        silence_s: how long the server may stay silent (seconds).
        final: whether to wait while the answer is provisional; otherwise only while there is none, as of a job.
    """
    reached_s, failures, wait_s = time.monotonic(), 0, _FOLLOW_S
    while True:
        try:
            answered: Answered = yield long_polling(call, silence_s)
            if not (final and provisional_id(answered)):
                return answered
        except NotReadyError:  # the job is not answered yet
            pass
        except FirstlineError as error:
            if not is_temporary(error) or time.monotonic() - reached_s >= patience_s:
                raise
            yield float(min(patience_s, _retry_wait_s(error, failures)))
            failures += 1
            continue
        reached_s, failures = time.monotonic(), 0
        yield wait_s
        wait_s = min(2 * wait_s, _FOLLOW_MAX_S)
