"""A base class for executors in measurements and tests, and a pool of one executor."""

from collections.abc import Iterable, Sequence

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import FirstlineError
from firstline_core.types import Arrays, ModelKey, row_count
from firstline_gateway.executors.base import ExecutionReport, Executor, Outcome
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.executors.dispatch.member import Member
from firstline_gateway.models.repository import ServedModel


class ExecutorWithoutFiles:
    """Everything but `run` of an executor whose models need no files; see `executors.base.Executor`."""

    away = ""
    """Reason for which it runs nothing at the moment."""

    def __init__(self, slots: int = 1) -> None:
        self._slots = slots
        self.running = 0

    @property
    def slots(self) -> int:
        return self._slots

    def report(self) -> ExecutionReport:
        return ExecutionReport()

    async def start(self) -> None:
        pass

    async def put(self, served: ServedModel) -> None:
        pass

    async def drop(self, key: ModelKey) -> None:
        pass

    def problem_with(self, key: ModelKey) -> str:
        return self.away

    async def close(self, timeout_s: float) -> bool:
        return not self.running


def single_executor(executor: Executor, models: Iterable[ServedModel], *, clock: Clock = SYSTEM_CLOCK) -> Dispatcher:
    """Returns a pool of one executor without budgets, which has these models."""
    member = Member("", executor, sessions=0)
    for served in models:
        member.place(served, {})
    return Dispatcher([member], clock=clock)


async def run_earliest(
    pool: Dispatcher, key: ModelKey, inputs: Sequence[Arrays], deadlines_s: Sequence[float | None]
) -> list[Outcome]:
    """Runs a batch now, on the executor with the earliest predicted completion."""
    rows = sum(map(row_count, inputs))
    placement = pool.snapshot().place(key, rows, rows, rows)
    if isinstance(placement, FirstlineError):
        raise placement
    return await pool.run_on(placement.member, key, inputs, deadlines_s)
