"""The contracts of what a gateway serves: counted audits, alarms, and notices to devices."""

import asyncio
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from sqlalchemy import Connection, Executable, delete, text, update
from support.audits import (
    EVENTS,
    THRESHOLD,
    certificate_of,
    certified_detector,
    certified_digits,
    note_of,
    objects,
    request_from,
    settled,
)
from support.databases import POSTGRESQL, SQLITE, OpenStore, PostgreSql, sqlite_store
from support.logs import captured_lines
from support.waiting import until

from bench.support.bundles import with_certificate
from firstline_core.clock import SimulatedClock
from firstline_core.fleet.telemetry import ModelCounts, Telemetry
from firstline_core.ids import new_request_id
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.classification import Classification
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import PROBABILITIES, ContractAlarm, ContractNotice, InferRequest, ModelKey
from firstline_core.units import DAY_S, HOUR_S
from firstline_gateway import audit_log
from firstline_gateway.contracts import monitor
from firstline_gateway.contracts.monitor import ActiveDevices, ContractMonitor
from firstline_gateway.contracts.pool import promises_of
from firstline_gateway.contracts.records import AUDITS, POOLS, Audit, Contribution, Skipped, count
from firstline_gateway.fleet import alarms
from firstline_gateway.fleet.fleet import Fleet
from firstline_gateway.models.folder import ModelsFolder
from firstline_gateway.models.repository import Repository, ServedModel
from firstline_gateway.serving.data_plane import check
from firstline_gateway.settings.settings import ContractsSection, FleetSection, StoreSection
from firstline_gateway.store.service_clock import ServiceClock

THREE = {PROBABILITIES: np.eye(10, dtype=np.float32)[[3]]}
DIGITS = ModelKey("digits", 1)
SETTINGS = ContractsSection(escalations_per_hour=600)
NOW_S = 1_800_000_000.0
EITHER = pytest.mark.parametrize("store_settings", [SQLITE, POSTGRESQL], indirect=True)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    folder = tmp_path_factory.mktemp("bundles")
    for version in (1, 2):
        certified_digits(folder, version)
    found = ModelsFolder(folder).load(RuntimeOptions())
    yield found
    for served in found:
        served.loaded.close()


class Bench:
    """A monitor on a simulated clock, and devices that ask it."""

    def __init__(self, store: StoreSection, repository: Repository, settings: ContractsSection = SETTINGS) -> None:
        self.clock = SimulatedClock()
        self.store, self.repository, self.settings = store, repository, settings
        self.open()

    def open(self) -> None:
        self.metrics = RequestMetrics("gateway")
        self.opened = OpenStore(self.store)
        self.service = ServiceClock(self.opened.database, self.clock)
        self.monitor = ContractMonitor(
            self.opened.store,
            self.repository,
            self.settings,
            metrics=self.metrics,
            clock=self.clock,
            service=self.service,
        )

    def set_wall_clock(self, wall_s: float) -> None:
        self.clock._wall_offset_s = wall_s - self.clock.monotonic_s()

    def close(self) -> None:
        self.monitor.close()
        self.opened.close()

    def restart(self) -> None:
        self.close()
        self.open()

    def execute(self, statement: Executable) -> None:
        """Changes what is stored."""
        with self.opened.database.begin() as connection:
            connection.execute(statement)

    def end_alarm(self) -> int:
        """Returns how many pools ended."""
        return self.monitor.end(DIGITS, "application:ops").result()

    def served(self, version: int = 1) -> ServedModel:
        return self.repository.models[ModelKey("digits", version)]

    def answer(self, request: InferRequest, version: int = 1) -> ContractNotice | None:
        """What the data plane does with a request; the full model always says 3."""
        served = self.served(version)
        self.monitor.answered(request, served, THREE)
        settled(self.monitor).result()
        return self.monitor.notice(request, served)

    def audit(self, device: str, label: int = 3, version: int = 1, **changes: object) -> ContractNotice | None:
        return self.answer(request_from(device, note_of(self.served(version), **changes), label), version)

    def shares(self, limit: int) -> list[Contribution]:
        """Of the one pool."""
        (pool,) = self.monitor.pools()
        return asyncio.run(self.monitor.details([pool.key], limit))[pool.key][0]

    def counted(self) -> int:
        return sum(pool.state.audits for pool in self.monitor.pools())

    def metric(self, line: str) -> float:
        for found in self.metrics.render()[0].decode().splitlines():
            if found.startswith(line + " "):
                return float(found.split()[-1])
        return 0.0

    def skipped(self, why: Skipped) -> float:
        return self.metric(f'firstline_gateway_audits_skipped_total{{why="{why}"}}')


