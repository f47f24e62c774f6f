"""The time floor: a clock that was never set, one that is far ahead, and the time of gateways."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.clock import SimulatedClock
from firstline_core.units import DAY_S
from firstline_edge.identity.time_floor import TimeFloor

JOINED_S = 1_790_000_000.0  # September 2026
ENDS_S = JOINED_S + 3650 * DAY_S
YEAR_2100_S = 4_102_444_800.0


def floor(path: Path, wall_s: float, clock: SimulatedClock | None = None) -> TimeFloor:
    return TimeFloor(path, clock or SimulatedClock(wall_start_s=wall_s), least_s=JOINED_S, most_s=ENDS_S)


def test_a_plausible_clock_is_trusted(tmp_path: Path) -> None:
    found = floor(tmp_path / "time", JOINED_S + DAY_S)
    assert found.trusts_clock
    assert found.now_s() == JOINED_S + DAY_S


@pytest.mark.parametrize("wall_s", [0.0, JOINED_S - DAY_S, YEAR_2100_S])
def test_an_implausible_clock_is_replaced_by_the_floor(tmp_path: Path, wall_s: float) -> None:
    found = floor(tmp_path / "time", wall_s)
    assert not found.trusts_clock
    assert found.now_s() == JOINED_S
    found.observe(JOINED_S + 5 * DAY_S, ENDS_S)
    assert found.now_s() == JOINED_S + 5 * DAY_S


async def test_the_floor_advances_with_the_monotonic_clock(tmp_path: Path) -> None:
    clock = SimulatedClock(wall_start_s=0.0)
    found = floor(tmp_path / "time", 0.0, clock)
    await clock.advance(DAY_S)
    assert found.now_s() == JOINED_S + DAY_S


def test_the_floor_survives_a_restart(tmp_path: Path) -> None:
    first = floor(tmp_path / "time", 0.0)
    first.observe(JOINED_S + 30 * DAY_S, ENDS_S)
    first.save()
    assert floor(tmp_path / "time", 0.0).now_s() == JOINED_S + 30 * DAY_S


def test_the_floor_is_written_only_after_hours(tmp_path: Path) -> None:
    found = floor(tmp_path / "time", 0.0)
    found.save()
    before = (tmp_path / "time").stat().st_ino
    found.observe(JOINED_S + 3600, ENDS_S)
    found.save()
    assert (tmp_path / "time").stat().st_ino == before


def test_the_floor_never_exceeds_the_vouching_certificate(tmp_path: Path) -> None:
    found = floor(tmp_path / "time", 0.0)
    found.observe(YEAR_2100_S, JOINED_S + 60 * DAY_S)
    assert found.now_s() == JOINED_S + 60 * DAY_S


@pytest.mark.parametrize("content", [b"", b"rotten", b"nan", b"inf", b"-1e400", b"1e300", b"\xff\xfe", b"0"])
def test_a_damaged_file_costs_only_its_content(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "time").write_bytes(content)
    found = floor(tmp_path / "time", 0.0)
    assert JOINED_S <= found.now_s() <= ENDS_S


def test_a_refusing_disk_only_forgets_at_a_restart(tmp_path: Path) -> None:
    found = floor(tmp_path / "missing" / "time", 0.0)
    found.save()
    assert found.now_s() == JOINED_S


@given(
    wall_s=st.floats(-1e12, 1e12),
    times=st.lists(st.tuples(st.floats(allow_nan=True), st.floats(allow_nan=True)), max_size=8),
)
def test_the_floor_never_falls_or_exceeds_the_authority(wall_s: float, times: list[tuple[float, float]]) -> None:
    found = floor(Path("never-written"), wall_s)
    before_s = found.floor_s
    for now_s, until_s in times:
        found.observe(now_s, until_s)
        assert found.floor_s >= before_s
        before_s = found.floor_s
    assert JOINED_S <= found.floor_s <= ENDS_S
    assert math.isfinite(found.now_s())
    assert JOINED_S <= found.now_s() <= ENDS_S


def test_a_damaged_floor_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "time"
    floor = TimeFloor(path, SimulatedClock(), least_s=1_800_000_000.0, most_s=4_000_000_000.0)
    floor.observe(1_900_000_000.0, 4_000_000_000.0)
    floor.save()
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        again = TimeFloor(path, SimulatedClock(), least_s=1_800_000_000.0, most_s=4_000_000_000.0)
        assert again.floor_s in (1_800_000_000.0, 1_900_000_000.0)
