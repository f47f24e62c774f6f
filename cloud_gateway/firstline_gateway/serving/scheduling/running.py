"""Batches that run, and which models run as many as they may."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from firstline_core.types import ModelKey
from firstline_gateway.executors.base import Outcome
from firstline_gateway.serving.scheduling.waiting import Waiting

Ran = asyncio.Future[list[Outcome]]


class Batch(NamedTuple):
    """Of one model, since `started_s`."""

    key: ModelKey
    items: list[Waiting]
    rows: int
    started_s: float


class Running:
    """Belongs to one event loop.

    Args:
        concurrency: of a model's batches, the most that run at the same moment; 0 is as many as the engine runs.

    Attributes:
        batches: by what tells of their end; only read by others.
    """

    def __init__(self, concurrency: Callable[[ModelKey], int]) -> None:
        self._concurrency = concurrency
        self.batches: dict[Ran, Batch] = {}
        self._of_model: Counter[ModelKey] = Counter()

    def add(self, ran: Ran, batch: Batch) -> None:
        """A batch begins."""
        self.batches[ran] = batch
        self._of_model[batch.key] += 1

    def pop(self, ran: Ran) -> Batch:
        """A batch has ended."""
        batch = self.batches.pop(ran)
        self._of_model[batch.key] -= 1
        return batch

    def full(self) -> set[ModelKey]:
        """Models that run as many batches as they may."""
        return {key for key in self._of_model if self.is_full(key)}

    def is_full(self, key: ModelKey, more: int = 1) -> bool:
        """Whether a model may not run so many batches more."""
        return 0 < self._concurrency(key) < self._of_model[key] + more

    def is_bound(self, key: ModelKey, slots: int) -> bool:
        """Whether a model may not run in as many slots as there are."""
        return 0 < self._concurrency(key) < slots