@pytest.fixture(params=[SQLITE])
def store_settings(request: pytest.FixtureRequest, tmp_path: Path) -> StoreSection:
    """A store in SQLite; a test of what is stored, marked EITHER, runs once on each database."""
    if request.param == SQLITE:
        return sqlite_store(tmp_path)
    running: PostgreSql = request.getfixturevalue("postgresql")
    return running.new_store()


MakeBench = Callable[[ContractsSection], Bench]


@pytest.fixture
def make_bench(store_settings: StoreSection, repository: Repository) -> Iterator[MakeBench]:
    with ExitStack() as benches:

        def make(settings: ContractsSection) -> Bench:
            bench = Bench(store_settings, repository, settings)
            benches.callback(bench.close)
            return bench

        yield make


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    return make_bench(SETTINGS)


def quiet(notice: ContractNotice | None) -> bool:
    """Returns whether a device is informed that the contract holds."""
    return notice is not None and not notice.alarm and notice.escalations_per_hour is None


def test_the_gateway_finds_the_loss_itself(bench: Bench) -> None:
    bench.audit("a", label=3)
    bench.audit("b", label=4)
    (pool,) = bench.monitor.pools()
    assert (pool.state.audits, pool.disagreements, pool.risk) == (2, 1, 0.5)
    assert bench.metric('firstline_gateway_audits_total{model="digits",result="disagrees",version="1"}') == 1
    assert bench.metric('firstline_gateway_contract_risk{model="digits",version="1"}') == 0.5


@pytest.mark.parametrize("loss", [lambda *_: 1 / 0, lambda *_: np.full(1, np.nan, np.float32), lambda *_: np.zeros(0)])
def test_a_loss_that_fails_or_is_no_number_counts_as_1(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, loss: Callable[..., object]
) -> None:
    monkeypatch.setattr(Classification, "loss", loss)
    bench.audit("a", label=3)
    (pool,) = bench.monitor.pools()
    assert (pool.state.audits, pool.disagreements) == (1, 1)


def test_a_detector_that_misses_an_object_disagrees(bench: Bench) -> None:
    served = certified_detector(bench.served())
    manifest = replace(served.manifest, edge=(with_certificate(served.manifest.edge[0], served.manifest, THRESHOLD),))
    served = dataclasses.replace(served, manifest=manifest)
    for edge_outputs in (objects("person"), objects()):
        request = request_from("cam", note_of(served), edge_outputs=edge_outputs)
        check(request, served)
        bench.monitor.answered(request, served, objects("person"))
    settled(bench.monitor).result()
    (pool,) = bench.monitor.pools()
    assert (pool.state.audits, pool.disagreements) == (2, 1)


def answered(bench: Bench, served: ServedModel, edge: tuple[str, ...], full: tuple[str, ...]) -> ContractNotice:
    """An audit of a detector, which both models found these objects in."""
    request = request_from("cam", note_of(served), edge_outputs=objects(*edge))
    check(request, served)
    bench.monitor.answered(request, served, objects(*full))
    settled(bench.monitor).result()
    notice = bench.monitor.notice(request, served)
    assert notice is not None
    return notice


def test_only_audits_in_which_an_event_can_occur_test_its_promise(make_bench: MakeBench) -> None:
    bench = make_bench(ContractsSection(audits_per_device_hour=10**6))
    served = certified_detector(bench.served())
    for edge, full in ((), ()), (("person",), ("person",)), (("person",), ()), ((), ("car",)), ((), ()):
        answered(bench, served, edge, full)
    found = {pool.key.event: (pool.state.audits, pool.disagreements) for pool in bench.monitor.pools()}
    assert found == {"missed person": (1, 0), "invented person": (2, 1), "missed car": (1, 1)}
    assert {pool.key.event: pool.key.epsilon for pool in bench.monitor.pools()} == EVENTS
    assert bench.metric('firstline_gateway_audits_total{model="digits",result="no_event",version="1"}') == 2
    name = 'firstline_gateway_contract_event_audits{event="invented person",model="digits",version="1"}'
    assert bench.metric(name) == 2


@pytest.mark.parametrize("empty", [0, 99])
def test_a_detector_that_reports_nothing_alarms_however_rare_objects_are(make_bench: MakeBench, empty: int) -> None:
    bench = make_bench(ContractsSection(audits_per_device_hour=10**6))
    served, persons = certified_detector(bench.served()), 0
    with captured_lines() as lines:
        while not (notice := answered(bench, served, (), ("person",))).alarm:
            persons += 1
            assert persons < 10
            for number in range(empty):
                request = request_from(f"cam{number}", note_of(served), edge_outputs=objects())
                bench.monitor.answered(request, served, objects())
            settled(bench.monitor).result()
    assert notice.event == "missed person"
    (broken_pool,) = [pool for pool in bench.monitor.pools() if pool.alarmed_s is not None]
    finding = f"missed person: 100 % of {persons + 1} audits in which it can occur; promised 5 %"
    found = [(line["event"], line["finding"]) for line in lines if line["level"] == "error"]
    assert found == [("contract broken: missed person", finding)]
    name = 'firstline_gateway_contract_event_alarm{event="missed person",model="digits",version="1"}'
    assert bench.metric(name) == 1
    assert broken_pool.state.peak >= 3 / bench.settings.delta  # three promises share delta
    assert broken_pool.level(bench.settings.delta) == bench.settings.delta / 3  # known even without its bundle


