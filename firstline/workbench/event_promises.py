"""Promises about events in a user's words, such as "missed person 5% at 90%", and what was seen of other events."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.evidence import Evidence
from firstline_core.bundle.manifest import Manifest
from firstline_core.errors import ConfigError
from firstline_core.routing import binomial
from firstline_core.routing.contracts import first_rows
from firstline_core.tasks.base import MISSED, Task

EXAMPLE = "missed person 5% at 90%"

_DECIMALS = 12  # of a share, without the error of 1 - 0.9
_NUMBER = r"(\d+(?:\.\d+)?)\s*%"
_PROMISE = re.compile(rf"\s*(?:(\S.*?)\s+)?{_NUMBER}\s+at\s+{_NUMBER}\s*")


@dataclass(frozen=True, slots=True)
class EventBound:
    """Of the accepted answers in which an event can occur, at most `epsilon` have it, with confidence 1 - `delta`."""

    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class Unpromised:
    """An event about which nothing was promised.

    Attributes:
        n: number of independent observations in which it can occur.
        n_needed: the fewest further ones without which no promise like the others can be proved; 0 if there are enough.
    """

    n: int
    n_needed: int


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """A promise that is not proved, and what breaks it.

    Attributes:
        lost: number of observations with the event among the `n` with the highest scores.
        n: with which testing begins; all observations if there are fewer.
        least_epsilon: the smallest share in whole percent, below that in tenths, that passes the same test alone at the
            same confidence; it can be below the promised one. None if none up to ten times the promised one passes.
    """

    lost: int
    n: int
    least_epsilon: float | None


@dataclass(frozen=True, slots=True)
class UsualAnswer:
    """The full model's most frequent answer, where a model that always gives it would keep a promise about all rows.

    Attributes:
        answer: the class; "" for nothing.
        share: of the rows that have it.
    """

    answer: str
    share: float


def parse_promises(texts: Sequence[str], task: Task, *, all_answers: bool = False) -> dict[str, EventBound]:
    """Returns the promises by event; the only one has the event "" if it is about all answers.

    Args:
        texts: such as "missed person 5% at 90%": event, share of the rows in which it can occur, confidence.
        task: has the events.
        all_answers: whether a promise without an event, such as "5% at 90%", is about all answers.

    Raises:
        ConfigError: a promise is not in this form, names an unknown event, names one twice, or none.
    """
    found: dict[str, EventBound] = {}
    for text in texts:
        match = _PROMISE.fullmatch(text)
        if match is None:
            example = f"{task.events[0]} 5% at 90%" if task.events else EXAMPLE
            raise ConfigError(
                f"The promise '{text}' is not in the form 'EVENT SHARE% at CONFIDENCE%', such as '{example}'."
            )
        share, confidence = float(match[2]), float(match[3])
        if match[1] is None and not all_answers:
            raise ConfigError(
                f"The promise '{text}' names no event; state one about all answers with "
                f"--epsilon {share / 100:.10g} --delta {1 - confidence / 100:.10g}."
            )
        if match[1] is None and len(texts) > 1:
            raise ConfigError(f"The promise '{text}' is about all answers; make no other promise, or name its event.")
        event = "" if match[1] is None else _event(match[1], task)
        if event in found:
            raise ConfigError(f"There are two promises about '{event}'; make one.")
        for what, percent, usual in (("share", share, 5), ("confidence", confidence, 90)):
            if not 0 < round(percent / 100, _DECIMALS) < 1:
                raise ConfigError(
                    f"The {what} of the promise '{text}' is {percent:g}%, but must be above 0% and below 100%, such as "
                    f"{usual}%."
                )
        found[event] = EventBound(round(share / 100, _DECIMALS), round(1 - confidence / 100, _DECIMALS))
    return found


def _event(name: str, task: Task) -> str:
    """Returns the event of a name; case and runs of spaces are ignored if only one event is meant.

    Raises:
        ConfigError: there is no such event.
    """
    if name in task.events:
        return name
    alike = [event for event in task.events if _plain(event) == _plain(name)]
    if len(alike) != 1:
        raise ConfigError(f"There is no event '{name}'; {_events_of(task, name)}.")
    return alike[0]


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold()


def _events_of(task: Task, like: str = "") -> str:
    if not task.events:
        return f"the task {task.kind} has none"
    close = get_close_matches(like, task.events, n=3, cutoff=0.9)
    shown = close or task.events[:8]
    more = f" and {len(task.events) - len(shown)} more" if len(shown) < len(task.events) else ""
    return f"use one of {', '.join(shown)}{more}"


def require_event(manifest: Manifest) -> None:
    """Refuses a contract without an event for bundles in which it would be misleading.

    Raises:
        ConfigError: the bundle needs an event.
    """
    task = manifest.task
    if manifest.needs_event and not task.events:
        raise ConfigError(
            f"A contract of the task {task.kind} names an event, and this bundle has none; name up to 256 labels in "
            "event_labels of its recipe, and create it again."
        )
    if manifest.needs_event:
        raise ConfigError(
            f"A contract of the task {task.kind} names an event, because rows with nothing to report would hide the "
            f"misses: a model that reports nothing would be certified. Give a promise such as --promise "
            f"'{task.events[0]} 5% at 90%'; {_events_of(task)}."
        )


def usual_answer(evidence: Evidence, epsilon: float) -> UsualAnswer | None:
    """Returns the answer that would keep a promise about all rows if it were always given; None if there is none.

    Only tasks with events are looked at, because a promise about an event tells such a model from a good one.
    """
    task, full = evidence.edge.task, evidence.full
    if not task.events:
        return None
    answers = task.groups(full)
    answer, rows = Counter(answers).most_common(1)[0]
    at = answers.index(answer)
    always = {name: np.broadcast_to(array[at : at + 1], array.shape) for name, array in full.items()}
    return UsualAnswer(answer, rows / len(answers)) if task.loss(always, full).mean() <= epsilon else None


def broken_promise(
    scores: NDArray[np.floating],
    losses: NDArray[np.floating],
    bound: EventBound,
    is_proved: Callable[[EventBound], bool],
) -> BrokenPromise:
    """Returns what breaks a promise, and which share would be proved.

    A larger share need not be easier to prove: for each share, testing starts at other thresholds, and stops at others.
    So every share is tried.

    Args:
        scores: (n,) of the observations that certify, higher means keep.
        losses: (n,) 1 where the event occurred.
        bound: that was not proved.
        is_proved: tests a promise about the same event on the same observations.
    """
    highest = np.argsort(-scores, kind="stable")[: first_rows(bound.epsilon, bound.delta)]
    shares = (*(tenths / 1000 for tenths in range(1, 10)), *(percent / 100 for percent in range(1, 100)))
    least = next(
        (
            share
            for share in shares
            if share <= 10 * bound.epsilon
            and binomial.rows_needed(0, share, bound.delta) <= len(scores)
            and is_proved(EventBound(share, bound.delta))
        ),
        None,
    )
    return BrokenPromise(int(losses[highest].sum()), len(highest), least)


def unpromised(
    evidence: Evidence, rows: NDArray[np.intp], promises: Mapping[str, EventBound], seed: int
) -> dict[str, Unpromised]:
    """Returns what was seen of the classes that no promise is about, those with the most observations first.

    Args:
        evidence: of the data.
        rows: positions of the rows that certify.
        promises: by event. The weakest of them says how many observations are needed.
        seed: of the choice of one row of each cluster of dependent rows.
    """
    task = evidence.edge.task
    weakest = max(bound.epsilon for bound in promises.values()), max(bound.delta for bound in promises.values())
    needed = binomial.rows_needed(0, *weakest)
    found: dict[str, Unpromised] = {}
    for name, reported in zip(task.event_classes, (task.occurrences(evidence.full) > 0).T, strict=True):
        seen = len(evidence.units(rows[reported[rows]], seed))
        if seen and f"{MISSED} {name}" in task.events and f"{MISSED} {name}" not in promises:
            found[f"{MISSED} {name}"] = Unpromised(seen, max(needed - seen, 0))
    return dict(sorted(found.items(), key=lambda item: -item[1].n))
