"""What the batcher needs of an engine of several executors: where the next batch of a model had best run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from firstline_core.errors import FirstlineError
from firstline_core.types import ModelKey, Tensor
from firstline_gateway.executors.base import Outcome


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

    def seat(
        self, key: ModelKey, rows: int, max_rows: int, least_rows: int = 1, *, shares: bool = False
    ) -> Seat | NoSeat:
        """The next batch's.

        Args:
            key: its model.
            rows: that wait.
            max_rows: of a batch.
            least_rows: of the batch: those of the first request.
            shares: whether another batch may begin beside it, so that rows may be left to that.
        """
        ...

    def lanes(self, key: ModelKey) -> list[Lane]:
        """What a model's requests wait for: the slots of the executors that run it; of nobody where nobody does."""
        ...

    def alone_s(self, key: ModelKey, rows: int) -> float:
        """What a batch of a model takes where that is least, if nothing keeps it; 0 where nothing is known."""
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