def test_devices_that_err_together_are_found_together(bench: Bench) -> None:
    with captured_lines() as lines:
        notices = [bench.audit(f"cam{number}", label=4) for number in range(8)]
    assert notices[0] == ContractNotice(alarm=False, escalations_per_hour=None)
    assert notices[-1] == ContractNotice(alarm=True, escalations_per_hour=600 / 8, devices=8)
    (pool,) = bench.monitor.pools()
    assert pool.alarmed_s is not None
    assert pool.state.peak >= 1 / bench.settings.delta
    (line,) = [line for line in lines if line["event"] == "contract broken"]
    assert line["model"] == "digits"
    assert line["level"] == "error"
    assert bench.metric('firstline_gateway_contract_alarm{model="digits",version="1"}') == 1
    with bench.opened.database.reading() as connection:
        (entry,) = audit_log.page(connection, audit_log.EntryFilter(action="contract.alarm"), 9)
    assert (entry.actor, entry.subject) == ("rule:contract", "bundle:digits/1")
    assert msgspec.json.decode(entry.details)["finding"] == line["finding"]


def broken(bench: Bench, variant: int = 0, version: int = 1) -> None:
    for number in range(8):
        served = bench.served(version)
        bench.answer(request_from(f"broken{number}", note_of(served, variant), 4), version)


async def test_an_alarm_reaches_the_devices_of_its_variant(bench: Bench) -> None:
    bench.answer(request_from("other", note_of(bench.served(), variant=1)))
    broken(bench)
    notice = bench.answer(request_from("stranger"))
    assert notice.alarm  # it never audited, so it may run this variant
    other = bench.answer(request_from("other"))
    assert not other.alarm  # it runs the other variant, but shares the capacity
    assert other.escalations_per_hour == 600 / 10
    assert bench.answer(request_from("stranger"), version=2) == ContractNotice(False, None)
    assert bench.answer(request_from("", principal="application:shop")) is None


async def test_quota_covers_the_last_hours_devices_of_all_alarms(bench: Bench) -> None:
    broken(bench)
    assert bench.monitor.quota_per_device(DIGITS) == 600 / 8
    broken(bench, version=2)
    assert bench.monitor.quota_per_device(DIGITS) == 600 / 16
    await bench.clock.advance(3601)
    bench.answer(request_from("one"))
    assert bench.monitor.quota_per_device(DIGITS) == 600


@EITHER
async def test_all_of_it_outlives_the_process(bench: Bench) -> None:
    broken(bench)
    bench.answer(request_from("other", note_of(bench.served(), variant=1)))
    repeated = request_from("late", note_of(bench.served()))
    bench.answer(repeated)
    before = bench.monitor.pools()
    bench.close()
    await bench.clock.advance(1800)
    bench.open()
    assert bench.monitor.pools() == before
    bench.answer(repeated)
    assert bench.skipped(Skipped.REPEATED) == 1
    assert bench.answer(request_from("other")) == ContractNotice(alarm=False, escalations_per_hour=600 / 10)
    assert bench.answer(request_from("broken0")) == ContractNotice(True, escalations_per_hour=600 / 10, devices=9)


@EITHER
async def test_an_alarm_ends_with_its_pool_or_with_a_new_version(bench: Bench) -> None:
    broken(bench)
    for _ in range(100):
        await bench.clock.advance(600)
        bench.audit("quiet")
    assert bench.answer(request_from("quiet")).alarm
    assert bench.answer(request_from("quiet"), version=2) == ContractNotice(False, None)
    assert bench.end_alarm() == 1
    assert bench.answer(request_from("quiet")) == ContractNotice(False, None, devices=9)  # who audits, audits on
    assert bench.end_alarm() == 0


def test_a_damaged_pool_stops_no_gateway_and_can_be_ended(bench: Bench) -> None:
    broken(bench)
    bench.execute(update(POOLS).values(record="{"))
    bench.restart()
    assert bench.monitor.pools() == []
    assert not bench.answer(request_from("broken0")).alarm
    bench.monitor.refresh().result()
    assert bench.end_alarm() == 1


# Notices about other devices, and devices' reports about themselves.


