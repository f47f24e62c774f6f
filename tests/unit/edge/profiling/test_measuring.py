"""The points of one request: measured one by one, ended if they do harm, or refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.sample_bundles import variant_bundle

from firstline_core.clock import SimulatedClock
from firstline_core.errors import IntegrityError
from firstline_core.hardware.readings import NOTHING_READ
from firstline_core.profile.files import read_profile
from firstline_core.profile.measure import Need, ProfileOptions
from firstline_edge.profiling.gate import Bounds, Cause, Gate
from firstline_edge.profiling.measuring import Order, Progress, measure_order

OPTIONS = ProfileOptions(threads=(1,), batches=(1,), total_s=0.3)


class Ending(Gate):
    """Admits every point, and ends a number of points."""

    def __init__(self, ends: int) -> None:
        super().__init__(lambda: NOTHING_READ, Bounds(), SimulatedClock())
        self.ends = ends
        self.asked: list[str] = []

    async def admit(self, needed: Need, report: Any) -> str:
        self.asked.append(needed.point)
        return ""

    async def must_end(self, needed: Need) -> Cause:
        if self.ends == 0:
            await asyncio.Event().wait()
        self.ends -= 1
        return Cause("memory", "memory became short")


async def ignore(progress: Progress) -> None: ...


@pytest.mark.parametrize(
    ("ends", "asked", "points"),
    [(1, ["small", "small", "full"], ["small", "full"]), (3, ["small", "small", "small", "full"], ["full"])],
)
async def test_an_ended_point_is_repeated_or_left_out(
    tmp_path: Path, ends: int, asked: list[str], points: list[str]
) -> None:
    bundle, path, gate = variant_bundle(tmp_path / "bundle", "small"), tmp_path / "p.json", Ending(ends)
    done = await measure_order(Order(bundle.path, path, "cam", OPTIONS), ignore, gate)
    found = read_profile(path)
    assert found == done.profile and done.points == len(points)
    assert [point.partition(",")[0] for point in gate.asked] == asked
    assert [point.key.variant for point in found.points] == points
    reasons = [one.reason for one in found.refused]
    assert reasons == ([] if "small" in points else ["It was ended 3 times: memory became short."])


async def test_a_cancelled_measurement_writes_no_point(tmp_path: Path) -> None:
    bundle, path = variant_bundle(tmp_path / "bundle", "small"), tmp_path / "p.json"
    task = asyncio.create_task(measure_order(Order(bundle.path, path, "cam", OPTIONS), ignore, gate := Ending(0)))
    while not gate.asked:  # noqa: ASYNC110 (of a thread)
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert read_profile(path) is None


async def test_a_damaged_profile_is_set_aside_and_measured_again(tmp_path: Path) -> None:
    bundle, path = variant_bundle(tmp_path / "bundle", "small"), tmp_path / "p.json"
    path.write_bytes(b"{half of it")
    done = await measure_order(Order(bundle.path, path, "cam", OPTIONS), ignore, Ending(0))
    assert done.points == len(done.profile.points) > 0
    assert (tmp_path / "p.json.damaged").read_bytes() == b"{half of it"


@pytest.mark.parametrize("bundle", ["none", "empty"])
async def test_a_folder_without_a_bundle_is_named(tmp_path: Path, bundle: str) -> None:
    (tmp_path / "empty").mkdir()
    order = Order(tmp_path / bundle, tmp_path / "p.json", "cam", OPTIONS)
    with pytest.raises(IntegrityError, match="cannot be read"):
        await measure_order(order, ignore, Gate(lambda: NOTHING_READ, Bounds(), SimulatedClock()))
