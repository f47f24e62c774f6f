"""Refusals from the head: of whom, and for how long."""

from __future__ import annotations

import pytest

from firstline_gateway.api.connection.unread import Unread


class Bench:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, wait_s: float = 0.2) -> None:
        self.refused = 0
        self.lagging = False
        self.unread = Unread(lambda: wait_s, self._count, "x-certificate")
        monkeypatch.setattr(type(self.unread._lag), "is_long", property(lambda _: self.lagging))

    def _count(self) -> None:
        self.refused += 1


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_who_was_told_often_and_did_not_wait_is_refused_for_a_quarter_of_the_wait(bench: Bench) -> None:
    for _ in range(20):
        bench.unread.told(1, 10.0)
        assert not bench.unread.refuses(1, 10.0)
    bench.unread.told(1, 10.0)
    assert bench.unread.refuses(1, 10.0)
    assert bench.unread.refuses(1, 10.049)
    assert not bench.unread.refuses(2, 10.0)  # somebody else
    assert not bench.unread.refuses(1, 10.051)
    assert bench.refused == 2


def test_who_is_told_seldom_is_always_read(bench: Bench) -> None:
    for second in range(100):
        bench.unread.told(1, 10.0 + second / 10)
        assert not bench.unread.refuses(1, 10.0 + second / 10)


def test_where_not_all_can_be_read_the_busiest_are_refused(bench: Bench) -> None:
    bench.lagging = True
    for _ in range(30):
        bench.unread.refuses(1, 10.0)
    assert bench.refused == 10  # alone, it is the busiest
    assert not bench.unread.refuses(2, 10.0)
    assert bench.unread.refuses(1, 10.0)
    bench.lagging = False
    assert not bench.unread.refuses(1, 11.5)


def test_a_loop_that_something_else_held_up_refuses_nobody(bench: Bench) -> None:
    bench.lagging = True
    for second in range(10):
        assert not any(bench.unread.refuses(1, 10.0 + second * 1.1) for _ in range(20))


def test_callers_are_told_apart_by_what_says_who_they_are_alone(bench: Bench) -> None:
    shown = bench.unread.shown
    assert shown("", [(b"authorization", b"a"), (b"user-agent", b"x")]) == shown("", [(b"authorization", b"a")])
    others = {
        shown("", []),
        shown("", [(b"authorization", b"a")]),
        shown("", [(b"authorization", b"b")]),
        shown("", [(b"x-certificate", b"a"), (b"authorization", b"b")]),
        shown("1f", []),
    }
    assert len(others) == 5
