"""A base class for executors in measurements and tests."""

from __future__ import annotations

from firstline_core.types import ModelKey
from firstline_gateway.executors.base import ExecutionReport
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
