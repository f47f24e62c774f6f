"""The servers behind the gateway as executors: whether each takes requests, which models it has, and its batches.

The pool chooses, retries, hedges and ejects them like any other executor. Batches are made here because only here all
waiting requests are seen; the servers may put them together further.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter

from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.clock import SYSTEM_CLOCK, Clock, end_tasks, first_of
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
    RemoteTimeoutError,
    RequestError,
    RuntimeFailure,
    UnauthorizedError,
    UnknownModelError,
)
from firstline_core.ids import new_request_id
from firstline_core.protocol.http import headers_for
from firstline_core.protocol.http_client import HttpClient, HttpReply
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.statistics import OverheadTimes
from firstline_core.telemetry.trace import CURRENT
from firstline_core.types import Arrays, ModelKey, join_rows, row_count, slice_rows
from firstline_gateway.executors.base import Deadlines, ExecutionReport, Inputs, Outcome
from firstline_gateway.executors.dispatch.member import HedgeBudget, Member, OpensMember
from firstline_gateway.executors.local import Group, Prepared, joined_rows, prepare_batch, split_results
from firstline_gateway.executors.oip.dialects import RemoteModel
from firstline_gateway.models.repository import ServedModel
from firstline_gateway.settings.settings import OipSection

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
# A server reports itself that a deadline has passed; one that does not has failed.
_GRACE_S = 0.25
_CLOSING = "This gateway is shutting down; send the request again."

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class ServerGroup:
    """The shared parts of the servers of one executor, which have the same models.

    Args:
        models: by key, as the servers have them.
        make: returns a model as the servers have it.
        settings: the most batches at the same time on each server, and the longest that one request may take.
        threads: prepare inputs.
        max_batch_rows: the most rows in one request.
        clock: for deadlines, and the pauses between readiness checks.
        members: one for each server.
    """

    models: dict[ModelKey, RemoteModel]
    make: Callable[[ServedModel], RemoteModel]
    settings: OipSection
    threads: ThreadPoolExecutor
    max_batch_rows: int
    clock: Clock = SYSTEM_CLOCK
    members: list[Member] = field(default_factory=list)

    def has_peer(self, server: OipServer, key: ModelKey) -> bool:
        """Returns whether another server can take a model's batches.

        If none can, only a readiness check marks a server as unavailable.
        """
        return any(member.takes_now(key) for member in self.members if member.executor is not server)


@dataclass(eq=False)
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

    url: str
    transport: HttpClient
    group: ServerGroup

    def __post_init__(self) -> None:
        self.answers = False
        self.problem = f"{self.url} was not checked yet."
        self._model_problems: dict[ModelKey, str] = {}
        self._overhead: defaultdict[ModelKey, OverheadTimes] = defaultdict(OverheadTimes)
        self._running: set[asyncio.Task[object]] = set()
        self._checking: asyncio.Task[None] | None = None
        self._is_closed = False

    # Executor.

    @property
    def slots(self) -> int:
        return self.group.settings.in_flight

    async def start(self) -> None:
        """Starts the readiness checks; returns after the first one, or after a time limit."""
        checked = asyncio.Event()
        self._checking = asyncio.create_task(self._check_regularly(checked))
        # It is checked after that nevertheless, and is unavailable until then.
        await first_of(checked.wait(), asyncio.sleep(_START_S))

    def problem_with(self, key: ModelKey) -> str:
        return self.problem or self._model_problems.get(key, "")

    def report(self) -> ExecutionReport:
        return ExecutionReport(overhead=self._overhead)

    def loaded_model(self, key: ModelKey) -> LoadedModel | None:
        return model.loaded if (model := self.group.models.get(key)) is not None else None

    async def put(self, served: ServedModel) -> None:
        if served.key not in self.group.models:  # else another server of the group was given it before
            self.group.models[served.key] = self.group.make(served)
        if self.answers:
            try:
                await self._look_for_models()
            except LinkError as error:
                self._mark_unavailable(self._away(error))

    async def drop(self, key: ModelKey) -> None:
        self.group.models.pop(key, None)
        self._model_problems.pop(key, None)

    async def close(self, timeout_s: float) -> bool:
        """See `Executor.close`; cuts off what still runs, because it runs in another process."""
        self._is_closed = True
        await end_tasks(self._checking)
        self._mark_unavailable(_CLOSING)
        await end_tasks(*self._running)
        await self.transport.close()
        self.group.threads.shutdown(wait=False, cancel_futures=True)
        return True

    async def run(self, key: ModelKey, inputs: Inputs, deadlines_s: Deadlines) -> list[Outcome]:
        return await self._run(key, inputs, deadlines_s, may_split=True)

    async def run_whole(self, key: ModelKey, inputs: Inputs, deadlines_s: Deadlines) -> list[Outcome]:
        return await self._run(key, inputs, deadlines_s, may_split=False)

    async def _run(self, key: ModelKey, inputs: Inputs, deadlines_s: Deadlines, *, may_split: bool) -> list[Outcome]:
        if self._is_closed:
            raise NotReadyError(_CLOSING)
        batch = RemoteBatch(self, key, inputs, deadlines_s, may_split)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (a coroutine runs in a task)
        self._running.add(task)
        try:
            outcomes = await batch.run()
        except asyncio.CancelledError:
            if self._is_closed:
                raise NotReadyError(_CLOSING) from None
            raise
        finally:
            self._running.discard(task)
        self._overhead[key].add(len(inputs), batch.rows, batch.input_s, batch.output_s)
        return outcomes

    def translated(self, key: ModelKey, error: FirstlineError) -> FirstlineError:
        """Returns the error of a batch for one of the server, and records what that says about the server."""
        match error:
            case UnknownModelError() | ModelMismatchError() | UnauthorizedError() | ForbiddenError():
                problem = self._record_model_problem(key, error.message)
            case NotReadyError():
                problem = self._mark_away(key, f"{self.url} takes no requests: {error.message}")
            case RequestError() | RuntimeFailure() | DeadlineExceededError():
                return error
            case CapacityError() if error.retry_after_s is not None:
                return error
            case LinkDownError():
                problem = self._mark_away(key, self._away(error))
            case LinkError() | CapacityError():
                problem = f"{self.url}: {error.message}"
            case _:
                return InferenceError(f"{self.url} failed on this request: {error.message}")
        return EngineUnavailableError(
            f"A server did not answer for model '{key.name}'; retry after the time given with this error. {problem}",
            retry_after_s=_RETRY_AFTER_S,
        )

    def _mark_away(self, key: ModelKey, problem: str) -> str:
        if self.group.has_peer(self, key):  # else only a readiness check decides
            self._mark_unavailable(problem)
        return problem

    # Readiness.

    def _away(self, error: LinkError) -> str:
        """Returns a sentence about the server after an error of its link."""
        return f"{self.url} is away: {error.message}."

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
        clock, failures, models_at_s = self.group.clock, 0.0, float("-inf")
        while True:
            try:
                before, last_problem, now_s = self.answers, self.problem, clock.monotonic_s()
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
                elif self.problem != last_problem:
                    log.warning("server does not answer", server=self.url, problem=self.problem)
            except LinkError as error:  # it went away between two questions
                self._mark_unavailable(self._away(error))
            except Exception:  # the outermost loop of a task that must never end
                log.exception("server not checked", server=self.url)
            checked.set()
            await clock.sleep(_EVERY_S if self.answers else _WHILE_AWAY_S)

    async def _check(self) -> tuple[str, float]:
        """Returns what is wrong with the server, and the weight of that evidence against it."""
        try:
            reply = await self._get("/v2/health/ready")
        except LinkError as error:
            return self._away(error), 1 / (_SILENCES if isinstance(error, RemoteTimeoutError) else _FAILURES)
        if reply.status != 200:  # it says so itself
            return f"{self.url} takes no requests (HTTP status {reply.status}).", 1.0
        return "", 0.0

    async def _look_for_models(self) -> None:
        replies: dict[str, HttpReply] = {}
        for key, model in tuple(self.group.models.items()):
            for question in model.questions:
                if question not in replies:
                    replies[question] = await self._get(question)
            if model.check_loads:
                problem = await asyncio.to_thread(model.check, replies)
            else:
                problem = model.check(replies)
            if problem:
                self._record_model_problem(key, problem)
            else:
                self._model_problems.pop(key, None)

    async def _get(self, path: str) -> HttpReply:
        return await self.transport.exchange("GET", path, {}, b"", _TIMEOUT_S)


@dataclass(eq=False)
class RemoteBatch:
    """A batch for one server: prepared here, sent, and handed out to its requests.

    Args:
        server: that runs it.
        key: of the model.
        inputs: see `Executor.run`.
        deadlines_s: see `Executor.run`.
        may_split: whether the requests of a failed batch are repeated one by one; see `SplitsBatches`.

    Attributes:
        rows: of the batch.
        input_s: processing time of this process before sending, in seconds.
        output_s: the same after the answer.
    """

    server: OipServer
    key: ModelKey
    inputs: Inputs
    deadlines_s: Deadlines
    may_split: bool

    def __post_init__(self) -> None:
        self._group = self.server.group
        self._model = self._group.models[self.key]
        self.rows = sum([row_count(each) for each in self.inputs])
        self.input_s = self.output_s = 0.0

    async def run(self) -> list[Outcome]:
        """Runs it; see `Executor.run` and `SplitsBatches.run_whole`."""
        if self._model.needs_thread:
            prepared = await asyncio.get_running_loop().run_in_executor(self._group.threads, self._prepare)
        else:
            prepared = self._prepare()
        outcomes = prepared.outcomes
        for found in await asyncio.gather(*(self._run_group(each) for each in prepared.groups)):
            outcomes |= found
        return [outcomes[position] for position in range(len(self.inputs))]

    def _prepare(self) -> Prepared:
        started_s = perf_counter()
        found = prepare_batch(self._model.prepare, self.inputs, self.deadlines_s, self._group.clock)
        self.input_s = perf_counter() - started_s
        return found

    async def _run_group(self, group: Group) -> dict[int, Outcome]:
        """Sends a group as one request, by the deadline of its most urgent member."""
        due_s = [self.deadlines_s[position] for position, _ in group]
        first_s = min((each for each in due_s if each is not None), default=None)
        try:
            rows, size = joined_rows(group), self._model.batch or self._group.max_batch_rows
            steps = [slice_rows(rows, at, at + size) for at in range(0, row_count(rows), size)]
            return split_results(group, join_rows([await self._send(step, first_s) for step in steps]))
        except DeadlineExceededError as error:
            late = [member for member, each in zip(group, due_s, strict=True) if each == first_s]
            others = [member for member, each in zip(group, due_s, strict=True) if each != first_s]
            outcomes: dict[int, Outcome] = {position: error for position, _ in late}
            if others:
                outcomes |= await self._run_group(others)
            return outcomes
        except (RequestError, RuntimeFailure) as error:
            if len(group) == 1 or (isinstance(error, RuntimeFailure) and not self.may_split):
                return {position: error for position, _ in group}
            # One request's rows may be at fault: alone, the others still get their answers.
            alone = await asyncio.gather(*(self._run_group([member]) for member in group))
            return {position: outcome for each in alone for position, outcome in each.items()}
        except FirstlineError as error:
            return {position: error for position, _ in group}

    async def _send(self, rows: Arrays, deadline_s: float | None) -> Arrays:
        """Sends one request.

        Raises:
            DeadlineExceededError: the deadline passed before an answer.
            FirstlineError: see `OipServer.translated`.
        """
        now_s, timeout_s = self._group.clock.monotonic_s(), self._group.settings.timeout_s
        if deadline_s is not None:
            timeout_s = min(timeout_s, max(0.0, deadline_s - now_s) + _GRACE_S)
        try:
            started_s = perf_counter()
            request_id = new_request_id()
            encoded = self._model.encode(rows, request_id, deadline_s, now_s)
            encoding_s = perf_counter() - started_s
            headers, trace = headers_for(encoded), CURRENT.get()
            if trace is not None:
                headers |= trace.headers()
            reply = await self.server.transport.exchange("POST", self._model.path, headers, encoded.body, timeout_s)
            started_s = perf_counter()
            found = self._model.read(reply, request_id, rows)
        except FirstlineError as error:
            if deadline_s is not None and deadline_s <= self._group.clock.monotonic_s():
                raise DeadlineExceededError(
                    "The request's deadline passed before a server answered; allow more time."
                ) from error
            raise self.server.translated(self.key, error) from error
        self.input_s += encoding_s
        self.output_s += perf_counter() - started_s
        return found


def open_servers(
    group: ServerGroup, transports: Mapping[str, HttpClient], open_member: OpensMember, *, sessions: int
) -> list[Member]:
    """Returns a member for each server of one executor.

    Args:
        group: shared by the servers; the members are added to it.
        transports: sends requests to each server, by its URL.
        open_member: opens a member with the name of the executor, which its servers share.
        sessions: batches that really run at the same moment on all servers together; 0 if that is unknown.
    """
    hedges = HedgeBudget(group.settings.hedge_share)
    for url, transport in transports.items():
        group.members.append(
            open_member(
                OipServer(url, transport, group),
                sessions=math.ceil(sessions / len(transports)),
                url=url,
                hedges=hedges,
                is_shared=len(transports) > 1,
            )
        )
    return group.members
