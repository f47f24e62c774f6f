"""The real rollout driver over a real store, at the pace of a simulated clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

from msgspec.structs import replace
from sqlalchemy import select

from bench.fleet.population import BUNDLE, NEW, DeviceReport
from firstline_core.clock import SimulatedClock
from firstline_core.fleet.rollout_documents import RolloutSummary
from firstline_core.fleet.twin import Desired
from firstline_core.units import HOUR_S
from firstline_gateway.fleet import devices, totals
from firstline_gateway.rollouts.commands import Command
from firstline_gateway.rollouts.driver import RolloutDriver
from firstline_gateway.rollouts.judgement.verdict import Rules
from firstline_gateway.rollouts.rollout import Definition, Stage
from firstline_gateway.rollouts.rollouts import Rollouts
from firstline_gateway.settings import settings
from firstline_gateway.store.service_clock import ServiceClock
from firstline_gateway.store.store import Store
from firstline_gateway.tables import open_database

SOAK_H = 8.0


def definition(
    *stages: Stage,
    rules: Rules | None = None,
    held_back: float = 0.1,
    version: int = NEW,
    manifest_sha256: str = "0" * 64,
) -> Definition:
    """Of a rollout of the simulated bundle; devices report every hour, so that two reports may be missed."""
    return Definition(
        BUNDLE,
        version,
        manifest_sha256,
        stages,
        rules or Rules(),
        held_back=held_back,
        salt="simulated",
        silent_s=3 * HOUR_S,
    )


class Fleet(Protocol):
    """Devices under the driver, such as the agents of `world.World`."""

    manifest_sha256: str

    def pass_time(self, hours: float, desired: Mapping[str, Desired], now_s: float) -> list[DeviceReport]:
        """Has devices hear what is desired and live on; what they say in the end.

        Args:
            hours: that pass.
            desired: by device.
            now_s: wall time of the gateway when they speak.
        """
        ...

    def versions(self) -> Counter[int]:
        """How many devices run which version."""
        ...


class Driven:
    """A gateway's rollouts without its network."""

    def __init__(self, store: Store, fleet: Fleet) -> None:
        self.clock = SimulatedClock(1000.0)
        self.database = store.database
        self.fleet = fleet
        service = ServiceClock(store.database, self.clock)
        self.rollouts = Rollouts(
            store, clock=self.clock, service=service, delta=settings.ContractsSection().delta, on_change=lambda: None
        )
        self.driver = RolloutDriver(store, clock=self.clock, service=service, on_desired=lambda: None)

    async def pass_time(self, hours: float) -> None:
        """Devices live, hear, report and count; then the driver does what is to be done."""
        await self.clock.advance(hours * HOUR_S)
        await asyncio.to_thread(self._pass, hours)
        await self.driver.drive()

    def _pass(self, hours: float) -> None:
        with self.database.begin() as connection:
            columns = devices.DEVICES.c.name, devices.DEVICES.c.desired, devices.REVISION
            rows = connection.execute(select(*columns)).all()
            desired = {row.name: replace(row.desired, revision=row.revision) for row in rows}
        now_s = self.clock.wall_s()
        reports = self.fleet.pass_time(hours, desired, now_s)
        with self.database.begin() as connection:
            for each in reports:
                devices.report(connection, each.name, each.reported, now_s, accept=True)
                totals.count(connection, each.name, each.telemetry, now_s, service_s=now_s)

    async def run(self, found: Definition, hours: int) -> RolloutSummary:
        """Starts a rollout, and lets `hours` hours pass, or fewer if it ends earlier."""
        made = await self.rollouts.create(found, "application:ops")
        await self.rollouts.command(made.id, Command.START, "application:ops")
        await self.driver.drive()
        for _ in range(hours):
            await self.pass_time(1.0)
            made = await self.rollouts.get(made.id)
            if made.state not in ("running", "rolling_back"):
                break
        return made


@asynccontextmanager
async def driven(found: settings.StoreSection, fleet: Fleet) -> AsyncIterator[Driven]:
    """A store with devices that have been there for a day."""
    store = Store(open_database(found))
    made = Driven(store, fleet)
    try:
        await made.pass_time(1.0)
        await made.pass_time(23.0)
        yield made
    finally:
        await made.driver.close()
        store.close()
        store.database.close()
