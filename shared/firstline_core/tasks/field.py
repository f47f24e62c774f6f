"""The scores, groups, losses and events of a task in the field, where their failure never fails a request.

- A loss that fails or gives no number counts as 1. The answer is right whatever its comparison does. If failures did
  not count, audits of a bad model would be lost by its own loss, and it would never alarm.
- An answer whose score fails has no confidence, and one whose group fails is of no group: both are escalated.
- Groups that cannot be counted are not reported.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import numpy as np

from firstline_core.tasks.base import Scores, Task, event_names
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import counted
from firstline_core.types import Arrays, row_count

log = logger(__name__)

_LOST, _UNKNOWN = "loss of a task failed, counted as 1", "score or group of a task failed, counted as unknown"

_Found = TypeVar("_Found")
Numbers = list[float | None]
"""One for each row; None where there is none."""


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
            raise ValueError(f"the loss of {counted(rows, 'row')} has the shape {list(found.shape)}")
        return np.clip(np.nan_to_num(found, nan=1.0), 0, 1)

    return _or_else(task, losses, np.ones(rows, np.float32))


def field_events(task: Task, edge: Arrays, full: Arrays) -> dict[str, float]:
    """Returns the losses of the events that can occur in one row; these are events of classes that a model reports.

    Args:
        task: of both answers.
        edge: canonical outputs of the edge model, one row.
        full: canonical outputs of the full model, one row.
    """

    def names() -> tuple[str, ...]:
        reported = (task.occurrences(edge)[0] + task.occurrences(full)[0]).tolist()
        return event_names([name for name, number in zip(task.event_classes, reported, strict=True) if number])

    possible = _or_else(task, names, task.events)

    def losses() -> dict[str, float]:
        found = task.events_of(possible, edge, full)
        return {
            name: float(np.clip(np.nan_to_num(event.loss[0], nan=1.0), 0, 1))
            for name, event in found.items()
            if event.counts[0]
        }

    return _or_else(task, losses, dict.fromkeys(possible, 1.0))


def field_scores(task: Task, score: Callable[[Arrays, Arrays], Scores], outputs: Arrays, evidence: Arrays) -> Numbers:
    """Returns the number that a function computes for each row, such as the score or the learned loss; else None.

    Args:
        task: of the answer.
        score: of outputs and evidence.
        outputs: canonical outputs.
        evidence: see `Prediction`.
    """
    try:  # and no further call: this runs for every request
        found: Numbers = score(outputs, evidence).tolist()
        if len(found) == len(next(iter(outputs.values()))):
            return found
        error: Exception = ValueError(f"there are {len(found)} scores")
    except Exception as failure:  # noqa: BLE001 (see `_or_else`)
        error = failure
    _log(task, error, _UNKNOWN)
    return [None] * row_count(outputs)


def field_group(task: Task, outputs: Arrays) -> str:
    """Returns `Task.groups` of the only row; "" for no group."""
    return _or_else(task, lambda: task.groups(outputs)[0], "", _UNKNOWN)


def field_occurrences(task: Task, outputs: Arrays) -> dict[str, int]:
    """Returns how often the only row reports each class that it reports."""

    def occurrences() -> dict[str, int]:
        reported = zip(task.event_classes, task.occurrences(outputs)[0].tolist(), strict=True)
        return {name: number for name, number in reported if number}

    return _or_else(task, occurrences, {}, _UNKNOWN)


def _or_else(task: Task, find: Callable[[], _Found], failed: _Found, event: str = _LOST) -> _Found:
    try:
        return find()
    except Exception as error:  # noqa: BLE001 (a task of an installed package may raise anything)
        _log(task, error, event)
        return failed


def _log(task: Task, error: Exception, event: str) -> None:
    _log_once(event, task.kind, str(error)[:500] or type(error).__name__)


@lru_cache(maxsize=64)
def _log_once(event: str, task: str, error: str) -> None:
    log.error(event, task=task, error=error)
