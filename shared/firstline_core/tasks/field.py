"""Losses in the field: a task's loss that fails or gives no number counts as 1, and never fails a request.

The answer is right whatever its comparison does. If failures did not count, audits of a bad model would be lost by its
own loss, and it would never alarm.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TypeVar

import numpy as np

from firstline_core.tasks.base import Scores, Task, event_names
from firstline_core.telemetry.logs import logger
from firstline_core.types import Arrays, row_count

log = logger(__name__)

_Found = TypeVar("_Found")


def field_losses(task: Task, edge: Arrays, full: Arrays) -> Scores:
    """Returns `Task.loss` of each row, (n,) in 0..1.

    Args:
        task: of both answers.
        edge: canonical outputs of the edge model.
        full: canonical outputs of the full model.
    """
    rows = row_count(full)

    def losses() -> Scores:
        found = np.asarray(task.loss(edge, full), np.float32)
        if found.shape != (rows,):
            raise ValueError(f"the loss of {rows} rows has the shape {list(found.shape)}")
        return np.clip(np.nan_to_num(found, nan=1.0), 0, 1)

    return _or_else(task, losses, np.ones(rows, np.float32))


def field_events(task: Task, edge: Arrays, full: Arrays) -> dict[str, float]:
    """Returns the losses of the events that can occur in one row; these are events of groups that a model reports.

    Args:
        task: of both answers.
        edge: canonical outputs of the edge model, one row.
        full: canonical outputs of the full model, one row.
    """

    def names() -> tuple[str, ...]:
        reported = (task.occurrences(edge)[0] + task.occurrences(full)[0]).tolist()
        return event_names([name for name, number in zip(task.group_names, reported, strict=True) if number])

    def loss(name: str) -> float | None:
        event = task.event(name, edge, full)
        return float(np.clip(np.nan_to_num(event.loss[0], nan=1.0), 0, 1)) if event.counts[0] else None

    occurred: float | None = 1.0
    found = {name: _or_else(task, partial(loss, name), occurred) for name in _or_else(task, names, task.events)}
    return {name: value for name, value in found.items() if value is not None}


def _or_else(task: Task, find: Callable[[], _Found], failed: _Found) -> _Found:
    try:
        return find()
    except Exception as error:  # noqa: BLE001 (a task of an installed package may raise anything)
        _log_once(task.kind, repr(error)[:200])
        return failed


@lru_cache(maxsize=64)
def _log_once(task: str, error: str) -> None:
    log.error("loss of a task failed, counted as 1", task=task, error=error)
