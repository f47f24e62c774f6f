"""The gateway is asked at a bounded pace, however many pages ask; and what is old says how old."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from firstline.console import polling
from firstline.console.polling import PACE_S, Watch
from firstline.fleet.client import Fleet
from firstline_core.errors import (
    FirstlineError,
    ForbiddenError,
    LinkDownError,
    NotFoundError,
    RequestError,
    StoreUnavailableError,
    UnauthorizedError,
)


class Room:
    """A watch on a clock that a test moves, and a gateway that says its number of answers."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asked = 0
        self.takes_s = 0.0
        self.error: FirstlineError | None = None
        self.watch = Watch(cast(Fleet, self), lambda: self.now_s, lambda: 1e9 + self.now_s)

    def fetch(self, fleet: Fleet) -> int:
        assert cast(Any, fleet) is self
        self.asked += 1
        self.now_s += self.takes_s
        if self.error is not None:
            raise self.error
        return self.asked

    async def ask(self, *question: str) -> polling.Answer[int]:
        return await self.watch.ask(question or ("devices",), self.fetch)


async def test_many_pages_ask_once() -> None:
    room = Room()
    answers = await asyncio.gather(*(room.ask() for _ in range(50)))
    assert room.asked == 1 and {answer.value for answer in answers} == {1}
    room.now_s += PACE_S - 0.1
    assert (await room.ask()).value == 1
    room.now_s += 0.2
    assert (await room.ask()).value == 2
    assert (await room.ask("another")).value == 3


async def test_a_gateway_that_takes_long_is_asked_seldom() -> None:
    room = Room()
    room.takes_s = 1.5
    await room.ask()
    room.now_s += 14.9
    assert (await room.ask()).value == 1
    room.now_s += 0.2
    assert (await room.ask()).value == 2


async def test_what_was_heard_stays_with_its_time_and_comes_back_by_itself() -> None:
    room = Room()
    assert (await room.ask()).heard_s == 1e9 + 100
    room.now_s, room.error = 200.0, LinkDownError("away")
    for _ in range(2):
        told = await room.ask()
        assert told.stale and told.value == 1 and told.heard_s == 1e9 + 100 and told.error is room.error
        room.now_s += 100
    # Another question has no answer of its own: it is as old as the gateway's latest word.
    other = await room.ask("another")
    assert other.stale and other.value is None and other.heard_s == 1e9 + 100
    room.error = None
    room.now_s += 100
    back = await room.ask()
    assert not back.stale and back.heard_s == 1e9 + room.now_s


@pytest.mark.parametrize(
    ("error", "stale"),
    [
        (LinkDownError("away"), True),
        (StoreUnavailableError("no store"), True),
        (UnauthorizedError("who?"), True),
        (ForbiddenError("not you"), True),
        (NotFoundError("no such rollout"), False),
        (RequestError("no such selector"), False),
    ],
)
async def test_a_question_that_makes_no_sense_is_no_gateway_that_is_away(error: FirstlineError, stale: bool) -> None:
    room = Room()
    room.error = error
    assert (await room.ask()).stale is stale


async def test_a_deed_has_everything_asked_anew() -> None:
    room = Room()
    await room.ask()
    assert await room.watch.do(lambda fleet: "done") == "done"
    assert (await room.ask()).value == 2

    def refused(fleet: Fleet) -> None:
        raise RequestError("no")

    with pytest.raises(RequestError):
        await room.watch.do(refused)
    assert (await room.ask()).value == 3


async def test_what_does_not_change_is_asked_once_it_was_answered_no_more() -> None:
    room = Room()
    room.error = LinkDownError("away")
    for expected in (None, None, 3, 3):
        room.error = None if expected else LinkDownError("away")
        room.now_s += 100
        answer = await room.watch.ask(("evidence", "7"), room.fetch, lasting=True)
        assert answer.value == expected
    assert room.asked == 3


async def test_an_answer_that_does_not_end_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "_LONG_S", 0.01)
    watch, end = Watch(cast(Fleet, None)), threading.Event()
    answer = await watch.ask(("devices",), lambda _: end.wait(30))
    assert answer.stale and answer.value is None
    end.set()
    while (await watch.ask(("devices",), lambda _: end.wait(30))).error is not None:
        pass


async def test_what_nobody_asks_any_more_is_forgotten_and_questions_have_a_bound() -> None:
    room = Room()
    for number in range(2 * polling._MOST):
        await room.ask(str(number))
        assert len(room.watch._held) <= polling._MOST
    room.now_s += 61
    await room.ask("late")
    assert set(room.watch._held) == {("late",)}
