"""What the batcher needs of an engine, in this process or on other machines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from firstline_core.errors import FirstlineError
from firstline_core.telemetry.statistics import Apart
from firstline_core.types import Tensor

if TYPE_CHECKING:
    from firstline_gateway.models.repository import ServedModel

Probabilities = NDArray[np.float32]
Outcome = Probabilities | FirstlineError
"""What became of one request of a batch: (rows, classes) in the order of its rows, or why it alone failed."""


class ModelKey(NamedTuple):
    """A full model as the gateway serves it."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class ExecutorReport:
    """How one of several executors is.

    Args:
        name: in the settings.
        problem: why it is given no batches, as a sentence; "" where it is given some.
        slots: batches that it is worth giving at the same moment.
        under_way: batches that it has.
        batches: that it had, by what became of them; see `EngineReport.batches`.
        paces: by model: what its batches take now, to what is usual there.
        energy_j: that its batches took, as far as anybody knows.
        energy_sources: where that comes from: "measured", "modelled" or "absent".
    """

    name: str
    problem: str
    slots: int
    under_way: int
    batches: Mapping[str, int]
    paces: Mapping[ModelKey, float]
    energy_j: float
    energy_sources: frozenset[str]


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

    def run_now(self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]) -> list[Outcome]:
        """As `Executor.run`, in this thread, however many run elsewhere."""
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


class Times(Protocol):
    """How long batches of a model take."""

    def seconds(self, rows: int) -> float:
        """What a batch is expected to take; 0 where nothing is known of the model."""
        ...

    def worthwhile_rows(self, max_rows: int) -> int:
        """The largest batch that it is good for, up to `max_rows`."""
        ...


class Seat(Protocol):
    """Where the next batch of a model is to run.

    Attributes:
        is_free: whether it can begin there now. Where it cannot, it is done there sooner than anywhere else all the
            same, and had best wait for that.
        times: what it takes there.
        again_s: where it cannot, seconds after which that is to be asked again, even if nothing has happened.
    """

    @property
    def is_free(self) -> bool: ...

    @property
    def times(self) -> Times: ...

    @property
    def again_s(self) -> float: ...

    def run(self, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]) -> Awaitable[list[Outcome]]:
        """As `Executor.run`; what is asked after this call finds it taken."""
        ...


class NoSeat(NamedTuple):
    """No executor may run a model's next batch now, whether or not one is free.

    Args:
        error: what those are told whose time ends before one may.
        again_s: seconds until one may at the earliest: infinite where nobody will without a change, 0 where that
            depends on what runs.
    """

    error: FirstlineError
    again_s: float


class Lane(NamedTuple):
    """One batch at a time, or several, on an executor that runs a model.

    Args:
        wait_s: until what it has there is done.
        times: what a batch of the model takes there.
        slots: batches that run there side by side.
    """

    wait_s: float
    times: Times
    slots: int = 1


class Look(Protocol):
    """At the seats that there are at one moment.

    Attributes:
        is_full: whether no executor is free for anything.
    """

    @property
    def is_full(self) -> bool: ...

    def is_bounded(self, key: ModelKey) -> bool:
        """Whether there may be no seat for a model, free or not: it has a budget everywhere, or nobody runs it."""
        ...

    def seat(self, key: ModelKey, rows: int, max_rows: int, least_rows: int = 1) -> Seat | NoSeat:
        """The next batch's.

        Args:
            key: its model.
            rows: that wait.
            max_rows: of a batch.
            least_rows: of the batch: those of the first request.
        """
        ...

    def lanes(self, key: ModelKey) -> list[Lane]:
        """What a model's requests wait for: the slots of the executors that run it; of nobody where nobody does."""
        ...

    def part(self, key: ModelKey, other: ModelKey) -> float:
        """The part of another model's work that goes to the executors that run a model."""
        ...

    def hold(self, key: ModelKey, seat: Seat, rows: int) -> None:
        """A batch of so many rows waits for a seat that is not free: what is asked after this comes behind it."""
        ...

    def waits(self, key: ModelKey, rows: int, of_model: int, max_rows: int, *, comes: bool = False) -> bool:
        """Whether so many rows more of a model wait, for executors that are busy; they are held likewise then.

        Args:
            key: the model.
            rows: of one request.
            of_model: rows that wait of the model, this one's among them.
            max_rows: of a batch.
            comes: whether that request was not there when the seats of its model were looked at.

        Returns:
            False where one that is free may be worth it, or nobody may run them: that is for `seat` to say.
        """
        ...


@runtime_checkable
class HasSeats(Protocol):
    """An engine of several executors, which knows of each how long it takes.

    What waits stays in the batcher's queue until an executor is free that is worth it: there it can grow together, be
    passed by what is more urgent, and go to whoever is free first after all.
    """

    def look(self) -> Look:
        """At the seats of this moment."""
        ...

    def on_free(self, call: Callable[[], None]) -> None:
        """Has `call` called whenever an executor becomes free."""
        ...


@runtime_checkable
class TakesAhead(Protocol):
    """An engine whose threads can be given a batch before one of them is free."""

    def offer(self, key: ModelKey, inputs: Sequence[Tensor], deadlines_s: Sequence[float | None]) -> Offer:
        """Has it run, as `Executor.run`, by the first thread that is free."""
        ...