def test_a_device_learns_how_many_devices_audit_its_promise(bench: Bench) -> None:
    def auditing(device: str) -> int:
        return bench.answer(request_from(device)).devices

    assert auditing("new") == 1
    for number in range(5):
        bench.audit(f"cam{number}")
        bench.audit("cam0")
    bench.answer(request_from("other", note_of(bench.served(), variant=1)))
    bench.audit("cam9", epsilon=0.5)  # of an unknown promise
    assert (auditing("cam0"), auditing("other"), auditing("new")) == (5, 1, 5)
    repeated = request_from("cam5", note_of(bench.served()))
    bench.answer(repeated)
    bench.answer(repeated)
    bench.restart()
    assert (auditing("cam0"), auditing("other"), auditing("new")) == (6, 1, 6)


async def test_device_with_uncounted_audits_counts_as_auditing(make_bench: MakeBench) -> None:
    bench = make_bench(ContractsSection(audit_spacing_s=60))
    notices = [bench.audit(f"cam{number}") for number in range(5)]
    assert bench.counted() == 1
    assert [notice and notice.devices for notice in notices] == [1, 2, 3, 4, 5]


async def test_a_devices_own_alarm_is_shown_and_alarms_no_other_device(bench: Bench) -> None:
    digest = certificate_of(bench.served()).edge_digest
    gauge = 'firstline_gateway_contract_device_alarms{model="digits",version="1"}'
    for _ in range(3):
        bench.answer(request_from("cam", alarm=ContractAlarm(digest, "missed person")))
        await bench.clock.advance(60)
    (shown,) = bench.monitor.device_alarms()
    assert (shown.device, shown.edge_digest, shown.event) == ("cam", digest, "missed person")
    assert shown.since_s == bench.clock.wall_s() - 180
    assert bench.metric(gauge) == 1
    assert bench.answer(request_from("yard")) == ContractNotice(alarm=False, escalations_per_hour=None)
    bench.answer(request_from("cam"))
    (ended,) = bench.monitor.device_alarms()
    assert ended.ended_s == bench.clock.wall_s()
    assert gauge not in bench.metrics.render()[0].decode()


@EITHER
async def test_device_alarm_is_logged_once_from_its_first_report(bench: Bench) -> None:
    alarm = ContractAlarm(certificate_of(bench.served()).edge_digest, "missed person")

    def entries() -> list[tuple[str, str]]:
        entry_filter = audit_log.EntryFilter(action="contract.device_alarm")
        with bench.opened.database.reading() as connection:
            return [(entry.subject, entry.details) for entry in audit_log.page(connection, entry_filter, 10)]

    sequence = itertools.count(1)

    async def count(device: str, alarm: ContractAlarm | None) -> None:
        fleet = Fleet(
            bench.opened.store, FleetSection(), clock=bench.clock, service=bench.service, on_desired=lambda: None
        )
        counts = ModelCounts("digits", 1, audited=9, disagreed=4, device_alarm=alarm)
        await fleet.take_telemetry(device, Telemetry("s", next(sequence), models=(counts,)))

    bench.answer(request_from("", alarm=alarm))  # whose alarm it is, is unknown
    await count("cam", None)
    for _ in range(3):
        await bench.clock.advance(60)
        bench.answer(request_from("cam", alarm=alarm))
    (noted,) = entries()
    assert noted == ("device:cam", '{"model":"digits","version":1,"event":"missed person"}')
    await count("cam", None)  # from before the alarm, but late
    await count("cam", alarm)
    bench.restart()
    await bench.clock.advance(DAY_S)
    bench.answer(request_from("cam", alarm=alarm))
    assert entries() == [noted]

    await count("yard", alarm)
    bench.answer(request_from("yard", alarm=alarm))
    assert entries()[1:] == [
        ("device:yard", '{"model":"digits","version":1,"event":"missed person","audits":9,"disagreements":4}')
    ]

    for again in (None, alarm, None):  # so soon, it is the same
        await bench.clock.advance(5)
        bench.answer(request_from("cam", alarm=again))
    assert len(entries()) == 2
    await bench.clock.advance(3600)
    bench.answer(request_from("cam", alarm=alarm))
    assert [subject for subject, _ in entries()] == ["device:cam", "device:yard", "device:cam"]


async def test_a_device_with_two_broken_variants_counts_once(bench: Bench) -> None:
    for number in range(2):
        bench.answer(request_from("cam", alarm=ContractAlarm(f"{number}" * 64)))
        await bench.clock.advance(5)
    assert len(bench.monitor.device_alarms()) == 2
    assert bench.metric('firstline_gateway_contract_device_alarms{model="digits",version="1"}') == 1
    bench.answer(request_from("cam"))
    assert [alarm.ended_s for alarm in bench.monitor.device_alarms()] == 2 * [bench.clock.wall_s()]


