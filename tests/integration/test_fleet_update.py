"""A model from a real registry on a real agent: signed, fetched, tried, committed, and rolled back."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from support.agent import serving_agent
from support.digits import digits_bundle
from support.images import noise
from support.registry_site import RegistrySite, connected_to_fleet
from support.waiting import until

from firstline_core.fleet.twin import DesiredModel, Update
from firstline_core.fleet.update import UpdateState
from firstline_edge.app import EdgeAgent
from firstline_edge.fleet.updates.installation import manifest_sha256
from firstline_edge.settings.settings import EdgeSettings


@pytest.fixture
async def site(site: RegistrySite) -> RegistrySite:
    await site.begin()
    return site


@pytest.fixture
def settings(site: RegistrySite, tmp_path: Path) -> EdgeSettings:
    return site.device_settings(tmp_path, fleet__trial_s=0.5)


async def pushed(site: RegistrySite, folder: Path, version: int, **changes: Any) -> DesiredModel:
    bundle = digits_bundle(folder, version)
    await site.push(bundle)
    return replace(DesiredModel("digits", version, manifest_sha256(bundle.path), "r1"), **changes)


def outcome(update: Update) -> tuple[UpdateState, str]:
    return update.state, update.reason


async def test_an_adaptive_device_gets_every_usable_variant(site: RegistrySite, tmp_path: Path) -> None:
    settings = site.device_settings(tmp_path, fleet__trial_s=0.5, adaptation__enabled=True)
    async with EdgeAgent(settings):
        await site.desire(models=(await pushed(site, tmp_path / "two", 2),))
        assert outcome(await site.ended()) == (UpdateState.COMMITTED, "")
    slot = tmp_path / "state" / "models" / "digits" / "a"
    models = {"edge-onnx.onnx", "edge-tflite-float.tflite", "edge-tflite-int8.tflite"}
    assert {path.name for path in slot.iterdir()} == models | {"golden.json", "manifest.json"}


async def test_a_bundle_is_installed_under_load(site: RegistrySite, settings: EdgeSettings, tmp_path: Path) -> None:
    new_model = await pushed(site, tmp_path / "two", 2)
    versions: list[str] = []
    over = asyncio.Event()

    async def ask(agent: EdgeAgent) -> None:
        while not over.is_set():
            response = await agent.data_plane.infer_file("digits", noise(len(versions), side=28), route="edge")
            versions.append(response.version)
            await asyncio.sleep(0)

    async with EdgeAgent(settings) as agent:
        await connected_to_fleet(agent)
        asking = asyncio.create_task(ask(agent))
        await site.desire(models=(new_model,))
        assert outcome(await site.ended()) == (UpdateState.COMMITTED, "")
        over.set()
        await asking  # no request failed
        assert versions == sorted(versions) and {"1", "2"} == set(versions)
        running = agent.models.all
        assert [each.version for each in running] == ["2"]
    slot = tmp_path / "state" / "models" / "digits" / "a"
    assert sorted(path.name for path in slot.iterdir()) == [
        "edge-onnx.onnx",
        "golden.json",
        "manifest.json",
    ]  # what it needs alone
    async with EdgeAgent(settings) as agent:
        (model,) = agent.models.all
        assert model.version == "2" and model.bundle.path == slot
        device = await site.gateway.fleet.device("device-1")
        assert device.reported.models[0].version == 2
    async with EdgeAgent(replace(settings, fleet=replace(settings.fleet, enabled=False))) as agent:
        assert [each.version for each in agent.models.all] == ["1"]


async def test_a_device_rolls_a_model_back_at_once(site: RegistrySite, settings: EdgeSettings, tmp_path: Path) -> None:
    new_model = await pushed(site, tmp_path / "two", 2)
    async with serving_agent(settings) as (agent, url), httpx.AsyncClient(base_url=url, timeout=30) as client:
        await connected_to_fleet(agent)
        refused = await client.post("/firstline/v1/updates/digits/rollback")
        assert refused.status_code == 404 and "No update of a model" in refused.json()["error"]
        await site.desire(models=(new_model,))
        assert outcome(await site.ended()) == (UpdateState.COMMITTED, "")
        assert (await client.post("/firstline/v1/updates/digits/rollback")).status_code == 200
        assert [model.version for model in agent.models.all] == ["1"]
        assert outcome(await site.ended()) in ((UpdateState.ROLLED_BACK, "asked"), (UpdateState.COMMITTED, ""))
        again = await client.post("/firstline/v1/updates/digits/rollback")
        assert again.status_code == 400 and "no previous version to roll back to" in again.json()["error"]

        async def rolled_back() -> bool:
            return outcome(await site.ended()) == (UpdateState.ROLLED_BACK, "asked")

        await until(rolled_back)


async def test_a_device_without_root_metadata_installs_nothing(
    site: RegistrySite, settings: EdgeSettings, tmp_path: Path
) -> None:
    new_model = await pushed(site, tmp_path / "two", 2)
    async with EdgeAgent(replace(settings, fleet=replace(settings.fleet, root_file=""))) as agent:
        await connected_to_fleet(agent)
        await site.desire(models=(new_model,))
        assert outcome(await site.ended()) == (UpdateState.REJECTED, "signature")
        assert [model.version for model in agent.models.all] == ["1"]
