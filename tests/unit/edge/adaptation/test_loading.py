"""A ladder with a profile: its times, memory and energy decide which variant answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.agent import adapting_settings
from support.profiles import point
from support.sample_bundles import variant_bundle

from firstline_core.bundle.manifest import Manifest
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import Measured, Modelled, Reading
from firstline_core.hardware.survey import describe_device
from firstline_core.ids import new_request_id
from firstline_core.profile.profile import Profile, encode
from firstline_core.types import InferRequest, Tensor
from firstline_edge.app import EdgeAgent
from firstline_edge.state import StatePaths


def profiled(
    folder: Path,
    manifest: Manifest,
    query_ms: tuple[float, ...],
    energy_mj: tuple[Reading, ...] = (),
    peak_bytes: tuple[int, ...] = (),
) -> None:
    """The device's own profile: a figure for each variant, the best first."""
    points = [point(ms, variant=edge.id, digest=edge.digest) for ms, edge in zip(query_ms, manifest.edge, strict=True)]
    for at, energy in enumerate(energy_mj):
        points[at] = replace(points[at], energy_mj=energy)
    for at, peak in enumerate(peak_bytes):
        points[at] = replace(points[at], peak_memory_bytes=Measured(float(peak), "/status"))
    state_dir = folder / "state"
    path = StatePaths(state_dir).device_profile_path(manifest.name)
    path.parent.mkdir(parents=True)
    fingerprint = describe_device(Tree(folder / "no sensors"), state_dir).fingerprint
    path.write_bytes(encode(Profile(manifest.name, 1, "here", fingerprint, tuple(points))))


async def given(agent: EdgeAgent, left_s: float) -> str:
    """Which variant answers a request with `left_s` left."""
    tensor = Tensor("x", np.array([(9.0, 0.0)], np.float32))
    deadline_s = agent._clock.monotonic_s() + left_s
    request = InferRequest("small", (tensor,), request_id=new_request_id(), principal="local", deadline_s=deadline_s)
    response = await agent.data_plane.infer(request)
    (device_model,) = agent.models.all
    return {model.digest: model.id for model in device_model.manifest.edge}[response.answer.model_digest]


def rungs(agent: EdgeAgent) -> dict[str, dict[str, Any]]:
    (model,) = agent.operations.status()["models"]
    return {rung["variant"]: rung for rung in model["variants"]["rungs"]}


async def test_the_profiles_times_decide_by_the_deadline(tmp_path: Path) -> None:
    manifest = variant_bundle(tmp_path / "bundle").manifest
    async with EdgeAgent(adapting_settings(tmp_path)) as agent:
        assert await given(agent, 0.2) == "large"  # as measured at load: it takes some tenths of a millisecond
    profiled(tmp_path, manifest, (500.0, 1.5, 0.5))
    async with EdgeAgent(adapting_settings(tmp_path)) as agent:
        assert await given(agent, 0.2) == "medium"
        assert await given(agent, 60.0) == "large"


async def test_status_shows_figures_from_the_profile(tmp_path: Path) -> None:
    manifest = variant_bundle(tmp_path / "bundle").manifest
    energy_mj = (Measured(30.0, "/power"), Measured(20.0, "/power"), Measured(10.0, "/power"))
    profiled(tmp_path, manifest, (3.0, 2.0, 1.0), energy_mj, (30_000_000, 20_000_000, 10_000_000))
    async with EdgeAgent(adapting_settings(tmp_path, costs__watts_idle=5.0)) as agent:
        found = rungs(agent)
    # Beyond the idle device: 5 W for 3, 2 and 1 ms are no run's.
    assert [(rung["row_ms"], rung["memory_bytes"], rung["energy_mj"]) for rung in found.values()] == [
        (3.0, 30_000_000, 15.0), (2.0, 20_000_000, 10.0), (1.0, 10_000_000, 5.0),
    ]  # fmt: skip
    assert found["large"]["from"] == {"row_ms": "profile", "memory_bytes": "profile", "energy_mj": "profile"}


async def test_a_constant_rail_has_no_energy_above_idle(tmp_path: Path) -> None:
    manifest = variant_bundle(tmp_path / "bundle").manifest
    profiled(tmp_path, manifest, (3.0, 2.0, 1.0), tuple(Measured(5 * ms, "/power") for ms in (3.0, 2.0, 1.0)))
    async with EdgeAgent(adapting_settings(tmp_path, costs__watts_idle=5.0)) as agent:
        assert [rung["energy_mj"] for rung in rungs(agent).values()] == [None] * 3


