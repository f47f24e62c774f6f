"""A configuration from a real registry on a real agent: signed, rolled out, adopted, and rolled back."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.agent import serving_agent
from support.images import noise
from support.logs import captured_lines
from support.registry_site import RegistrySite, connected_to_fleet
from support.waiting import until

from firstline.release.publishing import PushedConfiguration, push_configuration
from firstline_core.fleet.twin import DesiredConfiguration
from firstline_core.fleet.update import UpdateKind
from firstline_edge.__main__ import main
from firstline_edge.api.access import access_of
from firstline_edge.api.operations import birth_message
from firstline_edge.app import EdgeAgent
from firstline_edge.settings.settings import EdgeSettings
from firstline_gateway.rollouts.commands import Command
from firstline_gateway.rollouts.judgement.verdict import Limit, Rules
from firstline_gateway.rollouts.rollout import Definition, Stage

CAREFUL = """
name = "careful"
version = 1
[policy]
min_threshold = 1.5
[budget]
bytes_per_day = 50_000_000
[audit]
per_hour = 7
"""
UNSEEN = Rules(limits={name: Limit(1e9) for name in ("crashes", "errors", "latency", "escalations", "disagreement")})


@pytest.fixture
async def site(site: RegistrySite) -> RegistrySite:
    await site.begin()
    return site


@pytest.fixture
def settings(site: RegistrySite, tmp_path: Path) -> EdgeSettings:
    return site.device_settings(tmp_path, fleet__trial_s=0.2, policy__default_timeout_ms=30_000)


async def pushed(site: RegistrySite, folder: Path, text: str) -> PushedConfiguration:
    file = folder / "configuration.toml"
    file.write_text(text)
    return await site.with_registry(lambda registry: push_configuration(site.keyring, registry, file, site.now_s()))


async def told_of(site: RegistrySite) -> Any:
    return (await site.gateway.fleet.device("device-1")).reported


async def command(file: Path, *arguments: str) -> int:
    """`edge-agent ARGUMENTS`, in a thread, as the agent answers on this one."""

    def run() -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["edge-agent", *arguments, "--config", str(file)])
            return main()

    return await asyncio.to_thread(run)


async def test_a_rollout_configures_a_running_agent(site: RegistrySite, settings: EdgeSettings, tmp_path: Path) -> None:
    signed = await pushed(site, tmp_path, CAREFUL)
    rollouts, driver = site.gateway.rollouts, site.gateway.rollout_driver
    definition = Definition(
        signed.name,
        signed.version,
        signed.sha256,
        (Stage(1.0, soak_s=0.0),),
        UNSEEN,
        held_back=0.0,
        what=UpdateKind.CONFIGURATION,
    )
    answers: list[str] = []
    over = asyncio.Event()

    async def ask(agent: EdgeAgent) -> None:
        while not over.is_set():
            response = await agent.data_plane.infer_file("digits", noise(len(answers), side=28))
            assert response.answer.status == "final"
            answers.append(response.answer.tier)
            await asyncio.sleep(0)

    async def answering_tiers(agent: EdgeAgent) -> set[str]:
        """Which tiers answer ten digits of the bundle's own kind, which the edge model is sure of."""
        found = [await agent.data_plane.infer_file("digits", noise(10_000 + seed, side=28)) for seed in range(10)]
        return {each.answer.tier for each in found if each.answer is not None}

    async with EdgeAgent(settings) as agent:
        await connected_to_fleet(agent)
        assert agent.operations.status()["budgets"] == []
        asking = asyncio.create_task(ask(agent))
        rollout = (await rollouts.create(definition, "application:ops")).id
        await rollouts.command(rollout, Command.START, "application:ops")

        async def completed() -> bool:
            await driver.drive()
            return (await rollouts.get(rollout)).state == "completed"

        await until(completed, 60)
        over.set()
        await asking  # no request failed
        assert answers
        (model,) = agent.models.all
        assert agent.router.threshold(model) == 1.5
        (budget,) = agent.operations.status()["budgets"]
        assert (budget["budget"], budget["amount"]) == ("bytes/day", 50_000_000) and 0 < budget["left"] < 50_000_000
        assert "edge" not in await answering_tiers(agent)
        reported = await told_of(site)
        assert (reported.configuration_name, reported.configuration, reported.configuration_sha256) == (
            "careful",
            1,
            signed.sha256,
        )

    async with EdgeAgent(settings) as agent:  # it is there from the first request on
        assert agent.router.threshold(agent.models.all[0]) == 1.5
        assert agent.operations.status()["fleet"]["configuration"]["sha256"] == signed.sha256
        configuration = agent.fleet.status()["configuration"]
        birth: dict[str, Any] = birth_message(agent.models, lambda: configuration)
        assert birth["configuration"]["sha256"] == signed.sha256 and birth["models"]
        await rollouts.command(rollout, Command.ROLLBACK, "application:ops")

        async def back() -> bool:
            await driver.drive()
            return (await rollouts.get(rollout)).state == "rolled_back"

        await until(back, 60)
        assert agent.router.threshold(agent.models.all[0]) < 1
        assert (
            agent.operations.status()["budgets"] == [] and agent.operations.status()["fleet"]["configuration"] is None
        )
        update = await site.ended(rollout)
        assert (update.state, update.reason) == ("rolled_back", "undone")


