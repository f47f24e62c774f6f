"""The gateway's last answer to each question of a page.

Pages poll as often as they like. Requests to the gateway are limited: pages with the same question share an answer; a
question is not repeated before `PACE_S` is over, nor before ten times the duration of the last answer; a denied
question is not repeated for minutes, unless a command is sent; and only a few requests run at a time. So neither many
pages nor a slow gateway overload the gateway.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from firstline.fleet.client import Fleet, acting_for
from firstline_core.errors import (
    CapacityError,
    FirstlineError,
    ForbiddenError,
    LinkError,
    RemoteTimeoutError,
    UnauthorizedError,
)
from firstline_core.fleet.persons import Person

PACE_S = 2.0
_PATIENCE = 10.0  # one question takes at most a tenth of the time
_DENIED_S = 300.0
_UNDER_WAY = 4
_LONG_S = 10.0  # longest wait of a page before it is shown as stale
_FORGET_S = 60.0
_MOST = 256
_SILENT = (LinkError, CapacityError, UnauthorizedError, ForbiddenError)

T = TypeVar("T")
Question = tuple[str, ...]
"""Identifies a question; equal questions are asked once."""


@dataclass(frozen=True)
class Answer(Generic[T]):
    """The last answer to a question.

    Args:
        value: the gateway's latest answer; None without one.
        heard_s: wall time of that answer; without one, of the gateway's latest answer to any question.
        error: the reason why there is no newer answer; None if this is the newest.
    """

    value: T | None
    heard_s: float
    error: FirstlineError | None

    @property
    def stale(self) -> bool:
        """Returns whether the present state is unknown: the gateway is unreachable, overloaded, or denies access."""
        return isinstance(self.error, _SILENT)


@dataclass
class _Held:
    answer: Answer[Any]
    asked_s: float
    due_s: float = 0.0
    task: asyncio.Task[None] | None = None


class Watch:
    """Polls the fleet API of one gateway.

    Args:
        fleet: the gateway's fleet API.
        person: returns on whose behalf the present page asks; None without sign-in.
        monotonic: seconds, for the pace.
        wall: seconds since 1970, for people.
    """

    def __init__(
        self,
        fleet: Fleet,
        person: Callable[[], Person | None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._fleet = fleet
        self._person = person
        self._monotonic = monotonic
        self._wall = wall
        self._heard_s = wall()
        self._held: dict[tuple[Person | None, Question], _Held] = {}
        self._gate = asyncio.Semaphore(_UNDER_WAY)

    async def ask(self, question: Question, fetch: Callable[[Fleet], T], *, lasting: bool = False) -> Answer[T]:
        """Returns the gateway's answer, or a recent one.

        Args:
            question: identifies `fetch`.
            fetch: sends the request; runs in a thread.
            lasting: the answer never changes, so it is fetched once.
        """
        now_s = self._monotonic()
        try:
            person = self._person()
        except UnauthorizedError as signed_out:
            return Answer(None, self._heard_s, signed_out)
        entry = self._held.get((person, question))
        if entry is None:
            self._forget(now_s)
            entry = self._held[person, question] = _Held(Answer(None, self._heard_s, None), now_s)
        entry.asked_s = now_s
        known = lasting and entry.answer.value is not None
        if entry.task is None and now_s >= entry.due_s and not known:
            entry.task = asyncio.create_task(self._fetch(entry, person, fetch))
        if entry.task is not None:
            done, _ = await asyncio.wait({entry.task}, timeout=_LONG_S)
            if not done:
                last = entry.answer
                error = RemoteTimeoutError(f"The gateway has been answering for more than {_LONG_S:g} s.")
                return Answer(last.value, last.heard_s, error)
        return entry.answer

    async def do(self, deed: Callable[[Fleet], T]) -> T:
        """Sends a command to the gateway; all earlier answers become stale.

        Raises:
            FirstlineError: the gateway's error, or the person is not signed in any more.
        """
        try:
            return await asyncio.to_thread(acting_for, self._person(), self._fleet, deed)
        finally:
            for entry in self._held.values():
                entry.due_s = 0.0

    async def _fetch(self, entry: _Held, person: Person | None, fetch: Callable[[Fleet], Any]) -> None:
        async with self._gate:
            start_s = self._monotonic()
            try:
                value = await asyncio.to_thread(acting_for, person, self._fleet, fetch)
            except FirstlineError as error:
                last = entry.answer
                heard_s = last.heard_s if last.value is not None else self._heard_s
                entry.answer = Answer(last.value, heard_s, error.with_traceback(None))
            else:
                self._heard_s = self._wall()
                entry.answer = Answer(value, self._heard_s, None)
            finally:
                end_s = self._monotonic()
                denied = isinstance(entry.answer.error, ForbiddenError)
                pace_s = _DENIED_S if denied else max(PACE_S, _PATIENCE * (end_s - start_s))
                entry.due_s = end_s + pace_s
                entry.task = None

    def _forget(self, now_s: float) -> None:
        """Makes room: deletes answers that no page uses, and above the limit the ones unused for the longest time."""
        unused = [(entry.asked_s, key) for key, entry in self._held.items() if entry.task is None]
        idle = sorted(unused, key=lambda each: each[0])  # persons have no order
        over = len(self._held) - _MOST + 1
        for number, (asked_s, key) in enumerate(idle):
            if number < over or now_s - asked_s > _FORGET_S:
                del self._held[key]
