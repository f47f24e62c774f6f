"""Queries under load, on a simulated clock."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from firstline_core.profile import scenarios
from firstline_core.profile.scenarios import loaded


class Clock:
    """Replaces the module `time`."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept = False

    def perf_counter(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept = True

    def query(self, warm_s: float, cold_s: float) -> Callable[[], None]:
        """Takes longer right after a sleep."""

        def query() -> None:
            self.now_s += cold_s if self.slept else warm_s
            self.slept = False

        return query


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(scenarios, "time", found)
    return found


def test_waiting_queries_are_separate_from_rested_ones(clock: Clock) -> None:
    found = loaded((clock.query(1.0, 3.0),), 1.0, 2_000.0)
    rested, queued = found.of(waited=False), found.of(waited=True)
    assert len(rested) > 100 and len(queued) > 100
    assert rested == pytest.approx([3.0] * len(rested))
    assert queued == pytest.approx([1.0] * len(queued))


def test_queries_are_separated_by_the_kind_before_them(clock: Clock) -> None:
    before = []

    def mine() -> None:
        clock.now_s += 1.0 if before[-1:] != ["other"] else 1.5
        before.append("mine")

    def others() -> None:
        clock.now_s += 9.0
        before.append("other")

    found = loaded((mine, others), 5.0, 10_000.0)
    assert len(found.kinds) == len(before) == pytest.approx(1_000, rel=0.2)
    assert found.kinds.count(0) == pytest.approx(found.kinds.count(1), rel=0.25)
    for waited in (False, True):
        assert set(np.round(found.of(waited=waited), 6)) == {1.0, 1.5}


def test_kinds_arrive_in_their_shares(clock: Clock) -> None:
    found = loaded((clock.query(1.0, 1.0), clock.query(9.0, 9.0)), 2.6, 10_000.0, shares=(0.8, 0.2))
    assert found.kinds.count(1) / len(found.kinds) == pytest.approx(0.2, rel=0.2)


@pytest.mark.parametrize("load", [0.1, 0.5])
def test_the_arrival_rate_is_the_wanted_load(clock: Clock, load: float) -> None:
    found = loaded((clock.query(1.0, 1.0),), 1.0, 4_000.0, load=load)
    assert len(found.seconds) == pytest.approx(4_000 * load, rel=0.2)
    free = len(found.of(waited=False)) / len(found.seconds)
    assert free == pytest.approx(1 - load, rel=0.2)  # of an M/D/1 queue: one less the load


def test_an_overloaded_server_ends_in_time_with_rests(clock: Clock) -> None:
    began_s = clock.now_s
    found = loaded((clock.query(50.0, 50.0),), 1.0, 1_000.0)
    assert clock.now_s - began_s < 1_500.0
    assert len(found.of(waited=False)) >= 5
