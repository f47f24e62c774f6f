"""Queries under load, on a simulated clock."""

from collections.abc import Callable

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
    found = loaded(clock.query(1.0, 3.0), 1.0, 2_000.0)
    assert len(found.rested) > 100 and len(found.queued) > 100
    assert found.rested == pytest.approx([3.0] * len(found.rested))
    assert found.queued == pytest.approx([1.0] * len(found.queued))


def test_half_of_the_possible_queries_arrive(clock: Clock) -> None:
    found = loaded(clock.query(1.0, 1.0), 1.0, 4_000.0)
    count = len(found.rested) + len(found.queued)
    assert count == pytest.approx(2_000, rel=0.2)
    assert len(found.rested) / count == pytest.approx(0.5, rel=0.2)  # of an M/D/1 queue: one less the load


def test_an_overloaded_server_ends_in_time_with_rests(clock: Clock) -> None:
    began_s = clock.now_s
    found = loaded(clock.query(50.0, 50.0), 1.0, 1_000.0)
    assert clock.now_s - began_s < 1_500.0
    assert len(found.rested) >= 5
