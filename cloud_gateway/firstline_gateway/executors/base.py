"""What the batcher needs of an engine, in this process or on other machines; of several executors also `seating`."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from firstline_core.errors import FirstlineError
from firstline_core.telemetry.statistics import Apart
from firstline_core.types import ModelKey, Tensor
from firstline_gateway.models.repository import ServedModel

Probabilities = NDArray[np.float32]
Outcome = Probabilities | FirstlineError
"""What became of one request of a batch: (rows, classes) in the order of its rows, or why it alone failed."""


@dataclass(frozen=True, slots=True)
class OnExecutor:
    """How one model is on one of several executors.

    Args:
        pace: what its batches take now, to what is usual there.
        problem: why it is given none of them, as a sentence; "" where it is given some.
        energy_source: where the joules of its batches come from: "measured", "modelled" or "absent".
        oldest_s: how long the oldest of its batches has been under way; 0 where none is.
        mind: what its owner should know of it, as a sentence; "" where there is nothing.
    """

    pace: float
    problem: str
    energy_source: str
    oldest_s: float
    mind: str


@dataclass(frozen=True, slots=True)
class ExecutorReport:
    """How one of several executors is.

    Args:
        name: in the settings.
        problem: why it is given no batches at all, as a sentence; "" where it is given some.
        slots: batches that it is worth giving at the same moment.
        under_way: batches that it has.
        batches: that it had, by what became of them; see `EngineReport.batches`.
        models: that it runs.
        energy_j: that its batches took, as far as anybody knows.
    """

    name: str
    problem: str
    slots: int
    under_way: int
    batches: Mapping[str, int]
    models: Mapping[ModelKey, OnExecutor]
    energy_j: float

    @property
    def energy_sources(self) -> frozenset[str]:
        """Where its joules come from."""
        return frozenset(each.energy_source for each in self.models.values())


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What an engine with servers of its own did, for the metrics.

    Args:
        up: by server: 1 while it is asked, else 0; by deployment of a cluster: its replicas.
        batches: by server and outcome: "answered", "refused" (the request was at fault, or there was no room),
            "failed", or "cut_off" because another server was faster.
        repeats: batches that were sent once more, by why: "hedge" or "retry"; among executors "executor_retry",
            "executor_late" or "executor_probe".
        apart: by model: what of its runs was not the model's own time.
        executors: each, where there are several.
    """

    up: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    batches: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    repeats: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    apart: Mapping[ModelKey, Apart] = field(default_factory=dict)
    executors: tuple[ExecutorReport, ...] = ()


class Executor(Protocol):
    """Runs batches of requests.

    Attributes:
        slots: how many batches may run at the same moment, at least 1; the batcher never asks for more. It may change.
    """

    @property
    def slots(self) -> int: ...

    async def start(self) -> None:
        """Begins to look after what runs elsewhere. What is away does not keep it from starting."""
        ...

    def trouble(self, key: ModelKey) -> str:
        """Why a model cannot run at the moment, as a sentence; "" where it can."""
        ...

    def report(self) -> EngineReport:
        """How its servers are; nothing where it has none."""
        ...

    def run(
        self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]
    ) -> Awaitable[list[Outcome]]:
        """Runs the inputs of several requests as one batch, processing included.

        Args:
            key: which model; it is one of those that the engine was given.
            inputs: one tensor for each request, as the client sent it.
            deadlines_s: of each request, on the monotonic clock of this process; None where it has none.

        Returns:
            One outcome for each request, in the order of `inputs`. What is wrong with one request is its own
            outcome and leaves the others alone.

        Raises:
            EngineUnavailableError: what runs the model is away; nobody in the batch has an answer.
        """
        ...

    async def put(self, served: ServedModel) -> None:
        """Runs a model from now on, in place of what it was given under the same key, of which no batch runs now.

        Where models run in this process, `served.loaded` is there.
        """
        ...

    async def drop(self, key: ModelKey) -> None:
        """Gives a model up, and returns once its memory is free: batches that run on it end first."""
        ...

    async def close(self, timeout_s: float) -> bool:
        """Ends the engine and frees the models. What runs at this moment has `timeout_s` to finish.

        Returns:
            False where something runs on: the models are kept, because it uses them.
        """
        ...


@runtime_checkable
class InProcess(Protocol):
    """An engine whose models are in this process, so that a batch of a small one can run in the thread that asks."""

    def run_now(
        self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]
    ) -> list[Outcome] | Awaitable[list[Outcome]]:
        """As `Executor.run`, in this thread, however many run elsewhere.

        Returns:
            The outcomes; what to wait for where that failed here, and another executor is asked.
        """
        ...

    def measured(self, key: ModelKey) -> Mapping[int, float]:
        """Seconds that batches of a model took when it was loaded, by their rows; nothing where it was not measured."""
        ...


class Offer:
    """A batch that a thread begins by itself as soon as it is free, unless it is taken back before.

    Attributes:
        begun_s: when a thread began it, on the engine's clock; None where none has.
        ran: its outcomes.
    """

    def __init__(self) -> None:
        self.begun_s: float | None = None
        self.ran: Future[list[Outcome]] = Future()

    @property
    def is_begun(self) -> bool:
        """Whether a thread has begun it."""
        return self.ran.running() or (self.ran.done() and not self.ran.cancelled())

    def withdraw(self) -> bool:
        """Takes it back; False where a thread has begun it."""
        return self.ran.cancel()


@runtime_checkable
class TakesAhead(Protocol):
    """An engine whose threads can be given a batch before one of them is free."""

    def offer(self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]) -> Offer:
        """Has it run, as `Executor.run`, by the first thread that is free."""
        ...
