"""Sends one batch to the servers behind the gateway: retries on another server, hedges, and takes the first answer.

A batch may be sent twice, because servers run plain inference: ids, audits and promises are handled by this gateway
    alone.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple, Protocol

from firstline_core.clock import Clock
from firstline_core.errors import (
    CapacityError,
    DeadlineExceededError,
    EngineUnavailableError,
    FirstlineError,
    ForbiddenError,
    InferenceError,
    LinkDownError,
    LinkError,
    ModelMismatchError,
    NotReadyError,
    RequestError,
    RuntimeFailure,
    UnauthorizedError,
    UnknownModelError,
)
from firstline_core.protocol.http import headers_for
from firstline_core.protocol.http_client import HttpReply
from firstline_core.routing.quantiles import DecayedQuantiles
from firstline_core.routing.token_bucket import TokenBucket
from firstline_core.runtime.batch_times import size_of
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.trace import CURRENT
from firstline_core.types import Array, ModelKey
from firstline_gateway.executors.base import Probabilities
from firstline_gateway.executors.oip.dialects import FarModel
from firstline_gateway.executors.oip.endpoints import Endpoint, Endpoints

# A server reports itself that a deadline has passed; one that does not has failed.
_GRACE_S = 0.25
_MOST_SERVERS = 3
_RETRY_AFTER_S = 1.0
_QUANTILE = 0.95
# Below so many observations the 95th percentile is the longest of a few.
_LEAST_WEIGHT = 20.0
_HALF_LIFE_COUNT = 200.0
# Beyond what the percentile is known to (5 %), so that what always takes the same is not hedged.
_BEYOND = 1.1
# The slower answer's connection is closed; to make another one takes longer than less would bring.
_LEAST_S = 0.002
# Hedges saved up for one hiccup of one server.
_BURST = 5.0

log = logger(__name__)


class Transport(Protocol):
    """Sends requests to one server."""

    async def exchange(
        self, method: str, path: str, headers: dict[str, str], body: bytes, timeout_s: float
    ) -> HttpReply:
        """See `HttpClient.exchange`."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class Spent:
    """Processing time of this process for a batch, before sending and after the answer (seconds)."""

    input_s: float = 0.0
    output_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """A batch to be sent.

    Args:
        deadline_s: on the calls' clock; None means none.
        spent: gains the time for writing the request and reading the answer.
    """

    key: ModelKey
    model: FarModel
    rows: Array
    deadline_s: float | None
    spent: Spent


class _Failure(NamedTuple):
    error: FirstlineError
    elsewhere: bool  # whether to try another server


