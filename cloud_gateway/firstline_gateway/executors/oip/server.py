"""One server behind the gateway as an executor: whether it takes requests, which models it has, and its batches."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from firstline_core.bundle.loading import LoadedModel
from firstline_core.clock import Clock, end_tasks
from firstline_core.errors import (
    CapacityError,
    EngineUnavailableError,
    FirstlineError,
    ForbiddenError,
    InferenceError,
    LinkDownError,
    LinkError,
    ModelMismatchError,
    NotReadyError,
    RemoteTimeoutError,
    RequestError,
    RuntimeFailure,
    UnauthorizedError,
    UnknownModelError,
)
from firstline_core.protocol.http_client import HttpReply
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.statistics import OverheadTimes
from firstline_core.types import Arrays, ModelKey
from firstline_gateway.executors.base import ExecutionReport, Outcome
from firstline_gateway.executors.oip.batch import RemoteBatch
from firstline_gateway.executors.oip.dialects import RemoteModel
from firstline_gateway.models.repository import ServedModel

_EVERY_S = 2.0
_WHILE_AWAY_S = 0.5
_TIMEOUT_S = 2.0
# One lost check does not make a server unavailable. One that accepts connections and does not answer is more likely
# busy than away, and is needed most then.
_FAILURES = 2
_SILENCES = 5
# How often the models of a server that takes requests are checked.
_MODELS_EVERY_S = 10.0
_START_S = 5.0
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


@dataclass(frozen=True, slots=True)
class ServerGroup:
    """The shared parts of the servers of one executor, which have the same models.

    Args:
        models: by key, as the servers have them.
        make: returns a model as the servers have it.
        has_peer: whether another server of the group can take a model's batches; if none can, only a readiness check
            marks a server as unavailable.
        threads: prepare inputs.
        in_flight: the most batches at the same time on each server.
        timeout_s: the longest that one request may take.
        max_batch_rows: the most rows in one request.
        clock: for deadlines, and the pauses between readiness checks.
    """

    models: dict[ModelKey, RemoteModel]
    make: Callable[[ServedModel], RemoteModel]
    has_peer: Callable[[OipServer, ModelKey], bool]
    threads: ThreadPoolExecutor
    in_flight: int
    timeout_s: float
    max_batch_rows: int
    clock: Clock


class OipServer:
    """Runs batches on one server, which it checks regularly; implements `Executor`.

    The server runs plain inference: ids, audits and promises are handled by this gateway alone, so a batch may be sent
    to a second server as well.

    Args:
        url: as configured, without a slash at its end.
        transport: sends requests to it.
        group: the servers that it is one of.

    Attributes:
        answers: whether it accepts requests.
        problem: why it does not, as a sentence; "" if it does.
    """

    def __init__(self, url: str, transport: Transport, group: ServerGroup) -> None:
        self.url = url
        self.answers = False
        self.problem = f"{url} was not checked yet."
        self._transport = transport
        self._group = group
        self._model_problems: dict[ModelKey, str] = {}
        self._overhead: defaultdict[ModelKey, OverheadTimes] = defaultdict(OverheadTimes)
        self._running: set[asyncio.Task[object]] = set()
        self._checking: asyncio.Task[None] | None = None
        self._is_closed = False

    # Executor.

    @property
    def slots(self) -> int:
        return self._group.in_flight

    async def start(self) -> None:
        """Starts the readiness checks; returns after the first one, or after a time limit."""
        checked = asyncio.Event()
        self._checking = asyncio.create_task(self._check_regularly(checked))
        try:
            async with asyncio.timeout(_START_S):
                await checked.wait()
        except TimeoutError:
            pass  # it is checked all the same, and is unavailable until then

    def problem_with(self, key: ModelKey) -> str:
        return self.problem or self._model_problems.get(key, "")

    def report(self) -> ExecutionReport:
        return ExecutionReport(overhead=self._overhead)

    def loaded_model(self, key: ModelKey) -> LoadedModel | None:
        return model.loaded if (model := self._group.models.get(key)) is not None else None

    async def put(self, served: ServedModel) -> None:
        if served.key not in self._group.models:  # else another server of the group was given it before
            self._group.models[served.key] = self._group.make(served)
        if self.answers:
            try:
                await self._look_for_models()
            except LinkError as error:
                self._mark_unavailable(f"{self.url} is away: {error.message}.")

    async def drop(self, key: ModelKey) -> None:
        self._group.models.pop(key, None)
        self._model_problems.pop(key, None)

    async def close(self, timeout_s: float) -> bool:
        """See `Executor.close`; cuts off what still runs, because it runs in another process."""
        self._is_closed = True
        await end_tasks(self._checking)
        self._mark_unavailable(_CLOSING)
        await end_tasks(*self._running)
        await self._transport.close()
        self._group.threads.shutdown(wait=False, cancel_futures=True)
        return True

    async def run(self, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        return await self._run(key, inputs, deadlines_s, may_split=True)

    async def run_whole(
        self, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None]
    ) -> list[Outcome]:
        return await self._run(key, inputs, deadlines_s, may_split=False)

    async def _run(
        self, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None], *, may_split: bool
    ) -> list[Outcome]:
        if self._is_closed:
            raise NotReadyError(_CLOSING)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (a coroutine runs in a task)
        self._running.add(task)
        group = self._group
        batch = RemoteBatch(
            group.models[key],
            inputs,
            deadlines_s,
            exchange=self._transport.exchange,
            translated=lambda error: self._translated(key, error),
            timeout_s=group.timeout_s,
            max_rows=group.max_batch_rows,
            clock=group.clock,
        )
        try:
            outcomes = await batch.run(group.threads, may_split=may_split)
        except asyncio.CancelledError:
            if self._is_closed:
                raise NotReadyError(_CLOSING) from None
            raise
        finally:
            self._running.discard(task)
        self._overhead[key].add(len(inputs), batch.rows, batch.input_s, batch.output_s)
        return outcomes

    def _translated(self, key: ModelKey, error: FirstlineError) -> FirstlineError:
        """Returns the error of a batch for one of the server, and records what that says about the server."""
        match error:
            case UnknownModelError() | ModelMismatchError() | UnauthorizedError() | ForbiddenError():
                problem = self._record_model_problem(key, error.message)
            case NotReadyError():
                problem = self._mark_away(key, f"{self.url} takes no requests: {error.message}")
            case RequestError() | RuntimeFailure() | CapacityError():
                return error
            case LinkDownError():
                problem = self._mark_away(key, f"{self.url} is away: {error.message}.")
            case LinkError():
                problem = f"{self.url}: {error.message}"
            case _:
                return InferenceError(f"{self.url} failed on this request: {error.message}")
        return EngineUnavailableError(
            f"A server did not answer for model '{key.name}'; send the request again later. {problem}",
            retry_after_s=_RETRY_AFTER_S,
        )

    def _mark_away(self, key: ModelKey, problem: str) -> str:
        if self._group.has_peer(self, key):  # else only a readiness check decides
            self._mark_unavailable(problem)
        return problem

    # Readiness.

    def _mark_unavailable(self, problem: str) -> None:
        """Marks the server as unavailable until a readiness check succeeds."""
        self.answers, self.problem = False, problem

    def _record_model_problem(self, key: ModelKey, problem: str) -> str:
        """Records why the server cannot run a model, which an operator has to correct; returns that as a sentence."""
        sentence = f"{self.url} does not answer for '{key.name}': {problem}"
        if self._model_problems.get(key) != sentence:
            log.error("server does not answer for a model", model=key.name, server=self.url, problem=problem)
        self._model_problems[key] = sentence
        return sentence

    async def _check_regularly(self, checked: asyncio.Event) -> None:
        clock, failures, models_at_s = self._group.clock, 0.0, float("-inf")
        while True:
            try:
                before, known, now_s = self.answers, self.problem, clock.monotonic_s()
                problem, weight = await self._check()
                failures = failures + weight if problem else 0
                if not problem:
                    if not before or now_s >= models_at_s:
                        await self._look_for_models()
                        models_at_s = now_s + _MODELS_EVERY_S
                    self.answers, self.problem = True, ""
                elif failures >= 1 or not before:
                    self._mark_unavailable(problem)
                if self.answers and not before:
                    log.info("server answers", server=self.url)
                elif self.problem != known:
                    log.warning("server does not answer", server=self.url, problem=self.problem)
            except LinkError as error:  # it went away between two questions
                self._mark_unavailable(f"{self.url} is away: {error.message}.")
            except Exception:  # the outermost loop of a task that must never end
                log.exception("server not checked", server=self.url)
            checked.set()
            await clock.sleep(_EVERY_S if self.answers else _WHILE_AWAY_S)

    async def _check(self) -> tuple[str, float]:
        """Returns what is wrong with the server, and the weight of that evidence against it."""
        try:
            reply = await self._get("/v2/health/ready")
        except RemoteTimeoutError as error:
            return f"{self.url} is away: {error.message}.", 1 / _SILENCES
        except LinkError as error:
            return f"{self.url} is away: {error.message}.", 1 / _FAILURES
        if reply.status != 200:  # it says so itself
            return f"{self.url} takes no requests (HTTP status {reply.status}).", 1.0
        return "", 0.0

    async def _look_for_models(self) -> None:
        replies: dict[str, HttpReply] = {}
        for key, model in tuple(self._group.models.items()):
            for question in model.questions:
                if question not in replies:
                    replies[question] = await self._get(question)
            if problem := model.check(replies):
                self._record_model_problem(key, problem)
            else:
                self._model_problems.pop(key, None)

    async def _get(self, path: str) -> HttpReply:
        return await self._transport.exchange("GET", path, {}, b"", _TIMEOUT_S)