def test_a_version_is_monitored_while_it_is_served_or_audited(bench: Bench) -> None:
    versions = [ModelKey("digits", version) for version in (1, 2, 3)]
    bench.audit("cam")
    assert [bench.monitor.monitors(model) for model in versions] == [True, True, False]
    bench.close()
    bench.repository = Repository({})
    bench.open()
    assert [bench.monitor.monitors(model) for model in versions] == [True, False, False]


class Stored:
    """The alarms of the device "cam" in the store, whose requests follow each other."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    async def after(self, wait_s: float, alarm: ContractAlarm | None) -> list[tuple[str, bool]]:
        """Returns the events of its alarms, and whether they ended, after one more request."""
        await self.bench.clock.advance(wait_s)
        self.bench.answer(request_from("cam", alarm=alarm))
        return self.found()

    def found(self) -> list[tuple[str, bool]]:
        with self.bench.opened.database.reading() as connection:
            found = alarms.listed(connection, self.bench.service.now_s())
        return [(alarm.event, alarm.ended_s is not None) for alarm in found if alarm.event != "other"]

    def change(self, change: Callable[[Connection], object]) -> None:
        with self.bench.opened.database.begin() as connection:
            change(connection)

    def raise_others(self, digests: Iterable[str]) -> None:
        for digest in digests:
            self.change(partial(take, alarm=ContractAlarm(digest, "other")))


def take(connection: Connection, alarm: ContractAlarm) -> None:
    alarms.take_request(connection, "cam", ModelKey("digits", 2), alarm, now_s=0, service_s=0)


DOG, CAT = ContractAlarm("a" * 64, "missed dog"), ContractAlarm("a" * 64, "missed cat")


async def test_alternating_alarms_are_stored_from_time_to_time(bench: Bench) -> None:
    stored = Stored(bench)
    assert await stored.after(0, DOG) == [("missed dog", False)]
    for alarm in (CAT, DOG, None, CAT):
        assert await stored.after(1, alarm) == [("missed dog", False)]
    assert await stored.after(1, CAT) == [("missed cat", False)]
    assert await stored.after(4.9, None) == [("missed cat", False)]
    assert await stored.after(0.1, None) == [("missed cat", True)]


async def test_an_alarm_without_room_is_tried_from_time_to_time(bench: Bench) -> None:
    stored = Stored(bench)
    stored.raise_others(f"{number:064}" for number in range(64))
    assert await stored.after(0, DOG) == []
    stored.change(lambda connection: alarms.delete_device(connection, "cam"))
    assert await stored.after(1, DOG) == []
    assert await stored.after(4, DOG) == [("missed dog", False)]


async def test_the_end_of_a_deleted_alarm_is_tried_from_time_to_time(bench: Bench) -> None:
    stored = Stored(bench)
    await stored.after(0, DOG)
    stored.change(lambda connection: alarms.delete_device(connection, "cam"))
    assert await stored.after(5, None) == []
    stored.change(lambda connection: alarms.take_request(connection, "cam", DIGITS, DOG, now_s=0, service_s=5))
    assert await stored.after(1, None) == [("missed dog", False)]
    assert await stored.after(4, None) == [("missed dog", True)]


@EITHER
async def test_a_store_that_refuses_alarms_is_asked_from_time_to_time(bench: Bench) -> None:
    stored = Stored(bench)
    stored.change(lambda connection: connection.execute(text("ALTER TABLE device_alarms RENAME TO elsewhere")))
    with captured_lines() as lines:
        for _ in range(11):
            bench.answer(request_from("cam", alarm=DOG))
            await bench.clock.advance(1)
    assert [line["event"] for line in lines] == ["database refuses writes"]
    stored.change(lambda connection: connection.execute(text("ALTER TABLE elsewhere RENAME TO device_alarms")))
    assert await stored.after(0, DOG) == []
    assert await stored.after(4, DOG) == [("missed dog", False)]


async def test_one_write_about_an_alarm_waits_for_a_store_that_hangs(bench: Bench) -> None:
    stored, gate = Stored(bench), threading.Event()
    bench.opened.store.submit(lambda _: gate.wait(20))
    for alarm in (DOG, CAT, CAT):
        bench.monitor.answered(request_from("cam", alarm=alarm), bench.served(), THREE)
        await bench.clock.advance(10)
    gate.set()
    settled(bench.monitor).result()
    assert stored.found() == [("missed dog", False)]
    assert await stored.after(0, CAT) == [("missed cat", False)]


def test_only_a_device_can_alarm_and_only_for_itself(bench: Bench) -> None:
    digest = certificate_of(bench.served()).edge_digest
    for principal in ("application:shop", "operator:anna"):
        bench.answer(request_from("", alarm=ContractAlarm(digest, "missed person"), principal=principal))
    assert bench.monitor.device_alarms() == []
    bench.answer(
        request_from("", alarm=ContractAlarm(digest, "missed person"))
    )  # without authentication it is unknown which device stopped reporting
    bench.answer(request_from(""))
    (shown,) = bench.monitor.device_alarms()
    assert (shown.device, shown.ended_s) == ("anybody", None)


@EITHER
def test_alarms_of_many_devices_are_bounded_in_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms, "ALARMS_OF_ALL", 20)
    alarm = ContractAlarm(certificate_of(bench.served()).edge_digest, "missed person")
    for number in range(50):
        bench.answer(request_from(f"cam{number}", alarm=alarm))
        assert len(bench.monitor.device_alarms()) <= 20
    bench.monitor.refresh().result()
    assert len(bench.monitor.device_alarms()) == 20
    bench.restart()
    assert len(bench.monitor.device_alarms()) == 20


# Attacks by a device or an impostor.


def test_only_devices_audit(bench: Bench) -> None:
    note = note_of(bench.served())
    for principal in ("application:shop", "operator:anna", "application:device:cam"):
        bench.answer(request_from("", note, principal=principal))
    assert bench.counted() == 0
    bench.answer(request_from("", note))  # where authentication is off, all are one device
    assert bench.shares(5)[0].device == "anybody"


def test_a_request_counts_once(bench: Bench) -> None:
    request = request_from("cam", note_of(bench.served()), 4)
    for _ in range(20):
        bench.answer(request)
    assert bench.counted() == 1
    assert bench.skipped(Skipped.REPEATED) == 19
    bench.answer(replace(request, principal="device:yard"))  # an id is a device's own
    assert bench.counted() == 2


@pytest.mark.parametrize("wall_s", [0.0, NOW_S - DAY_S, NOW_S + DAY_S, NOW_S + 57 * 365 * DAY_S])
def test_a_request_counts_once_whatever_the_wall_clock_says(bench: Bench, wall_s: float) -> None:
    """Set to a day ahead or to 1970 and right again, with other audits and restarts in between."""
    request = request_from("cam", note_of(bench.served()), 4)
    bench.answer(request)
    for now_s in (wall_s, NOW_S + 10):
        bench.set_wall_clock(now_s)
        bench.audit("yard")
        bench.answer(request)
        bench.restart()
        bench.answer(request)
    assert bench.counted() == 3
    assert bench.skipped(Skipped.REPEATED) == 1
    assert bench.monitor.devices_last_hour(DIGITS) == 2, "who asked before the restart shares a quota"


async def test_clock_jump_adds_no_quota_and_no_closer_audits(make_bench: MakeBench) -> None:
    bench = make_bench(ContractsSection(audits_per_device_hour=5, audit_spacing_s=10))
    for number in range(9):
        bench.set_wall_clock(NOW_S + (-1) ** number * number * DAY_S)
        bench.audit("cam")
    assert bench.counted() == 1
    assert bench.skipped(Skipped.SPACING) == 8
    for number in range(9):
        bench.set_wall_clock(NOW_S + (-1) ** number * number * DAY_S)
        await bench.clock.advance(10)
        bench.audit("cam")
    assert bench.counted() == 5


async def test_a_device_has_its_share_of_an_hour(make_bench: MakeBench) -> None:
    bench = make_bench(ContractsSection(audits_per_device_hour=5))
    for _ in range(50):
        bench.audit("cam")
    bench.audit("yard")
    assert bench.counted() == 6
    assert bench.skipped(Skipped.DEVICE_LIMIT) == 45
    bench.restart()
    bench.audit("cam")
    assert bench.counted() == 6
    await bench.clock.advance(3601)
    bench.audit("cam")
    assert bench.counted() == 7


async def test_devices_with_one_scene_may_be_counted_apart(make_bench: MakeBench) -> None:
    bench = make_bench(ContractsSection(audit_spacing_s=10))
    for number in range(20):
        bench.audit(f"cam{number}", label=4)
    assert bench.counted() == 1
    assert bench.skipped(Skipped.SPACING) == 19
    for turn in range(2, 8):
        await bench.clock.advance(10)
        for number in range(20):
            bench.audit(f"cam{number}", label=4)
        assert bench.counted() <= turn
    assert bench.counted() == 7  # all twenty share the chance of one
    await bench.clock.advance(3 * 86_400)
    bench.audit("cam0", label=4)
    before = bench.counted()
    await bench.clock.advance(10)
    bench.audit("cam0", label=4)
    assert bench.counted() == before + 1  # no other device has audited the scene for two days


async def test_audits_of_several_sources_count_apart(make_bench: MakeBench) -> None:
    bench = make_bench(ContractsSection(audit_spacing_s=10, audits_per_device_hour=10**6))
    for source in ("gate", "yard", "gate", "", ""):
        bench.answer(request_from("cam", note_of(bench.served()), source=source))
    assert (bench.counted(), bench.skipped(Skipped.SPACING)) == (3, 2)
    served = bench.served()
    for number in range(256):  # more sources than a pool remembers
        request = request_from(f"cam{number // 15}", note_of(served), source=f"lane {number}")
        bench.monitor.answered(request, served, THREE)
    settled(bench.monitor).result()
    assert bench.counted() == 256
    await bench.clock.advance(10)
    bench.answer(request_from("cam", note_of(bench.served()), source="gate"))
    assert bench.counted() == 257


async def test_a_device_with_many_sources_keeps_no_other_out(make_bench: MakeBench) -> None:
    bench = make_bench(ContractsSection(audit_spacing_s=10, audits_per_device_hour=10**6))
    for device in ("cam", "porch"):
        for number in range(20):
            bench.answer(request_from(device, note_of(bench.served()), source=f"{device} {number}"))
    assert bench.counted() == 32
    bench.answer(request_from("cam", note_of(bench.served()), source="cam 0"))  # still too soon
    bench.answer(request_from("yard", note_of(bench.served()), source="gate"))
    assert bench.counted() == 33
    await bench.clock.advance(10)
    bench.answer(request_from("cam", note_of(bench.served()), source="cam 19"))
    assert bench.counted() == 34


def test_only_promises_of_the_bundle_are_tested(bench: Bench) -> None:
    with captured_lines() as lines:
        for number in range(30):
            assert quiet(bench.audit(f"cam{number}", label=4, epsilon=0.9))
    assert bench.monitor.pools() == []
    assert ["same bundle" in line["why"] for line in lines] == [True]
    assert bench.skipped(Skipped.NOT_PROMISED) == 30


def test_a_liar_shows_by_name(bench: Bench) -> None:
    for number in range(5):
        bench.audit(f"cam{number}")
        bench.audit("liar", label=0)
    worst = bench.shares(1)[0]
    assert (worst.device, worst.audits, worst.disagreements) == ("liar", 5, 5)


def test_an_answer_that_is_no_number_is_no_evidence(bench: Bench) -> None:
    request = request_from("cam", note_of(bench.served()))
    bench.monitor.answered(request, bench.served(), {PROBABILITIES: np.full((1, 10), np.nan, np.float32)})
    assert bench.monitor.pools() == []
    assert bench.skipped(Skipped.NO_ANSWER) == 1


@EITHER
def test_a_store_that_refuses_costs_evidence_and_no_answer(bench: Bench) -> None:
    bench.execute(text("ALTER TABLE contract_audits RENAME TO elsewhere"))
    with captured_lines() as lines:
        for _ in range(3):
            assert quiet(bench.audit("cam", label=4))
    assert bench.monitor.pools() == []
    assert bench.skipped(Skipped.DISK) == 3
    assert [line["event"] for line in lines].count("audit not counted") == 1
    bench.execute(text("ALTER TABLE elsewhere RENAME TO contract_audits"))
    bench.audit("cam")
    assert bench.counted() == 1


def test_a_disk_that_hangs_holds_up_no_answer(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "_WAITING", 64)
    bench = make_bench(ContractsSection(audits_per_device_hour=10_000))
    gate = threading.Event()
    bench.opened.store.submit(lambda _: gate.wait(20))
    request = request_from("cam", note_of(bench.served()))
    with captured_lines() as lines:
        for number in range(64 + 5):
            bench.monitor.answered(replace(request, request_id=f"{number}"), bench.served(), THREE)
    assert bench.skipped(Skipped.DISK) == 5
    assert ["wait for the store" in line["why"] for line in lines] == [True]
    gate.set()
    settled(bench.monitor).result()
    assert bench.counted() == 64


@EITHER
def test_replicas_share_one_test(make_bench: MakeBench) -> None:
    replicas = [make_bench(SETTINGS) for _ in range(2)]
    for number in range(4):
        for bench in replicas:
            bench.audit(f"cam{number}", label=4)
    one, other = replicas
    repeated = request_from("late", note_of(one.served()), 4)
    one.answer(repeated)
    other.answer(repeated)
    assert other.skipped(Skipped.REPEATED) == 1
    for bench in replicas:
        bench.monitor.refresh().result()
    assert one.monitor.pools() == other.monitor.pools()
    (pool,) = other.monitor.pools()
    assert pool.state.audits == 9
    for bench in replicas:  # neither saw enough by itself
        assert bench.answer(request_from("stranger")).alarm
    assert one.end_alarm() == 1
    other.monitor.refresh().result()
    assert other.monitor.pools() == []


@EITHER
def test_replicas_that_count_at_once_lose_no_audit(make_bench: MakeBench) -> None:
    replicas = [make_bench(ContractsSection(audits_per_device_hour=1000)) for _ in range(2)]
    for number in range(20):
        for bench in replicas:
            for variant in (number % 2, 1 - number % 2):  # in opposite orders, as two may lock
                note = note_of(bench.served(), variant)
                bench.monitor.answered(request_from(f"cam{number}", note), bench.served(), THREE)
    for bench in replicas:
        bench.monitor.refresh().result()
    for bench in replicas:
        bench.monitor.refresh().result()
        assert sorted(pool.state.audits for pool in bench.monitor.pools()) == [40, 40]


def test_replicas_lock_pools_in_one_order(bench: Bench) -> None:
    served, entered, gate = bench.served(), threading.Event(), threading.Event()
    bench.opened.store.submit(lambda _: (entered.set(), gate.wait(20)))
    assert entered.wait(20)
    for variant in (1, 0, 1, 0):
        request = request_from(f"cam{variant}", note_of(served, variant))
        bench.monitor.answered(request, served, THREE)
    gate.set()
    settled(bench.monitor).result()
    with bench.opened.database.reading() as connection:
        counted = connection.execute(text("SELECT device FROM contract_audits ORDER BY rowid")).scalars().all()
    assert counted in (["cam0"] * 2 + ["cam1"] * 2, ["cam1"] * 2 + ["cam0"] * 2)


@pytest.mark.parametrize("store_settings", [POSTGRESQL], indirect=True)
async def test_replicas_with_different_events_wait_in_one_order(bench: Bench) -> None:
    """Without it, each would hold a pool for which the other waits: "missed car", and "invented person"."""
    served, database = certified_detector(bench.served()), bench.opened.database
    note = note_of(served)
    promised = {key.event: key for key in promises_of(served.manifest, note)}

    def count_events(connection: Connection, device: str, *events: str) -> object:
        losses = {promised[event]: 0.0 for event in events}
        audit = Audit(device, new_request_id(), served.key, note, min(promised.values()), losses)
        return count(connection, audit, SETTINGS, service_s=0.0, now_s=NOW_S)

    def at_another_replica() -> object:
        with database.begin() as connection:
            return count_events(connection, "yard", "invented person", "missed car")

    def waits() -> bool:
        with database.reading() as connection:
            return connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one() > 0

    with database.begin() as connection:
        count_events(connection, "cam", "missed person", "missed car")
        other = asyncio.create_task(asyncio.to_thread(at_another_replica))
        await until(waits)
        count_events(connection, "cam", "invented person")
    assert isinstance(await other, list)


@pytest.mark.parametrize("store_settings", [POSTGRESQL], indirect=True)
def test_old_audits_that_another_replica_deletes_are_skipped(bench: Bench) -> None:
    bench.audit("cam")
    bench.execute(update(AUDITS).values(service_s=-2 * DAY_S))
    with bench.opened.database.begin() as connection:
        connection.execute(delete(AUDITS).where(AUDITS.c.service_s < 0))
        bench.audit("yard")
    assert bench.counted() == 2 and bench.skipped(Skipped.DISK) == 0


def test_audits_after_closing_are_not_counted(bench: Bench) -> None:
    bench.close()
    bench.monitor.answered(request_from("cam", note_of(bench.served()), 4), bench.served(), THREE)
    assert bench.counted() == 0


@pytest.mark.parametrize(("loss", "alarms"), [(0.04, False), (0.25, True)])
def test_graded_losses_are_tested_by_their_mean(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, loss: float, *, alarms: bool
) -> None:
    """Each audit has a loss; the contract bounds their mean by 5 %."""
    task = type(bench.served().manifest.task)
    monkeypatch.setattr(task, "loss", lambda *_: np.array([loss], np.float32))
    for number in range(60):
        bench.audit(f"cam{number}")
    (pool,) = bench.monitor.pools()
    assert (pool.disagreements, pool.risk) == (60, pytest.approx(loss))
    assert (pool.alarmed_s is not None) == alarms


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 7200)), max_size=20))
def test_the_devices_of_the_last_hour_are_counted(requests: list[tuple[str, int]]) -> None:
    seen, now_s = ActiveDevices(), 0
    latest: dict[str, int] = {}
    for device, wait_s in requests:
        now_s += wait_s
        seen.add(device, now_s)
        latest[device] = now_s
        assert seen.count(now_s) == sum(at_s > now_s - HOUR_S for at_s in latest.values())
    assert seen.count(now_s + HOUR_S) == 0
