"""Reports of devices, also to replicas that share a store, and the brake."""

import asyncio
import threading
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from support.databases import OpenStore, PostgreSql, sqlite_store
from support.waiting import wait_until

from firstline_core.clock import SimulatedClock
from firstline_core.errors import StoreUnavailableError
from firstline_core.fleet.telemetry import EndedPromise, ModelCounts, Telemetry
from firstline_core.fleet.twin import Brake, Reported
from firstline_gateway.fleet import answers, totals
from firstline_gateway.fleet.fleet import Fleet
from firstline_gateway.settings import settings
from firstline_gateway.store.service_clock import ServiceClock

_LIMIT_S = 30.0
_WAITING = text("SELECT count(*) FROM pg_locks WHERE NOT granted")


def fleet_on(opened: OpenStore) -> Fleet:
    clock = SimulatedClock()
    service = ServiceClock(opened.database, clock)
    return Fleet(
        opened.store, settings.FleetSection(), clock=clock, service=service, on_desired=lambda: None, wants_answers=True
    )


def report(request_id: str) -> Telemetry:
    return Telemetry("s", 1, ended=(EndedPromise(request_id, "digits", "1", changed=True),))


async def test_promises_on_replicas_do_not_deadlock(postgresql: PostgreSql) -> None:
    found = postgresql.new_store()
    with OpenStore(found) as one, OpenStore(found) as other:
        first, second = fleet_on(one), fleet_on(other)
        entered, gate, locked = threading.Event(), threading.Event(), threading.Event()

        def hold(_: Connection) -> None:
            entered.set()
            gate.wait(_LIMIT_S)

        def wait_for_the_other(connection: Connection) -> None:
            if not locked.is_set():  # the first time
                locked.set()
                wait_until(lambda: connection.execute(_WAITING).scalar_one() > 0, _LIMIT_S)

        one.store.submit(hold)
        await asyncio.to_thread(entered.wait, _LIMIT_S)
        async with asyncio.TaskGroup() as group:  # one transaction that locks "cam" and stores a promise of "door"
            group.create_task(first.desired("cam"))
            await asyncio.sleep(0)
            one.store.submit_then(wait_for_the_other, lambda result: result, key="cat")  # after "cam", before "door"
            group.create_task(first.take_telemetry("door", report("a")))
            await asyncio.sleep(0)
            gate.set()
            await asyncio.to_thread(locked.wait, _LIMIT_S)
            await second.take_telemetry("cam", report("b"))
        with one.database.reading() as connection:
            assert {each.request_id for each in answers.page(connection, 0, 10)} == {"a", "b"}


async def test_promises_age_by_seconds_in_service(store_settings: settings.StoreSection) -> None:
    with OpenStore(store_settings) as opened:
        fleet = fleet_on(opened)
        clock = fleet.clock
        assert isinstance(clock, SimulatedClock)

        def stored() -> list[str]:
            with opened.database.reading() as connection:
                return [each.request_id for each in answers.page(connection, 0, 10)]

        for request_id in ("a", "b"):
            await fleet.take_telemetry("cam", report(request_id))
        clock.set_wall_s(clock.wall_s() + 2 * answers.KEPT_S)  # as of a replica whose clock is wrong
        await fleet.forget_old()
        assert stored() == ["a", "b"]
        await clock.advance(answers.KEPT_S + 1)
        await fleet.forget_old()
        assert stored() == ["b"]  # the newest, for its number


async def test_the_history_of_counts_ages_by_seconds_in_service(store_settings: settings.StoreSection) -> None:
    with OpenStore(store_settings) as opened:
        fleet = fleet_on(opened)
        clock, counts = fleet.clock, (ModelCounts("digits", 1, rows=1, kept=1),)
        assert isinstance(clock, SimulatedClock)

        async def stored() -> tuple[bool, bool]:
            with opened.database.reading() as connection:
                before = totals.totals_before(connection, ["cam"], clock.wall_s())
            return bool(before), bool((await fleet.tiers(10**6, "")).points)

        await fleet.take_telemetry("cam", Telemetry("s", 1, models=counts))
        await fleet.store_tiers()
        clock.set_wall_s(clock.wall_s() + 10 * totals.KEPT_HOURS * 3600)  # as of a replica whose clock is wrong
        await fleet.forget_old()
        assert await stored() == (True, True)
        await clock.advance(totals.KEPT_HOURS * 3600 + 1)
        await fleet.forget_old()
        assert await stored() == (False, False)


async def test_a_device_that_joins_after_the_brake_is_braked(store_settings: settings.StoreSection) -> None:
    with OpenStore(store_settings) as opened:
        fleet, brake = fleet_on(opened), Brake(0.0, "the gateway is being moved")
        assert await fleet.set_brake(brake, "application:ops") == 0
        await fleet.report("cam", Reported("s", 1))
        assert (await fleet.desired("cam")).brake == brake
        await fleet.set_brake(None, "application:ops")
        await fleet.report("cam", Reported("s", 2))
        assert (await fleet.desired("cam")).brake is None


async def test_a_damaged_brake_forbids_escalation_and_reports_go_on(
    store_settings: settings.StoreSection, caplog: pytest.LogCaptureFixture
) -> None:
    with OpenStore(store_settings) as opened:
        fleet, brake = fleet_on(opened), Brake(10.0, "the gateway is slow")
        await fleet.set_brake(brake, "application:ops")
        damaged = {"brake": store_settings.url}  # each damage is logged once
        await opened.store.write(lambda on: on.execute(text("UPDATE fleet_brake SET brake = :brake"), damaged))
        assert await fleet.report("cam", Reported("s", 1))
        found = await fleet.desired("cam")
        assert found.brake.escalations_per_hour == 0 and "firstline fleet lift" in found.brake.reason
        assert caplog.text.count("brake damaged") == 1
        await fleet.set_brake(brake, "application:ops")
        assert (await fleet.desired("cam")).brake == brake


async def test_a_damaged_number_of_a_report_is_damage_of_the_store(tmp_path: Path) -> None:
    with OpenStore(sqlite_store(tmp_path)) as opened:
        fleet = fleet_on(opened)
        await fleet.take_telemetry("cam", Telemetry("s", 1))
        await opened.store.write(lambda on: on.execute(text("UPDATE fleet_counts SET sequence = 'x'")))
        with pytest.raises(StoreUnavailableError, match="is damaged"):
            await fleet.take_telemetry("cam", Telemetry("s", 2))
