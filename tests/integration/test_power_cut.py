"""Power cuts under the outbox: whatever was acknowledged is there afterwards, once. `make chaos` cuts more often."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faulty_disk import Recording, quick_folder
from support.outbox_faults import check_crash, recorded


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    with quick_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def recording(disk: Path) -> Recording:
    return recorded(disk / "state", seed=1, steps=4)


async def test_nothing_acknowledged_is_lost_by_a_power_cut(recording: Recording, disk: Path) -> None:
    rng = random.Random(7)
    points = recording.points()
    assert len(recording.marks) > 20
    for point in [*points[:30], *sorted(rng.sample(points[30:], 120)), points[-1]]:
        await check_crash(recording, point, rng.randrange(1 << 30), disk / "crash")
