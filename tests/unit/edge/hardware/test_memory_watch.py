import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_edge.hardware.memory_watch import FASTEST_BYTES_PER_S, LEAST_S, MemoryWatch

_MIB = 1 << 20
WATCH = MemoryWatch((64 * _MIB, 32 * _MIB))


@pytest.mark.parametrize(
    ("left_mib", "passed", "pause_s"),
    [
        (1088, 0, 1.0),
        (576, 0, 0.5),
        (64, 0, LEAST_S),
        (63.9, 1, LEAST_S),
        (32, 1, LEAST_S),
        (31.9, 2, math.inf),
        (0, 2, math.inf),
    ],
)
def test_the_less_is_left_the_sooner_it_is_looked_at(left_mib: float, passed: int, pause_s: float) -> None:
    assert (WATCH.passed(left_mib * _MIB), WATCH.pause_s(left_mib * _MIB)) == (passed, pause_s)


def test_what_nobody_measures_or_waits_for_is_not_looked_at() -> None:
    assert (WATCH.passed(None), WATCH.pause_s(None)) == (0, math.inf)
    assert (MemoryWatch().passed(0.0), MemoryWatch().pause_s(0.0)) == (0, math.inf)


@given(st.floats(0, 1e12), st.floats(0, FASTEST_BYTES_PER_S))
def test_no_low_is_passed_by_more_than_what_is_taken_in_the_least_pause(left_bytes: float, per_s: float) -> None:
    for _ in range(1000):
        if WATCH.passed(left_bytes) == 2:
            break
        before = WATCH.passed(left_bytes)
        left_bytes -= per_s * WATCH.pause_s(left_bytes)
        if WATCH.passed(left_bytes) > before:
            assert left_bytes >= (64, 32)[before] * _MIB - per_s * LEAST_S - 1
            break
