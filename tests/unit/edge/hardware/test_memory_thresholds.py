import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_edge.hardware.sampler import FASTEST_BYTES_PER_S, SHORTEST_PAUSE_S, MemoryThresholds

_MIB = 1 << 20
THRESHOLDS = MemoryThresholds((64 * _MIB, 32 * _MIB))


@pytest.mark.parametrize(
    ("left_mib", "passed", "pause_s"),
    [
        (1088, 0, 1.0),
        (576, 0, 0.5),
        (64, 0, SHORTEST_PAUSE_S),
        (63.9, 1, SHORTEST_PAUSE_S),
        (32, 1, SHORTEST_PAUSE_S),
        (31.9, 2, math.inf),
        (0, 2, math.inf),
    ],
)
def test_less_memory_is_read_sooner(left_mib: float, passed: int, pause_s: float) -> None:
    assert (THRESHOLDS.passed(left_mib * _MIB), THRESHOLDS.pause_s(left_mib * _MIB)) == (passed, pause_s)


def test_memory_is_not_read_without_thresholds_or_readings() -> None:
    assert (THRESHOLDS.passed(None), THRESHOLDS.pause_s(None)) == (0, math.inf)
    assert (MemoryThresholds().passed(0.0), MemoryThresholds().pause_s(0.0)) == (0, math.inf)


@given(st.floats(0, 1e12), st.floats(0, FASTEST_BYTES_PER_S))
def test_a_threshold_is_missed_by_one_pause_at_most(left_bytes: float, per_s: float) -> None:
    for _ in range(1000):
        if THRESHOLDS.passed(left_bytes) == 2:
            break
        before = THRESHOLDS.passed(left_bytes)
        left_bytes -= per_s * THRESHOLDS.pause_s(left_bytes)
        if THRESHOLDS.passed(left_bytes) > before:
            assert left_bytes >= (64, 32)[before] * _MIB - per_s * SHORTEST_PAUSE_S - 1
            break