class Calls:
    """Sends batches to servers. Belongs to one event loop.

    Args:
        endpoints: the servers.
        transports: one for each server.
        hedging: when to send a batch to a second server.
        timeout_s: the longest that one server may take.
        clock: for all durations.

    Attributes:
        hedges: batches that were sent to a second server because the first was slow.
        retries: batches that were sent to another server because one had failed.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        transports: Mapping[Endpoint, Transport],
        hedging: Hedging,
        *,
        timeout_s: float,
        clock: Clock,
    ) -> None:
        self._endpoints = endpoints
        self._transports = transports
        self._hedging = hedging
        self._timeout_s = timeout_s
        self._clock = clock
        self.hedges = self.retries = 0
        self._tasks: set[asyncio.Task[Probabilities | _Failure]] = set()

    async def ask(self, work: Work) -> Probabilities:
        """Returns the first answer of a server.

        Raises:
            EngineUnavailableError: no server with the model answers.
            FirstlineError: the last server's error.
        """
        self._hedging.started()
        running: dict[asyncio.Task[Probabilities | _Failure], Endpoint] = {}
        tried: list[Endpoint] = []
        failures: list[tuple[Endpoint, FirstlineError]] = []

        def begin(*, free: bool = False) -> bool:
            endpoint = self._endpoints.choose(work.key, tried, free=free) if len(tried) < _MOST_SERVERS else None
            if endpoint is not None:
                tried.append(endpoint)
                endpoint.in_flight += 1
                task = asyncio.create_task(self._attempt(endpoint, work))
                self._tasks.add(task)
                task.add_done_callback(lambda ended: self._end(endpoint, ended))
                running[task] = endpoint
            return endpoint is not None

        begin()
        after_s = self._hedging.after_s(work.key, len(work.rows), self._clock.monotonic_s())
        slow = asyncio.ensure_future(self._clock.sleep(after_s)) if after_s is not None and running else None
        try:
            while running:
                waited_for: set[asyncio.Future[object]] = {*running} if slow is None else {*running, slow}  # type: ignore[arg-type]
                ended, _ = await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in running if task in ended]:
                    endpoint = running.pop(task)
                    if task.cancelled():  # by `close`
                        raise NotReadyError("This gateway is shutting down; send the request again.")
                    found = task.result()
                    if not isinstance(found, _Failure):
                        return found
                    if not found.elsewhere:
                        raise found.error
                    failures.append((endpoint, found.error))
                if slow is not None and slow in ended:
                    slow = None
                    self.hedges += bool(running) and self._may_hedge(work, tried) and begin(free=True)
                if not running and not self._late(work):
                    self.retries += begin()
        finally:
            for future in (*running, *([slow] if slow is not None else [])):
                future.cancel()
        raise self._refusal(work, failures)

    async def close(self) -> None:
        """Cancels all batches in progress and waits for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end(self, endpoint: Endpoint, task: asyncio.Task[Probabilities | _Failure]) -> None:
        self._tasks.discard(task)
        endpoint.in_flight -= 1

    def _may_hedge(self, work: Work, tried: list[Endpoint]) -> bool:
        if self._late(work) or self._endpoints.choose(work.key, tried, free=True) is None:
            return False
        return self._hedging.may(self._clock.monotonic_s())

    def _late(self, work: Work) -> bool:
        return work.deadline_s is not None and work.deadline_s <= self._clock.monotonic_s()

    async def _attempt(self, endpoint: Endpoint, work: Work) -> Probabilities | _Failure:
        began_s = self._clock.monotonic_s()
        timeout_s = self._timeout_s
        if work.deadline_s is not None:
            timeout_s = min(timeout_s, max(0.0, work.deadline_s - began_s) + _GRACE_S)
        rows = len(work.rows)
        try:
            encoding_s = perf_counter()
            encoded = work.model.encode(work.rows, work.deadline_s, began_s)
            encoding_s = perf_counter() - encoding_s
            headers, trace = headers_for(encoded), CURRENT.get()
            if trace is not None:
                headers |= trace.headers()
            reply = await self._transports[endpoint].exchange("POST", work.model.path, headers, encoded.body, timeout_s)
            reading_s = perf_counter()
            found = work.model.read(reply, rows)
            reading_s = perf_counter() - reading_s
        except asyncio.CancelledError:
            endpoint.outcomes["cut_off"] += 1
            now_s = self._clock.monotonic_s()
            self._hedging.waited(work.key, rows, now_s - began_s, now_s)
            raise
        except FirstlineError as error:
            failure = self._failed(endpoint, work.key, error)
            refused = not failure.elsewhere or isinstance(error, CapacityError | RequestError)
            endpoint.outcomes["refused" if refused else "failed"] += 1
            return failure
        endpoint.outcomes["answered"] += 1
        work.spent.input_s += encoding_s
        work.spent.output_s += reading_s
        now_s = self._clock.monotonic_s()
        self._hedging.answered(work.key, rows, now_s - began_s, now_s)
        self._endpoints.outliers.succeeded(endpoint, now_s)
        return found

    def _failed(self, endpoint: Endpoint, key: ModelKey, error: FirstlineError) -> _Failure:
        """Records a failure of a server, and decides whether to try another one."""
        now_s = self._clock.monotonic_s()
        match error:
            case UnknownModelError() | ModelMismatchError() | UnauthorizedError() | ForbiddenError():
                if endpoint.lacks(key, problem := f"{endpoint.url} does not answer for '{key.name}': {error.message}"):
                    log.error("server does not answer for a model", model=key.name, problem=problem)
                return _Failure(error, elsewhere=True)
            case NotReadyError():
                self._endpoints.lost(endpoint, f"{endpoint.url} takes no requests: {error.message}")
                return _Failure(error, elsewhere=True)
            case RequestError() | DeadlineExceededError() | RuntimeFailure():
                self._endpoints.outliers.succeeded(endpoint, now_s)
                return _Failure(error, elsewhere=False)
            case CapacityError():
                return _Failure(error, elsewhere=True)
            case LinkDownError() if not endpoint.answers:
                return _Failure(error, elsewhere=True)  # one event, however many requests it cut off
            case LinkDownError():
                self._endpoints.lost(endpoint, f"{endpoint.url} is away: {error.message}.")
        was_ejected = self._endpoints.outliers.ejected(endpoint, now_s)
        self._endpoints.outliers.failed(endpoint, now_s)
        if not was_ejected and self._endpoints.outliers.ejected(endpoint, now_s):
            left_s = self._endpoints.outliers.left_s(endpoint, now_s)
            log.warning("server left alone", server=endpoint.url, seconds=left_s, last=error.message)
        return _Failure(error, elsewhere=True)

    def _refusal(self, work: Work, failures: list[tuple[Endpoint, FirstlineError]]) -> FirstlineError:
        """Returns the caller's error once all servers have failed."""
        if self._late(work):
            return DeadlineExceededError("The request's deadline passed before a server answered; allow more time.")
        for _, error in failures:
            if isinstance(error, CapacityError) and not isinstance(error, NotReadyError):
                return error  # the server is busy, and says when to retry
        for endpoint, error in failures:
            if not isinstance(error, LinkError | CapacityError | RequestError):
                return InferenceError(f"{endpoint.url} failed on this request: {error.message}")
        problem = self._endpoints.trouble(work.key) or " ".join(
            f"{one.url}: {error.message}" for one, error in failures
        )
        return EngineUnavailableError(
            f"No server that runs model '{work.key.name}' answers; send the request again later. {problem}",
            retry_after_s=_RETRY_AFTER_S,
        )


