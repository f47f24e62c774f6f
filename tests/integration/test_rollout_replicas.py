"""Two replicas drive the rollouts of one PostgreSQL: one dies in a step, and the other continues."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import pytest
from support.databases import OpenStore, PostgreSql

from bench.fleet.driven import definition
from bench.fleet.population import NEW
from bench.fleet.pretended import PretendedDevice, pretended_population
from firstline_core.clock import SimulatedClock
from firstline_core.fleet.audit_log import verify_log
from firstline_core.fleet.twin import Desired
from firstline_core.units import HOUR_S
from firstline_gateway import audit_log
from firstline_gateway.fleet import devices, totals
from firstline_gateway.rollouts import driver, records
from firstline_gateway.rollouts.commands import Command
from firstline_gateway.rollouts.driver import RolloutDriver
from firstline_gateway.rollouts.judgement.figures import FIGURES
from firstline_gateway.rollouts.judgement.verdict import Rules
from firstline_gateway.rollouts.rollout import Stage
from firstline_gateway.rollouts.rollouts import Rollouts
from firstline_gateway.settings.settings import StoreSection
from firstline_gateway.store import schema
from firstline_gateway.store.database import Database
from firstline_gateway.store.service_clock import ServiceClock

DEVICES = 12
OPS = "application:ops"


class Replica:
    """A gateway's rollouts without its network; its clock is the machine's, as all replicas' are."""

    def __init__(self, store: StoreSection, clock: SimulatedClock) -> None:
        self.opened = OpenStore(store)
        self.database = self.opened.database
        service = ServiceClock(self.database, clock)
        self.rollouts = Rollouts(self.opened.store, clock=clock, service=service, delta=0.05, on_change=lambda: None)
        self.driver = RolloutDriver(self.opened.store, clock=clock, service=service, on_desired=lambda: None)

    async def close(self) -> None:
        await self.driver.close()
        self.opened.close()


@asynccontextmanager
async def replicas(store: StoreSection, clock: SimulatedClock) -> AsyncIterator[tuple[Replica, Replica]]:
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(2):
            found.append(Replica(store, clock))
            stack.push_async_callback(found[-1].close)
        yield found[0], found[1]


@pytest.fixture
def store(postgresql: PostgreSql) -> StoreSection:
    return StoreSection(url=postgresql.new_database())


def live(database: Database, fleet: dict[str, PretendedDevice], now_s: float) -> None:
    """The devices work for an hour, hear, report and count."""
    with database.begin() as connection:
        for device in fleet.values():
            record = devices.find(connection, device.name)
            device.live(1.0)
            device.hear(record.desired if record is not None else Desired(0), now_s)
            devices.report(connection, device.name, device.reported, now_s, accept=True)
            totals.count(connection, device.name, device.telemetry, now_s, service_s=0)


