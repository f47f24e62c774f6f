from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from firstline_core.protocol.http_bounds import IdleTimer


class Loop:
    """Its timers are rung by the test."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, seconds: float, call: Callable[[], None]) -> Any:
        self.timers.append((self.now_s + seconds, call))
        return object()

    def ring(self) -> None:
        self.now_s, call = self.timers.pop(0)
        call()


def timer(loop: Loop, ended: list[float]) -> IdleTimer:
    return IdleTimer(cast(asyncio.AbstractEventLoop, loop), 5.0, lambda: ended.append(loop.now_s))


def test_who_never_asks_is_given_so_long() -> None:
    loop, ended = Loop(), []
    timer(loop, ended).rest()
    loop.ring()
    assert ended == [5.0]


def test_each_answer_sets_it_back_without_another_timer() -> None:
    loop, ended = Loop(), []
    idle = timer(loop, ended)
    idle.rest()
    for now_s in (1.0, 3.0):
        loop.now_s = now_s
        idle.busy()
        idle.rest()
    assert len(loop.timers) == 1
    loop.ring()
    assert (loop.now_s, ended) == (5.0, [])
    loop.ring()
    assert ended == [8.0]


def test_who_is_being_answered_is_not_idle() -> None:
    loop, ended = Loop(), []
    idle = timer(loop, ended)
    idle.rest()
    idle.busy()
    loop.ring()
    assert (ended, loop.timers) == ([], [])
    idle.rest()
    loop.ring()
    assert ended == [10.0]
