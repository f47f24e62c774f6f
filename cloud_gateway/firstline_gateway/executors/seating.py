"""What the batcher needs of an engine of several executors: where the next batch of a model had best run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from firstline_core.errors import FirstlineError
from firstline_core.types import Tensor
from firstline_gateway.executors.base import ModelKey, Outcome


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
        has_others: where it cannot, whether an executor that is free may take what is left of the model, once enough
            of it is held for this one.
    """

    @property
    def is_free(self) -> bool: ...

    @property
    def times(self) -> Times: ...

    @property
    def again_s(self) -> float: ...

    @property
    def has_others(self) -> bool: ...

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


class Way(NamedTuple):
    """What a model's requests have to get by, where not every executor runs every model.

    Args:
        slots: batches that run side by side on the executors that run it.
        parts: of what each model has to run, the part that goes to those executors.
    """

    slots: int
    parts: Mapping[ModelKey, float]


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

    def way(self, key: ModelKey) -> Way:
        """What a model's requests wait behind."""
        ...

    def quickest_s(self, key: ModelKey, rows: int) -> float | None:
        """What a batch takes where that is least; None where nobody knows."""
        ...

    def hold(self, key: ModelKey, seat: Seat, rows: int) -> None:
        """A batch of so many rows waits for a seat that is not free: what is asked after this comes behind it."""
        ...

    def hold_all(self, key: ModelKey, rows: int, max_rows: int) -> None:
        """So many rows wait for the executors that run a model, of which none is free; likewise."""
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