@contextmanager
def held_up(patch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Steps that are begun meanwhile have seen everything, say so, and wait until they may go on."""
    seen, goes_on, real = threading.Event(), threading.Event(), driver._compute_step

    def stepped(*args: Any, **kwargs: Any) -> Any:
        found = real(*args, **kwargs)
        seen.set()
        assert goes_on.wait(60)
        return found

    with patch.context() as meanwhile:
        meanwhile.setattr(driver, "_compute_step", stepped)
        yield seen, goes_on


@pytest.mark.parametrize("part", [5, 5000])
async def test_crash_within_a_step_repeats_nothing(
    store: StoreSection, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(schema, "_MANY", part)
    clock, fleet = SimulatedClock(1000.0), pretended_population(DEVICES, 3)
    async with replicas(store, clock) as (first, second):
        live(first.database, fleet, clock.wall_s())
        stages = Stage(0.5, per_minute=0.1, soak_s=HOUR_S), Stage(1.0, soak_s=HOUR_S)
        rollout = await first.rollouts.create(definition(*stages, rules=Rules(promote_unseen=True)), OPS)
        await first.rollouts.command(rollout.id, Command.START, OPS)
        await first.driver.drive()
        for hour in range(60):
            await clock.advance(HOUR_S)
            live(first.database, fleet, clock.wall_s())
            # What the first has seen is old when it goes on: the second has led meanwhile, and devices have answered.
            with held_up(monkeypatch) as (seen, goes_on):
                dying = asyncio.create_task(first.driver.drive())
                done = asyncio.create_task(asyncio.to_thread(seen.wait, 60))
                await asyncio.wait((dying, done), return_when=asyncio.FIRST_COMPLETED)
            assert await second.driver.drive() == 0 or dying.done()  # the lease is the first's as long as it lasts
            await clock.advance(31.0)
            await second.driver.drive()
            live(second.database, fleet, clock.wall_s())
            await second.driver.drive()
            before = standing(second, rollout.id)
            goes_on.set()
            await asyncio.gather(dying, done)
            assert standing(second, rollout.id) == before, f"hour {hour}: the first carried out what it had seen"
            await clock.advance(31.0)
            if (await second.rollouts.get(rollout.id)).state == "completed":
                break
        ended = await second.rollouts.get(rollout.id)
        assert ended.state == "completed" and ended.devices == {"done": DEVICES}, ended.sentence
        assert {device.version for device in fleet.values()} == {NEW}
        with second.database.reading() as connection:
            entries = audit_log.page(connection, audit_log.EntryFilter(0), 1000)
            looks = records.looks(connection, rollout.id, (-1, 0), 1000)
        verify_log(entries)
        actions = Counter(entry.action for entry in entries)
        assert actions["rollout.stage"] == 3 and actions["rollout.promote"] == 2 and actions["rollout.completed"] == 1
        assert actions["rollout.look"] == len({(look.stage, look.look) for look in looks}) == len(looks)
        # No device was informed twice: its document has changed for the audits, the version and the end of the audits.
        with second.database.reading() as connection:
            held_by = [devices.find(connection, name) for name in fleet]
        assert {found.desired.revision for found in held_by if found is not None} == {3}


def standing(replica: Replica, rollout_id: str) -> tuple[object, object]:
    with replica.database.reading() as connection:
        return records.find(connection, rollout_id), records.assignments(connection, rollout_id)


async def test_one_of_two_simultaneous_rollouts_runs(store: StoreSection) -> None:
    clock = SimulatedClock(1000.0)
    async with replicas(store, clock) as (first, second):
        live(first.database, pretended_population(4, 3), clock.wall_s())
        for _ in range(8):
            rollouts = [await each.rollouts.create(definition(Stage(1.0)), OPS) for each in (first, second)]
            await asyncio.gather(
                first.rollouts.command(rollouts[0].id, Command.START, OPS),
                second.rollouts.command(rollouts[1].id, Command.START, OPS),
            )
            states = sorted([(await first.rollouts.get(each.id)).state for each in rollouts])
            assert states == ["aborted", "running"]


async def test_rollout_started_last_rolls_back_to_the_previous_version(store: StoreSection) -> None:
    clock, fleet = SimulatedClock(1000.0), pretended_population(6, 3)
    async with replicas(store, clock) as (first, _):
        live(first.database, fleet, clock.wall_s())
        rules = Rules(promote_unseen=True)
        older = await first.rollouts.create(definition(Stage(1.0), rules=rules, version=3), OPS)
        newer = await first.rollouts.create(definition(Stage(1.0), rules=rules), OPS)
        await first.rollouts.command(newer.id, Command.START, OPS)
        await first.driver.drive()  # the devices are informed, and have not answered
        await first.rollouts.command(older.id, Command.START, OPS)
        await first.driver.drive()
        await first.rollouts.command(older.id, Command.ROLLBACK, OPS)
        await first.driver.drive()
        with first.database.reading() as connection:
            found = [devices.find(connection, name) for name in fleet]
        desired = [each.desired.models[0] for each in found if each is not None and each.desired.models]
        # None of them is to run what was stopped before it was judged.
        assert desired and all(model.undone for model in desired)


async def test_a_failing_rollout_does_not_delay_the_others(
    store: StoreSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, fleet = SimulatedClock(1000.0), pretended_population(4, 3)
    async with replicas(store, clock) as (first, _):
        live(first.database, fleet, clock.wall_s())
        broken, sound = [
            await first.rollouts.create(definition(Stage(1.0), version=version, held_back=0.0), OPS)
            for version in (2, 3)
        ]
        real = driver._compute_step

        def stepped(connection: object, rollout_id: str, *rest: object) -> object:
            if rollout_id == broken.id:
                raise ZeroDivisionError
            return real(connection, rollout_id, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(driver, "_compute_step", stepped)
        await first.rollouts.command(broken.id, Command.START, OPS)
        await first.driver.drive()
        await first.rollouts.command(sound.id, Command.START, OPS)
        await first.driver.drive()
        assert (await first.rollouts.get(sound.id)).devices == {"offered": 4}


async def test_late_joiner_takes_part_in_the_rollback(store: StoreSection) -> None:
    clock, fleet = SimulatedClock(1000.0), pretended_population(5, 3)
    late = fleet.pop("camera-00004")
    async with replicas(store, clock) as (first, second):
        live(first.database, fleet, clock.wall_s())
        found = definition(Stage(1.0, soak_s=0.0), rules=Rules(ignored=tuple(FIGURES)), held_back=0.0)
        rollout = await first.rollouts.create(found, OPS)
        await first.rollouts.command(rollout.id, Command.START, OPS)
        for _ in range(4):
            await first.driver.drive()
            await clock.advance(HOUR_S)
            live(first.database, fleet, clock.wall_s())
        assert (await first.rollouts.get(rollout.id)).devices == {"done": 4}
        fleet[late.name] = late
        for _ in range(4):
            await clock.advance(HOUR_S)
            live(first.database, fleet, clock.wall_s())
            await second.driver.drive()
        assert (await first.rollouts.get(rollout.id)).devices == {"done": 5}
        assert late.version == NEW
        with second.database.reading() as connection:
            entries = audit_log.page(connection, audit_log.EntryFilter(0), 100)
        assert [entry.details for entry in entries if entry.action == "rollout.join"] == [
            '{"devices":1,"names":["camera-00004"]}'
        ]
        await first.rollouts.command(rollout.id, Command.ROLLBACK, OPS)
        await second.driver.drive()
        with second.database.reading() as connection:
            device = devices.find(connection, late.name)
        assert device.desired.models[0].undone