async def test_unsigned_configurations_and_locked_settings_are_refused(
    site: RegistrySite, settings: EdgeSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signed = await pushed(site, tmp_path, CAREFUL)
    own = replace(settings, fleet=replace(settings.fleet, locked=("audit",)))
    async with EdgeAgent(own) as agent:
        await connected_to_fleet(agent)
        for version, rollout, reason in ((2, "r1", "not_found"), (1, "r2", "integrity")):
            await site.desire(configuration=DesiredConfiguration("careful", version, "0" * 64, rollout))
            update = await site.ended(rollout)
            assert (update.state, update.reason) == ("rejected", reason)
        assert agent.operations.status()["fleet"]["configuration"] is None
        await site.desire(configuration=DesiredConfiguration(signed.name, signed.version, signed.sha256, "r3"))
        update = await site.ended("r3")
        assert update.state == "rejected" and "keeps to itself" in update.message, update
        assert agent.router.threshold(agent.models.all[0]) < 1 and agent.operations.status()["budgets"] == []
    file = tmp_path / "edge-agent.toml"
    file.write_text(f'[agent]\nstate_dir = "{tmp_path / "state"}"\n')
    assert await command(file, "update", "list") == 0
    assert "configuration careful" in capsys.readouterr().out
    assert await command(file, "update", "list", "-o", "json") == 0
    (shown,) = json.loads(capsys.readouterr().out)["updates"]
    assert (shown["what"], shown["state"]) == ("configuration", "rejected")


async def test_a_reload_keeps_the_fleets_settings(site: RegistrySite, settings: EdgeSettings, tmp_path: Path) -> None:
    signed = await pushed(site, tmp_path, CAREFUL)
    settings = replace(settings, log=replace(settings.log, format="json"))
    found = [
        replace(
            settings,
            policy=replace(settings.policy, min_threshold=min_threshold),
            audit=replace(settings.audit, per_hour=0, bytes_per_hour=audit_bytes),
        )
        for min_threshold, audit_bytes in ((1.6, 1.0), (1.2, 0.0))  # the fleet sets 1.5, and may only set more
    ]
    requested = asyncio.Event()
    with captured_lines() as lines:
        async with EdgeAgent(settings) as agent:
            await connected_to_fleet(agent)
            await site.desire(configuration=DesiredConfiguration(signed.name, signed.version, signed.sha256, "r1"))
            assert (await site.ended("r1")).state == "committed"
            agent.start_reloading(lambda: found.pop(0), access_of(settings.api), requested)
            (model,) = agent.models.all
            for _ in range(2):
                requested.set()
                await until(lambda: not requested.is_set())

            async def reported() -> bool:
                return (await told_of(site)).audits_off == "audit.bytes_per_hour"

            await until(reported, 60)
            assert agent.router.threshold(model) == 1.5
            await agent.operations.roll_back(None)
            assert agent.router.threshold(model) == 1.2
    (refused,) = (line for line in lines if line["event"] == "configuration not reloaded")
    assert refused["why"].startswith("The fleet's configuration does not fit the new settings. It sets policy.min_th")
    (reloaded,) = (line for line in lines if line["event"] == "configuration reloaded")
    assert reloaded["applied"] == "policy.min_threshold, audit.per_hour, audit.bytes_per_hour"


async def test_configuration_is_rolled_back_on_the_device(
    site: RegistrySite, settings: EdgeSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signed = await pushed(site, tmp_path, CAREFUL)
    file = tmp_path / "edge-agent.toml"
    file.write_text(f'[agent]\nstate_dir = "{tmp_path / "state"}"\n')
    back = "update", "rollback", "--configuration"
    async with EdgeAgent(settings) as agent:
        await connected_to_fleet(agent)
        await site.desire(configuration=DesiredConfiguration(signed.name, signed.version, signed.sha256, "r1"))
        assert (await site.ended("r1")).state == "committed"
    assert await command(file, *back) == 0
    assert "configuration: rolled back to the previous version" in capsys.readouterr().out
    async with serving_agent(settings) as (agent, url):
        assert agent.operations.status()["fleet"]["configuration"] is None
        await site.desire(configuration=DesiredConfiguration(signed.name, signed.version, signed.sha256, "r2"))
        assert (await site.ended("r2")).state == "committed"
        agent.state.publish_url(url)
        assert await command(file, "status") == 0
        assert "configuration careful version 1" in capsys.readouterr().out
        assert await command(file, *back) == 0
        assert agent.operations.status()["fleet"]["configuration"] is None
        assert await command(file, *back) != 0
    assert "The configuration has no previous version to roll back to" in capsys.readouterr().err
