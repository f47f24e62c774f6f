"""A rollout of a bundle without a certificate to real agents, whose audits promote it, stop it, or are missing."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from support.agent import edge_settings
from support.audits import EVERY_ANSWER
from support.gateway import http_link
from support.registry_site import RegistrySite, connected_to_fleet, registry_site
from support.waiting import until

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import linear
from firstline_core.bundle.manifest import Policy
from firstline_core.bundle.store import Bundle
from firstline_core.clock import SYSTEM_CLOCK, SimulatedClock
from firstline_core.fleet.rollout_documents import RolloutSummary
from firstline_core.ids import new_request_id
from firstline_core.processing.steps import InputSpec, Softmax
from firstline_core.types import InferRequest, Tensor
from firstline_edge.app import EdgeAgent
from firstline_edge.fleet.updates.installation import manifest_sha256
from firstline_gateway.fleet.totals import totals_of
from firstline_gateway.rollouts.commands import Command
from firstline_gateway.rollouts.driver import RolloutDriver
from firstline_gateway.rollouts.judgement.figures import FIGURES
from firstline_gateway.rollouts.judgement.verdict import Rules
from firstline_gateway.rollouts.rollout import Definition, Stage
from firstline_gateway.rollouts.rollouts import Rollouts
from firstline_gateway.store.service_clock import ServiceClock

BY = "application:ops"
# Few devices give few divisions, so the only figure gets nearly all of a large error probability.
BY_DISAGREEMENT = Rules(alpha=0.49, ignored=tuple(name for name in FIGURES if name != "disagreement"))


def bundle(folder: Path, version: int, *, agreeing: bool) -> Bundle:
    """Returns a bundle whose full model goes by the second number; its edge model by the first one, or by the same."""
    folder.mkdir(parents=True)
    first, second = np.array([[9, -9], [0, 0]], np.float32), np.array([[0, 0], [9, -9]], np.float32)
    edge = model(linear(folder / "edge.onnx", second if agreeing else first), folder, postprocess=(Softmax(),))
    full = model(linear(folder / "full.onnx", second), folder, postprocess=(Softmax(),))
    spec = InputSpec("x", "FP32", (-1, 2))
    policy = Policy(threshold=0.9)
    return write_manifest(folder, [edge], ["plus", "minus"], version=version, full=full, inputs=(spec,), policy=policy)


@dataclass
class Fleet:
    """A gateway with a registry, its rollouts, and agents that answer requests."""

    site: RegistrySite
    agents: Mapping[str, EdgeAgent]
    rollouts: Rollouts
    driver: RolloutDriver
    clock: SimulatedClock
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    async def start(self, new: Bundle, rules: Rules) -> str:
        """Starts a rollout to one half of the devices, and returns its id."""
        await self.site.push(new)
        version, sha256 = new.manifest.version, manifest_sha256(new.path)
        found = Definition("small", version, sha256, (Stage(0.5, soak_s=1.0),), rules, held_back=0.0, silent_s=86_400.0)
        rollout = await self.rollouts.create(found, BY)
        await self.rollouts.command(rollout.id, Command.START, BY)
        return rollout.id

    async def ask(self, name: str) -> None:
        """Asks a device for a new row; its edge model is sure of the answer."""
        first = self.random.uniform(0.5, 1.0)
        row = np.array([[first, -first]], np.float32)
        await self.agents[name].data_plane.infer(InferRequest("small", (Tensor("x", row),), new_request_id()))

    async def driven(self, rollout: str) -> RolloutSummary:
        """Returns the rollout after one step."""
        await self.driver.drive()
        return await self.rollouts.get(rollout)

    async def observing(self, rollout: str) -> None:
        """Waits until the devices of the first stage run the new version."""

        async def observed() -> bool:
            return (await self.driven(rollout)).phase == "observing"

        await until(observed, 60)

    async def reported(self, *, audits: int) -> None:
        """Asks each device until it has reported an answer, and `audits` audits of the version that it runs."""
        requests = Counter(dict.fromkeys(self.agents, 0))

        async def enough() -> bool:
            with self.site.gateway.store.database.reading() as connection:
                totals = totals_of(connection, self.agents)
            counts = {name: each.models[-1] for name, each in totals.items() if each.models}
            for name in self.agents:
                rows, audited = (counts[name].rows, counts[name].audited) if name in counts else (0, 0)
                if (rows == 0 or audited < audits) and rows >= requests[name]:
                    await self.ask(name)
                    requests[name] += 1
            return all(name in counts and counts[name].audited >= audits for name in self.agents)

        await until(enough, 60)
        with self.site.gateway.store.database.reading() as connection:
            counts = [each.models[-1] for each in totals_of(connection, self.agents).values()]
        # The edge model reports one label in each row, and in each audit it can at least be invented.
        assert all(sum(each.objects.values()) == each.rows for each in counts)
        assert all(sum(each.event_audits.values()) >= each.audited and not each.audited_empty for each in counts)

    async def ended(self, rollout: str) -> RolloutSummary:
        """Lets a minute pass before each look, until the rollout ends."""
        found: list[RolloutSummary] = []

        async def over() -> bool:
            await self.clock.advance(60.0)
            found[:] = [await self.driven(rollout)]
            return found[0].state not in ("running", "rolling_back")

        await until(over, 60)
        return found[0]

    def versions(self) -> list[str]:
        """Returns the versions that the devices run, in order."""
        return sorted(agent.models.all[0].version for agent in self.agents.values())


@asynccontextmanager
async def running_fleet(folder: Path, devices: int, **audit: object) -> AsyncIterator[Fleet]:
    """Runs agents with version 1 of a bundle that has no certificate.

    Args:
        folder: of all their files.
        devices: how many.
        audit: settings of their audits.
    """
    old = bundle(folder / "models" / "one", 1, agreeing=True).path
    clock = SimulatedClock(wall_start_s=SYSTEM_CLOCK.wall_s())
    async with AsyncExitStack() as stack:
        more = {"models__directory": str(folder / "models"), "registry__full_models": str(folder / "full-models")}
        site = await stack.enter_async_context(registry_site(folder / "site", **more))
        await site.begin()
        gateway = site.gateway
        await gateway.rollout_driver.close()  # minutes pass between looks, which a simulated clock counts
        service = ServiceClock(gateway.store.database, clock)
        rollouts = Rollouts(
            gateway.store,
            clock=clock,
            service=service,
            delta=0.05,
            on_change=lambda: None,
            before_start=gateway.full_models.prepare,
        )
        driver = RolloutDriver(gateway.store, clock=clock, service=service, on_desired=lambda: None)
        stack.push_async_callback(driver.close)
        agents = {}
        for name in (f"cam{number}" for number in range(devices)):
            settings = edge_settings(
                folder / name,
                agent__device_id=name,
                models__directories=[str(old)],
                links=[http_link(gateway.settings.store, site.url, name, folder)],
                fleet__enabled=True,
                fleet__poll_s=0.5,
                fleet__telemetry_s=0.5,
                fleet__trial_s=0.0,
                fleet__root_file=str(site.keyring.anchor),
                fleet__download_jitter_s=0,
                **(EVERY_ANSWER | audit),
            )
            agents[name] = await stack.enter_async_context(EdgeAgent(settings))
        for agent in agents.values():
            await connected_to_fleet(agent)
        yield Fleet(site, agents, rollouts, driver, clock)


async def test_disagreement_stops_a_bundle_without_a_certificate(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, 9) as fleet:
        rollout = await fleet.start(bundle(tmp_path / "two", 2, agreeing=False), BY_DISAGREEMENT)
        await fleet.observing(rollout)
        await fleet.reported(audits=3)
        ended = await fleet.ended(rollout)
        assert ended.state == "rolled_back", ended.sentence
        assert "disagreement: 1 on 5 devices with the model, 0 on 4 without" in ended.sentence
        await until(lambda: fleet.versions() == ["1"] * 9, 60)


async def test_audits_promote_a_bundle_without_a_certificate(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, 2) as fleet:
        rollout = await fleet.start(bundle(tmp_path / "two", 2, agreeing=True), Rules(promote_unseen=True))
        await fleet.observing(rollout)
        await fleet.reported(audits=1)
        ended = await fleet.ended(rollout)
        assert (ended.state, fleet.versions()) == ("completed", ["2", "2"]), ended.sentence


async def test_a_person_promotes_what_no_device_audits(tmp_path: Path) -> None:
    async with running_fleet(tmp_path, 2, audit__per_hour=0) as fleet:
        rollout = await fleet.start(bundle(tmp_path / "two", 2, agreeing=False), Rules(promote_unseen=True))
        await fleet.observing(rollout)
        await fleet.reported(audits=0)
        for _ in range(12):
            await fleet.clock.advance(60.0)
            driven = await fleet.driven(rollout)
        assert driven.state == "running" and driven.stage == 0
        assert "No edge answer of edge was audited: audit.per_hour is 0 on 1 device." in driven.sentence
        planned = await fleet.rollouts.plan(
            Definition("small", 2, "0" * 64, (Stage(0.5),), Rules(promote_unseen=True)), None
        )
        assert "audit.per_hour is 0 on 2 devices" in planned.unaudited
        await fleet.rollouts.command(rollout, Command.PROMOTE, BY)
        assert (await fleet.ended(rollout)).state == "completed"
