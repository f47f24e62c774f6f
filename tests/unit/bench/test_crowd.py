"""What many devices' heartbeats took: when they are due, and the table of what was found."""

from __future__ import annotations

import pytest
from crowd.devices import due
from crowd.table import ROWS, Run, figures, growth, quantile, table

SMALL = Run(
    devices=1000,
    idle_cores=0.01,
    births_s=2.0,
    births_cpu_s=1.0,
    beats=1000,
    beats_s=60.0,
    beats_cpu_s=2.6,
    broker_beats_cpu_s=0.1,
    longest_silence_s=60.2,
    delays_ms=(4.0, 6.0, 5.0),
    pages_ms=(8.0,) * 99 + (20.0,),
    reached=1000,
    rollout_s=50.0,
    rollout_cpu_s=5.0,
    broker_rollout_cpu_s=0.5,
    rollout_beats=1000,
    rss_bytes=(1 << 20, 2 << 20, 3 << 20),
    queue=1000,
    dropped=0,
)


def test_heartbeats_are_spread_evenly_over_the_period() -> None:
    assert [due(beat, 4, 60.0) for beat in range(5)] == [0.0, 15.0, 30.0, 45.0, 60.0]


def test_what_is_not_a_heartbeats_is_taken_off() -> None:
    assert SMALL.beat_ms == pytest.approx(2.0)
    assert SMALL.rollout_device_ms == pytest.approx(5.0 - 0.5 - 2.0)


@pytest.mark.parametrize(("share", "value"), [(0.5, 8.0), (0.99, 8.0), (1.0, 20.0)])
def test_a_quantile_is_the_smallest_value_that_the_share_does_not_exceed(share: float, value: float) -> None:
    assert quantile(SMALL.pages_ms, share) == value


def test_growth_is_of_one_device() -> None:
    large = SMALL._replace(devices=10_000, births_s=40.0, births_cpu_s=10.0)
    rows = {row.what: row for row in ROWS}
    assert growth(rows["all devices come: until they are known"], SMALL, large) == pytest.approx(2.0)
    assert growth(rows["processor time of the gateway for each"], SMALL, large) == pytest.approx(1.0)
    assert growth(rows["the longest of those"], SMALL, large) is None


def test_the_table_has_every_row_and_a_column_for_each_crowd() -> None:
    lines = table([SMALL, SMALL._replace(devices=10_000)]).splitlines()
    assert lines[0] == "| | 1,000 devices | 10,000 devices | a device, times |"
    assert len(lines) == len(ROWS) + 2
    assert {line.count("|") for line in lines} == {5}


def test_a_dropped_word_and_a_device_that_was_not_reached_are_failures() -> None:
    assert not [figure for figure in figures([SMALL]) if figure.holds is False]
    found = [figure for figure in figures([SMALL._replace(dropped=3, reached=999)]) if figure.holds is False]
    assert len(found) == 2