@pytest.mark.parametrize(("watts_idle", "source"), [(0.0, "/power"), (5.0, "/sys/class/powercap/x/energy_uj")])
async def test_energy_including_the_idle_device_is_no_price(tmp_path: Path, watts_idle: float, source: str) -> None:
    manifest = variant_bundle(tmp_path / "bundle").manifest
    profiled(tmp_path, manifest, (3.0, 2.0, 1.0), tuple(Measured(mj, source) for mj in (30.0, 20.0, 10.0)))
    async with EdgeAgent(adapting_settings(tmp_path, costs__watts_idle=watts_idle)) as agent:
        found = rungs(agent)
    assert {rung["energy_mj"] for rung in found.values()} == {None}
    assert found["large"]["from"]["energy_mj"] is None


async def test_a_ladder_never_mixes_measured_and_stated_energy(tmp_path: Path) -> None:
    manifest = variant_bundle(tmp_path / "bundle").manifest
    energy_mj = (Measured(30.0, "/power"), Measured(20.0, "/power"), Modelled(10.0, "stated costs"))
    profiled(tmp_path, manifest, (3.0, 2.0, 1.0), energy_mj)
    async with EdgeAgent(adapting_settings(tmp_path, costs__watts_idle=5.0)) as agent:
        found = rungs(agent)
    assert [(rung["energy_mj"], rung["from"]["energy_mj"]) for rung in found.values()] == [
        (None, None), (None, None), (10.0, "stated"),
    ]  # fmt: skip
    async with EdgeAgent(adapting_settings(tmp_path, costs__joules_per_core_second=4.0)) as agent:
        found = rungs(agent)
    assert [(rung["energy_mj"], rung["from"]["energy_mj"]) for rung in found.values()] == [
        (12.0, "stated"), (8.0, "stated"), (4.0, "stated"),
    ]  # fmt: skip


async def test_a_variant_with_more_energy_than_a_better_one_is_left_out(tmp_path: Path) -> None:
    manifest = variant_bundle(tmp_path / "bundle").manifest
    energy_mj = (Measured(20.0, "/power"), Measured(30.0, "/power"), Measured(10.0, "/power"))
    profiled(tmp_path, manifest, (3.0, 2.0, 1.0), energy_mj)
    async with EdgeAgent(adapting_settings(tmp_path, costs__watts_idle=1.0)) as agent:
        assert list(rungs(agent)) == ["large", "small"]


async def test_a_variant_beyond_the_available_memory_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "no sensors" / "proc").mkdir(parents=True)
    (tmp_path / "no sensors" / "proc" / "meminfo").write_text("MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n")
    manifest = variant_bundle(tmp_path / "bundle").manifest
    profiled(tmp_path, manifest, (3.0, 2.0, 1.0), peak_bytes=(1_000_000, 10**15, 1_000_000))
    async with EdgeAgent(adapting_settings(tmp_path)) as agent:
        assert list(rungs(agent)) == ["large", "small"]


async def test_without_a_profile_figures_come_from_loading_and_costs(tmp_path: Path) -> None:
    variant_bundle(tmp_path / "bundle")
    async with EdgeAgent(adapting_settings(tmp_path, costs__joules_per_core_second=2.0)) as agent:
        large = rungs(agent)["large"]
    assert large["from"] == {"row_ms": "load", "memory_bytes": "load", "energy_mj": "stated"}
    assert abs(large["energy_mj"] - 2 * large["row_ms"]) < 0.002
    async with EdgeAgent(adapting_settings(tmp_path)) as agent:
        large = rungs(agent)["large"]
    assert large["energy_mj"] is None and large["from"]["energy_mj"] is None


async def test_costs_stated_here_precede_those_of_the_profile(tmp_path: Path) -> None:
    manifest = variant_bundle(tmp_path / "bundle").manifest
    energy_mj = (Modelled(30.0, "stated"), Modelled(20.0, "stated"), Modelled(1.0, "stated"))
    profiled(tmp_path, manifest, (3.0, 2.0, 1.0), energy_mj)
    async with EdgeAgent(adapting_settings(tmp_path, costs__joules_per_core_second=4.0)) as agent:
        found = rungs(agent)
    # A core for 3, 2 and 1 ms, as the profile has it.
    assert [rung["energy_mj"] for rung in found.values()] == [12.0, 8.0, 4.0]
    assert {rung["from"]["energy_mj"] for rung in found.values()} == {"stated"}
    async with EdgeAgent(adapting_settings(tmp_path)) as agent:
        assert rungs(agent)["large"]["energy_mj"] == 30.0
