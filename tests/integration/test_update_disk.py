"""Updates on a disk that loses power, fills up or fails at any one change: what answers verifies, and updates end."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faulty_disk import quick_folder
from support.update_faults import bundles_at, check_crash, errors_at, recorded


@pytest.fixture
def disk() -> Iterator[Path]:
    with quick_folder() as folder:
        bundles_at(folder / "bundles")
        (folder / "disk").mkdir()
        yield folder


async def test_power_cut_leaves_a_valid_bundle(disk: Path) -> None:
    recording, rng = recorded(disk / "disk", disk / "bundles"), random.Random(7)
    points = recording.points()
    assert len(points) > 150
    for point in [*sorted(rng.sample(points, 80)), points[-1]]:
        await check_crash(recording, point, rng.randrange(1 << 30), disk / "crash", disk / "bundles")


def test_any_write_may_fail(disk: Path) -> None:
    counts = errors_at(disk / "disk", disk / "bundles", first=1, step=37)
    assert isinstance(counts["changes"], int) and counts["changes"] > 150
    assert counts["rounds"] == 4 * len(range(1, counts["changes"] + 1, 37))
    assert isinstance(counts["states"], dict) and set(counts["states"]) <= {"committed", "failed", "rolled_back"}
    assert counts["states"]["committed"] > 0
