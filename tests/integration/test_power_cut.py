"""Power cuts under the outbox: whatever was acknowledged is there afterwards, once. `make chaos` cuts more often."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.faulty_disk import Recording
from support.outbox_faults import check_crash, recorded


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recorded(tmp_path_factory.mktemp("disk") / "state", seed=1, steps=4)


async def test_nothing_acknowledged_is_lost_by_a_power_cut(recording: Recording, tmp_path: Path) -> None:
    rng = random.Random(7)
    points = recording.points()
    assert len(recording.marks) > 20
    for point in [*points[:30], *sorted(rng.sample(points[30:], 120)), points[-1]]:
        await check_crash(recording, point, rng.randrange(1 << 30), tmp_path / "crash")
