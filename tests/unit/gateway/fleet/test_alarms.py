"""Alarms that devices report by requests and by telemetry: each is one alarm, on every replica and after a restart."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import select, text
from support.databases import OpenStore, PostgreSql
from support.logs import captured_lines
from support.waiting import until

from firstline_core.clock import SimulatedClock
from firstline_core.fleet.telemetry import ModelCounts, Telemetry
from firstline_core.types import ContractAlarm, ModelKey
from firstline_core.units import DAY_S, HOUR_S
from firstline_gateway import audit_log
from firstline_gateway.fleet import alarms
from firstline_gateway.fleet.alarms import DeviceAlarm
from firstline_gateway.fleet.fleet import Fleet
from firstline_gateway.identity import enrolment
from firstline_gateway.identity.principals import UNAUTHENTICATED
from firstline_gateway.settings import settings
from firstline_gateway.settings.settings import StoreSection
from firstline_gateway.store.service_clock import ServiceClock

M, N = ModelKey("digits", 1), ModelKey("digits", 2)
A, B = "a" * 64, "b" * 64
NOW_S, YEAR_S = 1.8e9, 365 * DAY_S
_WAITING = text("SELECT count(*) FROM pg_locks WHERE NOT granted")


class Replica:
    """One process on a store."""

    def __init__(self, found: StoreSection) -> None:
        self.opened = OpenStore(found)
        self.clock = SimulatedClock()
        self.service = ServiceClock(self.opened.database, self.clock)
        self.fleet = self.new_fleet()

    def new_fleet(self, monitors: Callable[[ModelKey], bool] = lambda _: True) -> Fleet:
        return Fleet(
            self.opened.store,
            settings.FleetSection(),
            clock=self.clock,
            service=self.service,
            on_desired=lambda: None,
            monitors=monitors,
        )

    def raised(self, at_s: float, device: str = "cam", model: ModelKey = M, digest: str = A, event: str = "") -> None:
        self.take(device, model, ContractAlarm(digest, event), at_s)

    def ended(self, at_s: float, device: str = "cam", model: ModelKey = M) -> None:
        self.take(device, model, None, at_s)

    def take(self, device: str, model: ModelKey, alarm: ContractAlarm | None, at_s: float) -> None:
        with self.opened.database.begin() as connection:
            changes = alarms.take_request(connection, device, model, alarm, now_s=NOW_S + at_s, service_s=at_s)
        for change in changes:
            change.log()

    def listed(self, at_s: float) -> list[DeviceAlarm]:
        with self.opened.database.reading() as connection:
            return alarms.listed(connection, at_s)

    def entries(self) -> list[str]:
        with self.opened.database.reading() as connection:
            found = audit_log.page(connection, audit_log.EntryFilter(action=alarms.DEVICE_ALARM), 100)
        return [entry.subject for entry in found]


@pytest.fixture
def replicas(store_settings: StoreSection) -> Iterator[tuple[Replica, Replica]]:
    found = Replica(store_settings), Replica(store_settings)
    yield found
    for each in found:
        each.opened.close()


def test_repeated_reports_to_all_replicas_are_one_alarm(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    with captured_lines() as lines:
        for at_s, replica in ((10, one), (20, other), (30, one), (2 * DAY_S, other)):
            replica.raised(at_s, event="missed person")
    (line,) = lines
    assert (line["event"], line["device"]) == ("device contract broken by its own audits", "cam")
    assert line["contract_event"] == "missed person"
    assert one.entries() == other.entries() == ["device:cam"]
    last_s = 2 * DAY_S
    alarm = DeviceAlarm("cam", *M, A, "missed person", NOW_S + 10, NOW_S + last_s, None, last_s)
    assert one.listed(last_s) == other.listed(last_s) == [alarm]


def test_an_alarm_that_returns_shortly_after_its_end_is_the_same(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    one.raised(10)
    with captured_lines() as lines:
        other.ended(20)
        one.ended(30)
        assert other.listed(30) == [DeviceAlarm("cam", *M, A, "", NOW_S + 10, NOW_S + 20, NOW_S + 20, 20)]
        one.raised(40)
        one.ended(50)
    assert [line["event"] for line in lines] == 2 * ["device alarm ended"]
    assert other.entries() == ["device:cam"]
    other.raised(HOUR_S)
    assert one.listed(HOUR_S)[0].since_s == NOW_S + HOUR_S
    assert one.entries() == 2 * ["device:cam"]


def test_an_event_that_no_database_stores_is_stored_without_its_nul(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    for at_s in (10, 20):
        one.raised(at_s, event="missed\0 person")
    (alarm,) = other.listed(20)
    assert (alarm.event, alarm.since_s) == ("missed person", NOW_S + 10)
    assert other.entries() == ["device:cam"]


def test_each_device_version_and_variant_has_its_own(replicas: tuple[Replica, Replica]) -> None:
    one, _ = replicas
    one.raised(10)
    one.ended(11, "yard")
    one.ended(12, model=N)
    assert [(each.device, each.model, each.ended_s) for each in one.listed(12)] == [("cam", M, None)]
    one.raised(13, digest=B)
    assert [(each.edge_digest, each.since_s) for each in one.listed(13)] == [(B, NOW_S + 13), (A, NOW_S + 10)]
    assert one.entries() == 2 * ["device:cam"]


def test_lasting_alarms_come_first_and_silent_ones_are_not_shown(replicas: tuple[Replica, Replica]) -> None:
    one, _ = replicas
    one.raised(0, "ended")
    one.ended(5, "ended")
    one.raised(1, "old")
    one.raised(2, "new")
    assert [each.device for each in one.listed(10)] == ["new", "old", "ended"]
    one.raised(80_000, "old")
    assert [each.device for each in one.listed(DAY_S + 10)] == ["old"]
    with one.opened.database.begin() as connection:
        alarms.forget(connection, 30 * DAY_S + 10)
    one.raised(30 * DAY_S + 10, "new")
    assert one.entries().count("device:new") == 2


def test_the_alarm_of_a_revoked_device_is_not_shown(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    one.raised(10)
    one.raised(10, "yard")
    with one.opened.database.begin() as connection:
        enrolment.invite(connection, [("cam", "0" * 64)], by="ops", now_s=NOW_S, expires_s=NOW_S + 60)
        issue = enrolment.Issued("1", "pem", NOW_S + DAY_S)
        enrolment.redeem(connection, "0" * 64, "key", lambda _: issue, NOW_S, address="")
        enrolment.revoke(connection, "cam", "ops", NOW_S)
    assert [each.device for each in other.listed(20)] == ["yard"]


async def test_telemetry_raises_and_ends_alarms(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    sequence = iter(range(1, 10))

    async def report(replica: Replica, alarm: ContractAlarm | None, *, at_s: float) -> None:
        for each in replicas:
            await each.clock.advance(at_s - each.clock.monotonic_s())
        counts = (ModelCounts("digits", 1, audited=9, disagreed=4, device_alarm=alarm), ModelCounts("words", 1))
        await replica.fleet.take_telemetry("cam", Telemetry("s", next(sequence), models=counts))

    person = ContractAlarm(A, "missed person")
    await report(one, person, at_s=100)
    assert [(each.model, each.edge_digest, each.event) for each in other.listed(100)] == [(M, A, "missed person")]
    other.raised(200, event="missed person")
    await report(one, None, at_s=300)  # it may be from before the alarm
    await report(other, person, at_s=600)
    (device_alarm,) = one.listed(600)
    assert (device_alarm.since_s, device_alarm.ended_s) == (NOW_S + 100, None)
    assert one.entries() == ["device:cam"]
    await report(one, None, at_s=1500)
    assert other.listed(1500)[0].ended_s is not None
    await report(one, ContractAlarm(A, "missed dog"), at_s=HOUR_S)  # long after, it is another alarm
    assert [(each.event, each.since_s) for each in other.listed(HOUR_S)] == [("missed dog", NOW_S + HOUR_S)]
    assert one.entries() == 2 * ["device:cam"]
    await one.fleet.decommission("cam", "operator:anna")
    assert one.listed(HOUR_S) == []


async def test_telemetry_about_an_unknown_version_raises_no_alarm(replicas: tuple[Replica, Replica]) -> None:
    fleet = replicas[0].new_fleet(monitors={M}.__contains__)
    counts = [ModelCounts(*model, device_alarm=ContractAlarm(A)) for model in (M, N, ModelKey("invented", 1))]
    await fleet.take_telemetry("cam", Telemetry("s", 1, models=tuple(counts)))
    assert [alarm.model for alarm in replicas[0].listed(0)] == [M]
    assert replicas[0].entries() == ["device:cam"]


def test_each_broken_variant_of_a_device_has_one_entry(replicas: tuple[Replica, Replica]) -> None:
    one, other = replicas
    for at_s in range(0, 40_000, 2000):
        one.raised(at_s, digest=A)
        other.raised(at_s + 1000, digest=B, event="missed person")
    assert [(each.edge_digest, each.since_s) for each in one.listed(at_s)] == [(B, NOW_S + 1000), (A, NOW_S)]
    assert one.entries() == 2 * ["device:cam"]
    one.ended(at_s)
    assert [each.ended_s for each in other.listed(at_s)] == 2 * [NOW_S + at_s]


async def test_a_request_and_telemetry_on_two_replicas_do_not_deadlock(postgresql: PostgreSql) -> None:
    found = postgresql.new_store()
    alarm = ContractAlarm(A)
    counts = tuple(ModelCounts(*model, device_alarm=alarm) for model in (N, M))
    one, other = Replica(found), Replica(found)
    with one.opened, other.opened, OpenStore(found) as third, third.database.begin() as connection:
        # The lock under which entries are added: both wait for it, with the locks that they have already.
        connection.execute(select(audit_log.HEAD.c.number).with_for_update()).one()
        telemetry = asyncio.create_task(one.fleet.take_telemetry("cam", Telemetry("s", 1, models=counts)))
        await until(lambda: connection.execute(_WAITING).scalar_one() == 1)
        request = asyncio.create_task(asyncio.to_thread(other.raised, 10, model=N))
        await until(lambda: connection.execute(_WAITING).scalar_one() == 2)
        connection.commit()
        assert await telemetry
        await request
        assert one.entries() == 2 * ["device:cam"]


def test_a_device_chooses_neither_the_number_of_alarms_nor_of_entries(replicas: tuple[Replica, Replica]) -> None:
    one, _ = replicas
    for version in range(70):
        one.raised(version, model=ModelKey("digits", version))
    one.raised(80, UNAUTHENTICATED)
    assert len(one.listed(80)) == 65
    assert one.entries() == 16 * ["device:cam"]


def test_alarms_of_all_devices_are_bounded(replicas: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = replicas
    monkeypatch.setattr(alarms, "ALARMS_OF_ALL", 20)
    with captured_lines() as lines:
        for at_s in range(60):
            replicas[at_s % 2].raised(at_s, "lasting")  # repeated, and therefore never the oldest
            replicas[at_s % 2].raised(at_s, f"cam{at_s % 10}", ModelKey("digits", at_s // 10))
            assert len(one.listed(at_s)) <= 20
    listed = other.listed(60)
    assert len(listed) == 20
    assert {each.device for each in listed if each.last_s < NOW_S + 40} == set()
    assert "lasting" in {each.device for each in listed}
    assert one.entries().count("device:lasting") == 1
    assert {line["deleted"] for line in lines if line["event"].startswith("too many device alarms")} == {1}


@pytest.mark.parametrize("jump_s", [-YEAR_S, YEAR_S])
async def test_alarms_expire_by_the_service_clock(replicas: tuple[Replica, Replica], jump_s: float) -> None:
    one, other = replicas

    async def pass_time(seconds: float) -> None:
        for each in replicas:
            await each.clock.advance(seconds)

    def jump(by_s: float) -> None:
        for each in replicas:
            each.clock.set_wall_s(each.clock.wall_s() + by_s)

    counts = (ModelCounts("digits", 1, audited=9, disagreed=4, device_alarm=ContractAlarm(A)),)
    await one.fleet.take_telemetry("cam", Telemetry("s", 1, models=counts))
    since_s = one.clock.wall_s()
    jump(jump_s)
    await one.fleet.forget_old()
    (shown,) = other.listed(other.service.now_s())
    assert (shown.device, shown.since_s, shown.ended_s) == ("cam", since_s, None)
    await one.fleet.take_telemetry("cam", Telemetry("s", 2, models=counts))
    (shown,) = other.listed(other.service.now_s())
    assert (shown.since_s, shown.last_s) == (since_s, since_s + jump_s)
    await pass_time(DAY_S - 1)
    assert len(one.listed(one.service.now_s())) == 1
    jump(-jump_s)
    await pass_time(2)
    assert one.listed(one.service.now_s()) == []  # not shown, but remembered
    await pass_time(29 * DAY_S - 2)
    await one.fleet.forget_old()
    assert len(one.listed(0.0)) == 1
    await pass_time(10)
    jump(-2 * jump_s)
    await other.fleet.forget_old()
    assert one.listed(0.0) == []


async def test_replicas_enter_an_alarm_once_at_the_same_moment(replicas: tuple[Replica, Replica]) -> None:
    for number in range(5):
        await asyncio.gather(*(asyncio.to_thread(each.raised, 10, f"cam{number}") for each in replicas))
    assert sorted(replicas[0].entries()) == [f"device:cam{number}" for number in range(5)]
