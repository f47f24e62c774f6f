"""The engine on a Ray cluster: decisions (admission, deadlines, batches) here, replicas of the models there.

Batches are made here because only here all waiting requests are seen with their deadlines, and because a call by
Ray's handles costs the caller the same for one request as for thirty-two. Replicas are added and taken away by Ray, by
how many batches are under way.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from firstline_core.clock import SYSTEM_CLOCK, Clock, end_tasks, first_of
from firstline_core.errors import (
    DeadlineExceededError,
    EngineUnavailableError,
    FirstlineError,
    InferenceError,
    LinkDownError,
    LinkError,
    RemoteTimeoutError,
)
from firstline_core.processing.cost import as_sent
from firstline_core.telemetry.logs import logger
from firstline_core.types import Arrays, ModelKey
from firstline_gateway.executors.base import ExecutionReport, Outcome
from firstline_gateway.executors.ray.deployment import Cluster, Deployment, State
from firstline_gateway.models.repository import ServedModel

_EVERY_S = 2.0
_WHILE_AWAY_S = 0.5
# A replica that could not be started is tried again, because the bundle may have been repaired.
_DEPLOY_AGAIN_S = 30.0
# Seconds for which the last reported state holds without a new one: Serve's controller restarts while replicas answer.
_BELIEVED_S = 10.0
# A replica that died takes its batches with it; inference has no effects, so another one runs them.
_ATTEMPTS = 4
_PAUSE_S = 0.1
_START_S = 5.0
_PUT_S = 30.0
_RETRY_AFTER_S = 1.0

log = logger(__name__)


@dataclass(eq=False)
class RayExecutor:
    """Runs batches on a cluster's replicas.

    Args:
        models: as they are to be deployed.
        cluster: which may be away.
        in_flight: batches at the same moment for each replica.
        timeout_s: the longest that one may take for a batch; then another one runs it.
        make: a deployment of a model that is put in later.
        clock: for deadlines.
    """

    models: dict[ModelKey, Deployment]
    cluster: Cluster
    in_flight: int
    timeout_s: float
    make: Callable[[ServedModel], Deployment]
    clock: Clock = SYSTEM_CLOCK

    def __post_init__(self) -> None:
        self._replicas: dict[str, int] = {}
        self._problems: dict[str, str] = {}
        self._away = "The Ray cluster was not contacted yet."
        self._answered_s = float("-inf")
        self._checked: set[str] = set()
        self._unchecked: dict[str, str] = {}  # by deployment, the error of the latest look
        self._deployed_s: dict[str, float] = {}
        self._following: asyncio.Task[None] | None = None
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._retries = 0
        self._calls: dict[str, set[asyncio.Task[list[Outcome]]]] = defaultdict(set)

    @property
    def slots(self) -> int:
        return self.in_flight * max(1, sum(self._replicas.get(each.name, 0) for each in self.models.values()))

    async def start(self) -> None:
        """Begins to follow the cluster; returns once it was answered, or takes its time."""
        answered = asyncio.Event()
        self._following = asyncio.create_task(self._follow(answered))
        # It is contacted after that nevertheless, and until then nothing runs.
        await first_of(answered.wait(), asyncio.sleep(_START_S))

    def problem_with(self, key: ModelKey) -> str:
        name = self.models[key].name
        if self._away:
            return self._away
        if self._replicas.get(name, 0):
            return ""
        return self._problems.get(name, "") or f"Ray runs no replica of {name} yet."

    def report(self) -> ExecutionReport:
        return ExecutionReport(
            up={(each.name,): float(self._replicas.get(each.name, 0)) for each in self.models.values()},
            batches={labels: float(count) for labels, count in self._outcomes.items()},
            repeats={("retry",): float(self._retries)},
        )

    async def run(self, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        name, problem = self.models[key].name, ""
        for attempt in range(_ATTEMPTS):
            if problem := self.problem_with(key):
                raise _unavailable(key, problem)
            if attempt:
                self._retries += 1
                await self.clock.sleep(_PAUSE_S * attempt)
            now_s = self.clock.monotonic_s()
            left_s = [None if due is None else due - now_s for due in deadlines_s]
            longest_s = min(self.timeout_s, max((self.timeout_s if left is None else left) for left in left_s))
            if longest_s <= 0:
                raise DeadlineExceededError("The request's deadline passed on the Ray cluster; allow more time.")
            try:
                outcomes = await self._call(name, inputs, left_s, longest_s)
            except LinkError as error:
                self._outcomes[name, "cut_off" if isinstance(error, RemoteTimeoutError) else "failed"] += 1
                problem = f"{error.message[:1].upper()}{error.message[1:]}."
                continue
            self._outcomes[name, "answered"] += 1
            return outcomes
        raise _unavailable(key, problem)

    async def _call(
        self, name: str, inputs: Sequence[Arrays], left_s: Sequence[float | None], timeout_s: float
    ) -> list[Outcome]:
        call = asyncio.ensure_future(self.cluster.run(name, [*map(as_sent, inputs)], left_s, timeout_s))
        self._calls[name].add(call)
        call.add_done_callback(self._calls[name].discard)
        try:
            await asyncio.wait([call])
        finally:
            call.cancel()  # nothing where it is done
        if call.cancelled():
            raise LinkDownError(f"all replicas of {name} are gone")
        outcomes = call.result()
        if len(outcomes) != len(inputs):  # the batch would never end
            raise InferenceError(f"A replica of {name} gave {len(outcomes)} outcomes of {len(inputs)} requests.")
        return outcomes

    async def put(self, served: ServedModel) -> None:
        """See `Executor.put`; returns once a replica is up, or takes its time."""
        self.models[served.key] = self.make(served)
        until_s = self.clock.monotonic_s() + _PUT_S
        while self.problem_with(served.key) and self.clock.monotonic_s() < until_s:
            await self.clock.sleep(_WHILE_AWAY_S)

    async def drop(self, key: ModelKey) -> None:
        """See `Executor.drop`; its deployment stays, for other gateways use it."""
        self.models.pop(key, None)

    async def close(self, timeout_s: float) -> bool:
        """See `Executor.close`; cuts off what still runs, because it runs in another process."""
        await end_tasks(self._following)
        await self.cluster.close()
        return True

    async def _follow(self, answered: asyncio.Event) -> None:
        while True:
            try:
                await self._look()
            except LinkError as error:
                if self.clock.monotonic_s() - self._answered_s > _BELIEVED_S:
                    self._lost(f"{error.message[:1].upper()}{error.message[1:]}.")
            except Exception:  # the outermost loop of a task that must never end
                log.exception("Ray cluster not observed")
            answered.set()
            whole = not self._away and all(self._replicas.get(each.name) for each in self.models.values())
            await self.clock.sleep(_EVERY_S if whole else _WHILE_AWAY_S)

    def _lost(self, problem: str) -> None:
        if problem != self._away:
            log.warning("Ray cluster does not answer", problem=problem)
        self._away, self._replicas, self._checked = problem, {}, set()

    async def _look(self) -> None:
        """Learns what runs, and has run what does not."""
        await self.cluster.connect()
        states = await self.cluster.states()
        self._answered_s = self.clock.monotonic_s()
        if self._away:
            log.info("Ray cluster answers")
        self._away = ""
        for deployment in tuple(self.models.values()):
            name, state = deployment.name, states.get(deployment.name)
            replicas = state.replicas if state is not None else 0
            if replicas != self._replicas.get(name, 0):
                log.info("replicas on the Ray cluster", deployment=name, replicas=replicas)
            self._replicas[name] = replicas
            if not replicas:  # Ray would have them wait until there is one
                for call in self._calls[name]:
                    call.cancel()
            problem = state.failed if state is not None else ""
            if problem and problem != self._problems.get(name):
                log.error("Ray starts no replica", deployment=name, problem=problem)
            self._problems[name] = problem
            try:
                await self._keep_deployed(deployment, state)
            except FirstlineError as error:  # the other models must not wait for this one
                if error.message != self._unchecked.get(name):
                    log.warning("deployment on the Ray cluster not checked", deployment=name, error=error.message)
                self._unchecked[name] = error.message
            else:
                self._unchecked.pop(name, None)

    async def _keep_deployed(self, deployment: Deployment, state: State | None) -> None:
        """Deploys a model that is absent, could not be started, or runs with other settings."""
        name = deployment.name
        if state is None or state.failed:
            if self._answered_s - self._deployed_s.get(name, float("-inf")) >= _DEPLOY_AGAIN_S:
                await self._deploy(deployment)
        elif state.replicas and name not in self._checked:
            try:
                found = await self.cluster.fingerprint(name)
            except InferenceError:  # replicas that cannot name theirs are not this gateway's
                found = ""
            if found != deployment.fingerprint:
                await self._deploy(deployment)  # replaced one replica after the other, and answers meanwhile
            self._checked.add(name)

    async def _deploy(self, deployment: Deployment) -> None:
        log.info("deploying on the Ray cluster", deployment=deployment.name, bundle=deployment.bundle)
        self._deployed_s[deployment.name] = self._answered_s
        await self.cluster.deploy(deployment)
        self._checked.add(deployment.name)


def _unavailable(key: ModelKey, problem: str) -> EngineUnavailableError:
    return EngineUnavailableError(
        f"No replica of model '{key.name}' answers; retry after the time given with this error. {problem}",
        retry_after_s=_RETRY_AFTER_S,
    )
