"""One server behind the gateway as an executor: its state, and one request to it for each batch.

The server runs plain inference: ids, audits and promises are handled by this gateway alone, so a batch may be sent to a
second server as well.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from firstline_core.clock import Clock, end_tasks
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
from firstline_core.ids import new_request_id
from firstline_core.protocol.http import headers_for
from firstline_core.protocol.http_client import HttpReply
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.statistics import OverheadTimes
from firstline_core.telemetry.trace import CURRENT
from firstline_core.types import Arrays, ModelKey, join_rows, row_count, slice_rows
from firstline_gateway.executors.base import ExecutionReport, Outcome
from firstline_gateway.executors.local import Group, Prepared, joined_rows, prepare_batch, split_results
from firstline_gateway.executors.oip.dialects import RemoteModel
from firstline_gateway.models.repository import ServedModel

# A server reports itself that a deadline has passed; one that does not has failed.
_GRACE_S = 0.25
_RETRY_AFTER_S = 1.0
_CLOSING = "This gateway is shutting down; send the request again."

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
class _Spent:
    """Processing time of this process for a batch, before sending and after the answer (seconds)."""

    input_s: float = 0.0
    output_s: float = 0.0


class OipServer:
    """Runs batches on one server; implements `Executor`.

    Args:
        url: as configured, without a slash at its end.
        transport: sends requests to it.
        models: by key; shared by all servers, and changed by the owner.
        has_peer: whether another server can take a model's batches; if none can, only a readiness check marks this
            one as unavailable.
        in_flight: the most batches at the same time.
        timeout_s: the longest that one request may take.
        max_batch_rows: the most rows in one request.
        threads: prepare inputs.
        clock: for deadlines.

    Attributes:
        answers: whether it accepts requests.
        problem: why it does not, as a sentence; "" if it does.
    """

    def __init__(
        self,
        url: str,
        transport: Transport,
        models: Mapping[ModelKey, RemoteModel],
        has_peer: Callable[[OipServer, ModelKey], bool],
        *,
        in_flight: int,
        timeout_s: float,
        max_batch_rows: int,
        threads: ThreadPoolExecutor,
        clock: Clock,
    ) -> None:
        self.url = url
        self.transport = transport
        self.models = models
        self.answers = False
        self.problem = f"{url} was not checked yet."
        self._has_peer = has_peer
        self._slots = in_flight
        self._timeout_s = timeout_s
        self._max_batch_rows = max_batch_rows
        self._threads = threads
        self._clock = clock
        self._model_problems: dict[ModelKey, str] = {}
        self._overhead: defaultdict[ModelKey, OverheadTimes] = defaultdict(OverheadTimes)
        self._running: set[asyncio.Task[object]] = set()
        self._is_closed = False

    # State.

    def mark_unavailable(self, problem: str) -> None:
        """Marks the server as unavailable until a readiness check succeeds."""
        self.answers, self.problem = False, problem

    def mark_available(self) -> None:
        """Marks the server as available."""
        self.answers, self.problem = True, ""

    def record_model_problem(self, key: ModelKey, problem: str) -> str:
        """Records why the server cannot run a model, which an operator has to correct; returns that as a sentence."""
        sentence = f"{self.url} does not answer for '{key.name}': {problem}"
        if self._model_problems.get(key) != sentence:
            log.error("server does not answer for a model", model=key.name, server=self.url, problem=problem)
        self._model_problems[key] = sentence
        return sentence

    def record_model_usable(self, key: ModelKey) -> None:
        """Records that the server can run a model."""
        self._model_problems.pop(key, None)

    # Executor.

    @property
    def slots(self) -> int:
        return self._slots

    async def start(self) -> None:
        """Nothing to do: `ReadinessChecks` observes the server."""

    def problem_with(self, key: ModelKey) -> str:
        return self.problem or self._model_problems.get(key, "")

    def report(self) -> ExecutionReport:
        return ExecutionReport(overhead=self._overhead)

    async def put(self, served: ServedModel) -> None:
        """Nothing to do: the owner of `models` adds it."""

    async def drop(self, key: ModelKey) -> None:
        self._model_problems.pop(key, None)

    async def close(self, timeout_s: float) -> bool:
        """See `Executor.close`; cuts off what still runs, because it runs in another process."""
        self._is_closed = True
        self.mark_unavailable(_CLOSING)
        await end_tasks(*self._running)
        await self.transport.close()
        return True

    async def run(self, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        return await self._run_unless_closed(key, inputs, deadlines_s, may_split=True)

    async def run_whole(
        self, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None]
    ) -> list[Outcome]:
        return await self._run_unless_closed(key, inputs, deadlines_s, may_split=False)

    async def _run_unless_closed(
        self, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None], *, may_split: bool
    ) -> list[Outcome]:
        if self._is_closed:
            raise NotReadyError(_CLOSING)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (a coroutine runs in a task)
        self._running.add(task)
        try:
            return await self._run(key, self.models[key], inputs, deadlines_s, may_split=may_split)
        except asyncio.CancelledError:
            if self._is_closed:
                raise NotReadyError(_CLOSING) from None
            raise
        finally:
            self._running.discard(task)

    async def _run(
        self,
        key: ModelKey,
        model: RemoteModel,
        inputs: Sequence[Arrays],
        deadlines_s: Sequence[float | None],
        *,
        may_split: bool,
    ) -> list[Outcome]:
        spent = _Spent()

        def prepare() -> Prepared:
            started_s = perf_counter()
            found = prepare_batch(model.prepare, inputs, deadlines_s, self._clock)
            spent.input_s = perf_counter() - started_s
            return found

        if model.needs_thread:
            prepared = await asyncio.get_running_loop().run_in_executor(self._threads, prepare)
        else:
            prepared = prepare()
        outcomes = prepared.outcomes
        groups = (
            self._run_group(key, model, each, deadlines_s, spent, may_split=may_split) for each in prepared.groups
        )
        for found in await asyncio.gather(*groups):
            outcomes |= found
        rows = sum(row_count(each) for each in inputs)
        self._overhead[key].add(len(inputs), rows, spent.input_s, spent.output_s)
        return [outcomes[position] for position in range(len(inputs))]

    async def _run_group(
        self,
        key: ModelKey,
        model: RemoteModel,
        group: Group,
        deadlines_s: Sequence[float | None],
        spent: _Spent,
        *,
        may_split: bool,
    ) -> dict[int, Outcome]:
        """Sends a group as one request, by the deadline of its most urgent member."""
        due_s = [deadlines_s[position] for position, _ in group]
        first_s = min((each for each in due_s if each is not None), default=None)
        try:
            rows = joined_rows(group)
            size = model.batch or self._max_batch_rows
            steps = [slice_rows(rows, at, at + size) for at in range(0, row_count(rows), size)]
            parts = [await self._send(key, model, step, first_s, spent) for step in steps]
            return split_results(group, join_rows(parts))
        except DeadlineExceededError as error:
            late = [member for member, each in zip(group, due_s, strict=True) if each == first_s]
            others = [member for member, each in zip(group, due_s, strict=True) if each != first_s]
            outcomes: dict[int, Outcome] = {position: error for position, _ in late}
            if others:
                outcomes |= await self._run_group(key, model, others, deadlines_s, spent, may_split=may_split)
            return outcomes
        except (RequestError, RuntimeFailure) as error:
            if len(group) == 1 or (isinstance(error, RuntimeFailure) and not may_split):
                return {position: error for position, _ in group}
            # One request's rows may be at fault: alone, the others still get their answers.
            alone = await asyncio.gather(
                *(self._run_group(key, model, [member], deadlines_s, spent, may_split=False) for member in group)
            )
            return {position: outcome for each in alone for position, outcome in each.items()}
        except FirstlineError as error:
            return {position: error for position, _ in group}

    async def _send(
        self, key: ModelKey, model: RemoteModel, rows: Arrays, deadline_s: float | None, spent: _Spent
    ) -> Arrays:
        """Sends one request.

        Raises:
            DeadlineExceededError: the deadline passed before an answer.
            EngineUnavailableError: the server does not answer, or not for this model.
            FirstlineError: the server's error; `InferenceError` if it does not say what is wrong.
        """
        now_s, timeout_s = self._clock.monotonic_s(), self._timeout_s
        if deadline_s is not None:
            timeout_s = min(timeout_s, max(0.0, deadline_s - now_s) + _GRACE_S)
        try:
            started_s = perf_counter()
            request_id = new_request_id()
            encoded = model.encode(rows, request_id, deadline_s, now_s)
            encoding_s = perf_counter() - started_s
            headers, trace = headers_for(encoded), CURRENT.get()
            if trace is not None:
                headers |= trace.headers()
            reply = await self.transport.exchange("POST", model.path, headers, encoded.body, timeout_s)
            started_s = perf_counter()
            found = model.read(reply, request_id, rows)
        except FirstlineError as error:
            if deadline_s is not None and deadline_s <= self._clock.monotonic_s():
                raise DeadlineExceededError(
                    "The request's deadline passed before a server answered; allow more time."
                ) from error
            raise self._translated(key, error) from error
        spent.input_s += encoding_s
        spent.output_s += perf_counter() - started_s
        return found

    def _translated(self, key: ModelKey, error: FirstlineError) -> FirstlineError:
        """Returns the error of the batch for one of the server, and records what that says about the server."""
        match error:
            case UnknownModelError() | ModelMismatchError() | UnauthorizedError() | ForbiddenError():
                return _unavailable(key, self.record_model_problem(key, error.message))
            case NotReadyError():
                return self._mark_away(key, f"{self.url} takes no requests: {error.message}")
            case RequestError() | RuntimeFailure() | CapacityError():
                return error
            case LinkDownError():
                return self._mark_away(key, f"{self.url} is away: {error.message}.")
            case LinkError():
                return _unavailable(key, f"{self.url}: {error.message}")
        return InferenceError(f"{self.url} failed on this request: {error.message}")

    def _mark_away(self, key: ModelKey, problem: str) -> EngineUnavailableError:
        if self._has_peer(self, key):  # else only a readiness check decides
            self.mark_unavailable(problem)
        return _unavailable(key, problem)


def _unavailable(key: ModelKey, problem: str) -> EngineUnavailableError:
    return EngineUnavailableError(
        f"A server did not answer for model '{key.name}'; send the request again later. {problem}",
        retry_after_s=_RETRY_AFTER_S,
    )
