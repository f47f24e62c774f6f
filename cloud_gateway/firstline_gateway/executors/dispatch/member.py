"""One executor of several: what it runs now, what a batch there would take, and how it has done. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.types import ModelKey
from firstline_gateway.executors.base import Executor, InProcess, TakesAhead
from firstline_gateway.executors.dispatch.budgets import Energy, Memory
from firstline_gateway.executors.dispatch.choice import Candidate, free_s, wait_s
from firstline_gateway.executors.dispatch.costs import Costs, Source
from firstline_gateway.executors.dispatch.forecast import Forecast
from firstline_gateway.executors.dispatch.running import Running
from firstline_gateway.executors.dispatch.standing import CopyTime, Probes, Standing
from firstline_gateway.models.repository import ServedModel


@dataclass(slots=True)
class _Placed:
    """A model that it runs."""

    served: ServedModel
    costs: Costs
    forecast: Forecast
    probes: Probes
    standing: Standing


class Member:
    """One executor, by the name that the settings give it.

    Args:
        name: see there.
        executor: which runs the batches.
        costs: of a model there.
        sessions: batches that really run side by side there; 0 is as many as it is given.
        memory: its budget.
        energy: its budget.
        takes: whether a model, by name, may run there at all.
        load: a model into this process for it; None where its models are elsewhere, or are loaded for it.

    Attributes:
        outcomes: batches by what became of them: "answered", "refused" (the requests' own fault, or perhaps), "failed",
            or "cut_off": given up, because another executor was faster or nobody waits for a copy any longer.
        running: in the order of their beginnings.
        threads: what runs them, where that is threads of this process.
    """

    def __init__(
        self,
        name: str,
        executor: Executor,
        *,
        costs: Callable[[ServedModel], Costs],
        sessions: int,
        memory: Memory,
        energy: Energy,
        takes: Callable[[str], bool] = lambda name: True,
        load: Callable[[ServedModel], LoadedModel] | None = None,
    ) -> None:
        self.name = name
        self.executor = executor
        self.memory = memory
        self.energy = energy
        self.takes = takes
        self.load = load
        self.running: list[Running] = []
        self.outcomes: Counter[str] = Counter()
        self.threads = executor if isinstance(executor, TakesAhead) else None
        self._in_process = isinstance(executor, InProcess)  # dear to ask, and asked for each request
        self._copies = CopyTime()
        self._costs = costs
        self._sessions = sessions
        self._placed: dict[ModelKey, _Placed] = {}

    # Which models it runs.

    def costs(self, served: ServedModel) -> Costs:
        """What a model costs there; looks at files, and may ask a store."""
        return self._costs(served)

    def place(self, served: ServedModel, costs: Costs) -> None:
        """It runs a model from now on, at these costs; `memory` has room for it."""
        self.displace(served.key)
        measured = self.executor.measured(served.key) if isinstance(self.executor, InProcess) else {}
        self._placed[served.key] = _Placed(served, costs, Forecast(costs.seconds or measured), Probes(), Standing())
        self.memory.models_bytes += served.memory_bytes

    def displace(self, key: ModelKey) -> None:
        """It runs a model no more."""
        placed = self._placed.pop(key, None)
        if placed is not None:
            self.memory.models_bytes -= placed.served.memory_bytes

    def has(self, key: ModelKey) -> bool:
        """Whether it runs a model."""
        return key in self._placed

    @property
    def keys(self) -> list[ModelKey]:
        return list(self._placed)

    # How it is.

    def trouble(self, key: ModelKey) -> str:
        """Why it runs a model not at the moment; "" where it does."""
        return self.executor.trouble(key) if key in self._placed else f"It is not on executor '{self.name}'."

    def standing(self, key: ModelKey) -> Standing:
        """Whether it answers batches of a model that it runs."""
        return self._placed[key].standing

    def left_alone(self, key: ModelKey) -> bool:
        """Whether it runs a model, and gets none of its batches, because it did not answer them."""
        return self.has(key) and not self.standing(key).trusted

    def takes_now(self, key: ModelKey) -> bool:
        """Whether it runs a model, and answers its batches."""
        return not self.trouble(key) and self.standing(key).trusted

    def pace(self, key: ModelKey) -> float:
        """What batches of a model take now, to what is usual."""
        return self._placed[key].forecast.pace

    def oldest_s(self, key: ModelKey, now_s: float) -> float:
        """How long the oldest batch of a model has been under way; 0 where none is."""
        return max((now_s - each.started_s for each in self.running if each.key == key), default=0.0)

    def is_unmetered(self, key: ModelKey) -> bool:
        """Whether a model is beyond its budget of energy, because nobody knows what its batches take."""
        return self.energy.is_limited and self.source(key) == "absent"

    def source(self, key: ModelKey) -> Source:
        """Where the joules of its batches come from."""
        return self._placed[key].costs.source

    def is_free(self, key: ModelKey) -> bool:
        """Whether it may run batches of a model at once, without a look at a budget for each."""
        return (
            self.takes_now(key)
            and not self.energy.is_limited
            and self._placed[key].costs.largest_bytes <= self.memory.free_bytes
        )

    @property
    def usable(self) -> bool:
        """Whether it is given batches at the moment."""
        return any(map(self.takes_now, self._placed))

    @property
    def has_budget(self) -> bool:
        """Whether anything may be beyond what it may take."""
        return self.energy.is_limited or self.memory.is_limited

    @property
    def side_by_side(self) -> int:
        """Batches that really run at the same moment."""
        return self._sessions or self.executor.slots

    @property
    def slots(self) -> int:
        """Batches that it is worth giving at the same moment.

        One elsewhere of which nobody knows how many run there side by side is given fewer as it takes longer: what
        waits there nobody can take back.
        """
        if not self.usable:
            return 0
        if self._sessions:
            return min(self.executor.slots, self._sessions)
        if self._in_process:
            return self.executor.slots
        pace = min((placed.forecast.pace for placed in self._placed.values()), default=1.0)
        return max(1, int(self.executor.slots / max(1.0, pace)))

    @property
    def _usable_slots(self) -> int:
        """Batches that it runs at the same moment, of those that it is given."""
        return max(1, min(self.slots, self.side_by_side))

    def room(self, held: int = 0, *, ahead: bool = False) -> bool:
        """Whether it may be given one more batch.

        Args:
            held: batches that are to come before it.
            ahead: as well as those that run there, as many may be on their way, where it is not in this process.
        """
        more = self._sessions if ahead and not self._in_process else 0
        return len(self.running) + held < min(self.slots + more, max(self.slots, self.executor.slots))

    def room_for_a_trial(self, key: ModelKey, held: int = 0) -> bool:
        """Whether it may be given a batch of a model that it is left alone with: one at a time."""
        return not self.runs(key) and len(self.running) + held < self.side_by_side

    def runs(self, key: ModelKey) -> bool:
        """Whether a batch of a model is under way there."""
        return any(each.key == key for each in self.running)

    # Batches.

    def seconds(self, key: ModelKey, rows: int) -> float | None:
        """What a batch takes there once it runs; None where nothing is known."""
        return self._placed[key].forecast.seconds(rows)

    def worthwhile_rows(self, key: ModelKey, max_rows: int) -> int:
        """The largest batch that pays there."""
        return self._placed[key].forecast.worthwhile_rows(max_rows)

    def has_tried(self, key: ModelKey, rows: int) -> bool:
        """Whether a batch of the size of these rows ran there, or was measured."""
        return self._placed[key].forecast.has_tried(rows)

    def rows_per_s(self, key: ModelKey, rows: int) -> float:
        """What it does of a model, in batches of at most so many rows; 0 where nothing is known."""
        size = self.worthwhile_rows(key, max(1, rows))
        seconds = self.seconds(key, size)
        return self.side_by_side * size / seconds if seconds else 0.0

    def overdue(self, now_s: float) -> float:
        """How many times what was expected something there has taken already, at least 1: so slow may it be for all."""
        return max((each.overdue(now_s) for each in self.running), default=1.0)

    def overdue_everywhere(self, now_s: float) -> float:
        """How many times what was expected something in each of its slots has taken already, at least 1.

        One batch that hangs keeps its slot, and says nothing of what the others take.
        """
        slots = self._usable_slots
        if len(self.running) < slots:
            return 1.0
        return min(each.overdue(now_s) for each in self.running[:slots])

    def free_for_s(self, key: ModelKey, now_s: float) -> list[float]:
        """Seconds until each of its slots is free for a batch of a model; see `room_for_a_trial`."""
        left_s = [each.left_s(now_s) for each in self.running]
        if self.standing(key).trusted:
            return free_s(left_s, self._usable_slots)
        trials_s = [each.left_s(now_s) for each in self.running if each.key == key]
        return [max([wait_s(left_s, self.side_by_side), *trials_s])]

    def candidate(self, key: ModelKey, rows: int, now_s: float, held_s: Sequence[float] = ()) -> Candidate[Member]:
        """What it would be to a batch of a model that it runs, once those have run that are held for it."""
        placed = self._placed[key]
        run_s = placed.forecast.seconds(rows)
        if run_s is not None:
            run_s *= self.overdue(now_s)
        return Candidate(
            name=self,
            wait_s=wait_s([*(each.left_s(now_s) for each in self.running), *held_s], self.side_by_side),
            run_s=run_s,
            under_way=len(self.running),
            trusted=placed.standing.trusted,
            memory_bytes=placed.costs.memory_of(rows),
            free_bytes=self.memory.free_bytes,
            energy_j=placed.costs.energy_of(rows, run_s or 0.0),
            left_j=self.energy.left_j(now_s),
        )

    def has_memory(self, key: ModelKey, rows: int) -> bool:
        """Whether there is room for a batch beside what runs."""
        return self._placed[key].costs.memory_of(rows) <= self.memory.free_bytes

    def ever_has_memory(self, key: ModelKey, rows: int) -> bool:
        """Whether there is room for a batch where no other runs."""
        return self.memory.fits(self._placed[key].costs.memory_of(rows))

    def begin(self, key: ModelKey, rows: int, now_s: float, *, is_probe: bool = False) -> Running:
        """It is given a batch."""
        placed, found = self._placed[key], self.candidate(key, rows, now_s)
        usual_s = placed.forecast.seconds(rows)
        energy_j = placed.costs.energy_of(rows, usual_s or 0.0)
        running = Running(
            key, rows, found.wait_s, usual_s, placed.forecast.pace, now_s, found.memory_bytes, energy_j, is_probe
        )
        if is_probe:
            placed.probes.sent(now_s)
        else:
            placed.probes.used(now_s)
        self.memory.batches_bytes += found.memory_bytes
        self.energy.reserve(energy_j, now_s)
        self.running.append(running)
        return running

    def may_probe(self, key: ModelKey, now_s: float) -> bool:
        """Whether a copy of a batch should go there: it has had nothing to do for a while, has room, should be well."""
        placed = self._placed[key]
        return (
            placed.probes.due(now_s)
            and placed.standing.may_be_tried(now_s)
            and len(self.running) < self.side_by_side
            and not self.runs(key)
            and not any(each.is_probe for each in self.running)
            and self._copies.may(now_s)
        )

    def answered(self, running: Running, now_s: float) -> None:
        """A batch came back."""
        self._end(running, now_s)
        self.outcomes["answered"] += 1
        if (placed := self._placed.get(running.key)) is not None:
            placed.standing.answered()
            placed.forecast.observe(
                running.rows, now_s - running.started_s, wait_s=running.wait_s, pace=running.pace, now_s=now_s
            )

    def answered_here(self, key: ModelKey, rows: int, seconds: float, now_s: float) -> None:
        """A batch has run in the thread that asks: of its slots it took none, and says nothing of their pace."""
        placed = self._placed[key]
        self.outcomes["answered"] += 1
        placed.standing.answered()
        placed.probes.used(now_s)
        self.energy.spend(placed.costs.energy_of(rows, seconds), now_s)

    def refused(self, running: Running, now_s: float) -> None:
        """A batch came back with what its requests are to blame for, or perhaps are."""
        self._end(running, now_s)
        self.outcomes["refused"] += 1

    def failed(self, running: Running, now_s: float) -> None:
        """A batch did not come back; what that says of the executor is for `doubted`."""
        self._end(running, now_s)
        self.failed_here()

    def failed_here(self) -> None:
        """A batch failed that had no slot; likewise."""
        self.outcomes["failed"] += 1

    def doubted(self, key: ModelKey, now_s: float) -> bool:
        """It could not do what executors do with a batch of a model; whether it is left alone with that from now on."""
        return self.has(key) and self.standing(key).failed(now_s)

    def cut_off(self, running: Running, now_s: float, *, runs_on: bool = False) -> None:
        """A batch was given up, because another executor was faster, or it was a copy that took too long.

        Args:
            running: the batch.
            now_s: the present.
            runs_on: nobody can stop it: it keeps its place until it is `freed`.
        """
        if not runs_on:
            self._end(running, now_s)
        self.outcomes["cut_off"] += 1
        if (placed := self._placed.get(running.key)) is not None:
            placed.forecast.waited(
                running.rows, now_s - running.started_s, wait_s=running.wait_s, pace=running.pace, now_s=now_s
            )

    def freed(self, running: Running, now_s: float) -> None:
        """A batch has ended that ran on after it was given up."""
        self._end(running, now_s)

    def _end(self, running: Running, now_s: float) -> None:
        self.running.remove(running)
        if running.is_probe:
            self._copies.took(now_s - running.started_s, now_s)
        self.memory.batches_bytes -= running.memory_bytes
        placed = self._placed.get(running.key)
        took_j = placed.costs.energy_of(running.rows, running.ran_s(now_s)) if placed is not None else running.energy_j
        self.energy.settle(running.energy_j, took_j, now_s)