class Hedging:
    """Decides when to send a batch to a second server: if it takes longer than most batches like it.

    Dean and Barroso, "The Tail at Scale" (CACM 2013): a second request that is sent once the first one has taken longer
    than the 95th percentile cuts the tail for a few percent more work. The share of all batches that may be sent twice
    is bounded: if everything becomes slow at once, hedges would add to the overload.

    Args:
        share: of all batches.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._budget = TokenBucket(_BURST if share else 0.0)
        self._seconds: defaultdict[tuple[ModelKey, int], DecayedQuantiles] = defaultdict(
            lambda: DecayedQuantiles(_HALF_LIFE_COUNT)
        )

    def started(self) -> None:
        """Allows a share of a hedge, because a batch is sent for the first time."""
        self._budget.earn(self._share)

    def answered(self, key: ModelKey, rows: int, seconds: float, now_s: float) -> None:
        """Learns the seconds of an answer."""
        self._seconds[key, size_of(rows)].add(seconds, now_s)

    def waited(self, key: ModelKey, rows: int, seconds: float, now_s: float) -> None:
        """Learns that a batch was given up after so many seconds."""
        self._seconds[key, size_of(rows)].add(seconds, now_s, censored=True)

    def after_s(self, key: ModelKey, rows: int, now_s: float) -> float | None:
        """Returns how long to wait for the first server; None if unknown, or without hedging."""
        seconds = self._seconds.get((key, size_of(rows)))
        if not self._share or seconds is None or seconds.weight(now_s) < _LEAST_WEIGHT:
            return None
        usual_s = seconds.quantile(_QUANTILE)
        return None if usual_s is None else max(_LEAST_S, _BEYOND * usual_s)

    def may(self, now_s: float) -> bool:
        """Returns whether a batch may be sent twice, and counts it."""
        return self._budget.take(now_s)
