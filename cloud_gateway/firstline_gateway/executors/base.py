"""The interface of executors, and their reports."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.errors import FirstlineError
from firstline_core.runtime.batch_times import LoopTimes
from firstline_core.telemetry.statistics import OverheadTimes
from firstline_core.types import Arrays, ModelKey
from firstline_gateway.models.repository import ServedModel

Outcome = Arrays | FirstlineError
"""The outcome of one request of a batch: the task's outputs in the order of its rows, or its own error."""

Inputs = Sequence[Arrays]
"""The inputs of each request of a batch, by name."""

Deadlines = Sequence[float | None]
"""The deadline of each request of a batch, on the monotonic clock of this process, or None."""


@dataclass(frozen=True, slots=True)
class ModelOnExecutor:
    """The state of one model on one of several executors, as the API shows it.

    Args:
        model: its name.
        version: its version.
        pace: present batch times as a multiple of the usual ones there.
        oldest_s: how long its oldest batch has been under way; 0 if there is none.
        problem: why it gets none of its batches, as a sentence, or "".
    """

    model: str
    version: str
    pace: float
    oldest_s: float
    problem: str


@dataclass(frozen=True, slots=True)
class ExecutorReport:
    """The state of one of several executors, as the API shows it.

    Args:
        name: in the settings.
        up: whether it gets batches.
        problem: why it gets no batches at all, as a sentence, or "".
        slots: batches that it is worth giving at the same moment.
        under_way: batches that it has.
        batches: by outcome; see `ExecutionReport.batches`.
        paces: of the models that it runs.
    """

    name: str
    up: bool
    problem: str
    slots: int
    under_way: int
    batches: Mapping[str, int]
    paces: tuple[ModelOnExecutor, ...]


@dataclass(frozen=True, slots=True)
class ExecutionReport:
    """The counts of executors and their servers, for the metrics.

    Args:
        up: by server: 1 while it gets batches, else 0; by deployment of a cluster: its replicas.
        batches: by server and outcome: "answered", "refused" (the request was at fault, or there was no room),
            "failed", or "cut_off" because another server was faster.
        repeats: batches that were sent once more, by reason: "hedge", "retry" or "probe" among the servers of an
            executor; "executor_retry", "executor_late" or "executor_probe" on another executor.
        overhead: by model: the times of preparing and of handing out results.
        executors: each, if there are several.
    """

    up: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    batches: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    repeats: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    overhead: Mapping[ModelKey, OverheadTimes] = field(default_factory=dict)
    executors: tuple[ExecutorReport, ...] = ()


class Executor(Protocol):
    """Runs batches of requests.

    Attributes:
        slots: batches that may run at the same moment, at least 1; callers never exceed it. It may change.
    """

    @property
    def slots(self) -> int: ...

    async def start(self) -> None:
        """Starts to observe remote servers. A server that is away does not prevent the start."""

    def problem_with(self, key: ModelKey) -> str:
        """Returns why a model cannot run at the moment, as a sentence, or "" if it can."""

    def report(self) -> ExecutionReport:
        """Returns the state of its servers; empty if it has none."""

    def run(
        self, key: ModelKey, inputs: Inputs, deadlines_s: Deadlines
    ) -> Awaitable[list[Outcome]] | Future[list[Outcome]]:
        """Runs the inputs of several requests as one batch, processing included.

        Args:
            key: the model; the executor was given it before.
            inputs: of each request, by name, as the client sent them.
            deadlines_s: of each request, on the monotonic clock of this process, or None.

        Returns:
            One outcome for each request, in the order of `inputs`. An error of one request is its own outcome and does
            not affect the others. A `concurrent.futures.Future` is a batch in a thread: once begun it cannot be
            stopped.

        Raises:
            EngineUnavailableError: the server of the model is away; no request of the batch has an answer.
        """

    async def put(self, served: ServedModel) -> None:
        """Runs a model from now on, in place of an earlier one with the same key, which has no running batch.

        Where models run in this process, `served.loaded` is set.
        """

    async def drop(self, key: ModelKey) -> None:
        """Removes a model and returns once its memory is free; its running batches end first."""

    async def close(self, timeout_s: float) -> bool:
        """Stops the executor and frees the models. Running batches have `timeout_s` to finish.

        Returns:
            False if a batch still runs; its model then stays in memory.
        """


@runtime_checkable
class SplitsBatches(Protocol):
    """An executor that repeats the requests of a failed batch one by one."""

    def run_whole(self, key: ModelKey, inputs: Inputs, deadlines_s: Deadlines) -> Awaitable[list[Outcome]]:
        """See `Executor.run`; a batch that failed before, one request at a time, fails as a whole here."""


@runtime_checkable
class PreparesHere(Protocol):
    """An executor whose inputs are preprocessed in this process, wherever its models run."""

    def loaded_model(self, key: ModelKey) -> LoadedModel | None:
        """Returns the processing of a model; None if it is not known at the moment, or is done elsewhere."""


@runtime_checkable
class InProcess(PreparesHere, Protocol):
    """An executor whose models are in this process, so that a batch of a quick one can run on the event loop."""

    def run_on_loop(self, key: ModelKey, inputs: Inputs, deadlines_s: Deadlines) -> list[Outcome]:
        """Runs a batch in the calling thread; see `Executor.run`."""

    def loop_times(self, key: ModelKey) -> LoopTimes:
        """Returns what batches of a model take on the event loop."""
