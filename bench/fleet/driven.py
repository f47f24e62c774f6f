"""The real engine over a real store, at the pace of a simulated clock, for devices that are drawn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, insert, select, update

from firstline_core.clock import SimulatedClock
from firstline_core.fleet.rollout import RolloutSummary
from firstline_core.fleet.telemetry import Telemetry
from firstline_core.fleet.twin import Desired
from firstline_gateway import settings
from firstline_gateway.fleet import devices
from firstline_gateway.fleet.counting import Totals, added
from firstline_gateway.fleet.tables import COUNTS, DEVICES, HISTORY
from firstline_gateway.rollouts.definition import Definition
from firstline_gateway.rollouts.engine import Engine
from firstline_gateway.rollouts.judgement.verdict import Rules
from firstline_gateway.rollouts.rollouts import Rollouts
from firstline_gateway.rollouts.stages import Stage
from firstline_gateway.rollouts.states import Command
from firstline_gateway.store.database import Database, open_database
from firstline_gateway.store.readers import Readers
from firstline_gateway.store.service import ServiceClock
from firstline_gateway.store.writer import GroupWriter
from fleet.population import BUNDLE, NEW, Device

HOUR_S = 3600.0
SOAK_H = 8.0


def definition(*stages: Stage, rules: Rules | None = None, held_back: float = 0.1, version: int = NEW) -> Definition:
    """Of a rollout of the simulated bundle; devices report every hour, so that two reports may be missed."""
    return Definition(
        BUNDLE, version, "0" * 64, stages, rules or Rules(), held_back=held_back, salt="simulated", silent_s=3 * HOUR_S
    )


class Driven:
    """A gateway's rollouts without its network."""

    def __init__(self, database: Database, writer: GroupWriter, readers: Readers, fleet: dict[str, Device]) -> None:
        self.clock = SimulatedClock(1000.0)
        self.database = database
        self.fleet = fleet
        self._counts: dict[str, tuple[Telemetry | None, Totals]] = {}
        service = ServiceClock(database, self.clock)
        self.rollouts = Rollouts(readers, writer, clock=self.clock, service=service)
        self.engine = Engine(database, writer, clock=self.clock, service=service, on_told=lambda: None)

    async def pass_time(self, hours: float) -> None:
        """Devices live, hear, report and count; then the engine does what is to be done."""
        await self.clock.advance(hours * HOUR_S)
        await asyncio.to_thread(self._pass, hours)
        await self.engine.drive()

    def _pass(self, hours: float) -> None:
        """Puts down what all devices say in a few statements: how single words are taken is measured elsewhere."""
        now_s = self.clock.wall_s()
        with self.database.begin() as connection:
            rows = connection.execute(select(DEVICES.c.name, DEVICES.c.desired)).all()
            desired = {row.name: msgspec.json.decode(row.desired, type=Desired) for row in rows}
            there = [device for device in self.fleet.values() if device.on]
            for device in there:
                device.live(hours)
                device.hear(desired.get(device.name, Desired(0)), now_s)
            for device in there if not rows else ():
                devices.report(connection, device.name, device.reported, now_s, accept=True)
            said = [_said(device, now_s) for device in there]
            connection.execute(update(DEVICES).where(DEVICES.c.name == bindparam("device")), said)
            counts = [self._counted(device, now_s) for device in there]
            names = [each["device"] for each in counts]
            connection.execute(delete(COUNTS).where(COUNTS.c.device.in_(names)))
            connection.execute(insert(COUNTS), counts)
            hour = int(now_s // HOUR_S)
            past = [
                {"device": each["device"], "hour": hour, "at_s": now_s, "totals": each["totals"]} for each in counts
            ]
            connection.execute(insert(HISTORY), past)

    def _counted(self, device: Device, now_s: float) -> dict[str, Any]:
        report = device.telemetry
        before, totals = self._counts.get(device.name, (None, Totals()))
        after = added(totals, before, report)
        self._counts[device.name] = report, after
        return {
            "device": device.name,
            "session": report.session,
            "sequence": report.sequence,
            "latest": msgspec.json.encode(report).decode(),
            "totals": msgspec.json.encode(after).decode(),
            "at_s": now_s,
        }

    async def run(self, found: Definition, hours: int) -> RolloutSummary:
        """Starts a rollout, and lets so many hours pass, or as many as it takes to its end."""
        made = await self.rollouts.create(found, "application:ops")
        await self.rollouts.command(made.id, Command.START, "application:ops")
        await self.engine.drive()
        for _ in range(hours):
            await self.pass_time(1.0)
            made = await self.rollouts.get(made.id)
            if made.state not in ("running", "rolling_back"):
                break
        return made

    def versions(self) -> dict[int, int]:
        """How many devices run which version."""
        found: dict[int, int] = {}
        for device in self.fleet.values():
            found[device.version] = found.get(device.version, 0) + 1
        return found


def _said(device: Device, now_s: float) -> dict[str, Any]:
    said = device.reported
    return {
        "device": device.name,
        "last_seen_s": now_s,
        "online": True,
        "sequence": said.sequence,
        "reported": msgspec.json.encode(said).decode(),
    }


@asynccontextmanager
async def driven(store: settings.Store, fleet: dict[str, Device]) -> AsyncIterator[Driven]:
    """A store with devices that have been there for a day."""
    database = open_database(store)
    writer, readers = GroupWriter(database), Readers(database)
    made = Driven(database, writer, readers, fleet)
    try:
        await made.pass_time(1.0)
        await made.pass_time(23.0)
        yield made
    finally:
        await made.engine.close()
        readers.close()
        writer.close()
        database.close()
