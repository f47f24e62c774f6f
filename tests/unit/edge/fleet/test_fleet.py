"""A device of a fleet: the limit on escalations, counted starts, counts of answers, and the twin."""

import asyncio
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.boards import board
from support.edge import SURE, UNSURE, Scene, request
from support.threads import NoThreads
from support.waiting import until

from firstline_core.clock import SimulatedClock
from firstline_core.errors import (
    BudgetExceededError,
    FirstlineError,
    InferenceError,
    InvalidTensorError,
    LinkDownError,
    ModelMismatchError,
    PayloadTooLargeError,
    ProtocolError,
    RequestError,
    UnauthorizedError,
    UnknownModelError,
)
from firstline_core.fleet.telemetry import ENDED_LIMIT, GROUPS_LIMIT, DeviceHealth, EndedPromise, Telemetry
from firstline_core.fleet.twin import LIMIT_BYTES, SENTENCE_CHARACTERS, UPDATES, Brake, Desired, Reported, Update
from firstline_core.fleet.update import UpdateState
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import NOTHING_READ, Absent, Measured, Snapshot
from firstline_core.protocol.mqtt_messages import Message, Topics
from firstline_core.storage.files import with_checksum
from firstline_core.types import ContractAlarm
from firstline_edge.audits.records import VALID, CertificateState
from firstline_edge.cloud.chain import no_budget
from firstline_edge.cloud.link import LinkReport, LinkStatus
from firstline_edge.fleet.escalation_limiter import EscalationLimiter
from firstline_edge.fleet.fleet_state import note_end, note_start
from firstline_edge.fleet.member import FleetMember
from firstline_edge.fleet.report import FleetCounts, device_hardware, health_of
from firstline_edge.fleet.transports import HttpTransport, MqttTransport
from firstline_edge.settings.settings import EdgeSettings, FleetSection
from firstline_edge.state import read_stored, store

OWN = ContractAlarm("a" * 64, "missed yes")


def limiter_at(path: Path, clock: SimulatedClock, per_hour: float, until_s: float = 0.0) -> EscalationLimiter:
    limiter = EscalationLimiter(path / "brake", clock)
    limiter.brake = Brake(per_hour, "the gateway is being moved", until_s)
    return limiter


def passes(limiter: EscalationLimiter, rows: int = 1) -> bool:
    try:
        with limiter.before(no_budget)(request(*[0.5] * rows), "http"):
            return True
    except BudgetExceededError:
        return False


async def test_the_brake_refuses_until_the_hour_ends(tmp_path: Path) -> None:
    clock = SimulatedClock(wall_start_s=3600.0 * 1000 + 60)
    limiter = limiter_at(tmp_path, clock, 3)
    assert [passes(limiter, rows) for rows in (2, 2, 1, 1)] == [True, False, True, False]
    with pytest.raises(BudgetExceededError, match=r"being moved\): 3 of 3") as refused:
        limiter.before(no_budget)(request(0.5), "http").__enter__()
    assert refused.value.retry_after_s == 3540
    await clock.advance(3540)
    assert passes(limiter)


async def test_the_brake_survives_a_restart_and_ends_by_itself(tmp_path: Path) -> None:
    clock = SimulatedClock(wall_start_s=3600.0 * 1000)
    limiter = limiter_at(tmp_path, clock, 1, until_s=3600.0 * 1000 + 100)
    assert passes(limiter)
    limiter.save()
    again = limiter_at(tmp_path, clock, 1, until_s=3600.0 * 1000 + 100)
    assert not passes(again) and again.status() is not None
    await clock.advance(100)
    assert passes(again) and again.status() is None


def test_a_corrected_clock_puts_the_brake_in_force_again(tmp_path: Path) -> None:
    clock = SimulatedClock(wall_start_s=3600.0 * 1000)
    limiter = limiter_at(tmp_path, clock, 0, until_s=3600.0 * 1000 + 100)
    clock.set_wall_s(3600.0 * 2000)
    assert passes(limiter) and limiter.status() is None
    clock.set_wall_s(3600.0 * 1000)
    assert not passes(limiter) and limiter.status() is not None


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4000)), max_size=40), st.integers(0, 10))
def test_no_hour_has_more_than_the_brake_allows(requests: list[tuple[int, int]], per_hour: int) -> None:
    clock = SimulatedClock()
    limiter = EscalationLimiter(Path("/nonexistent/brake"), clock)
    limiter.brake = Brake(per_hour, "")
    used: dict[int, int] = {}
    for rows, wait_s in requests:
        hour = int(clock.wall_s() // 3600)
        if passes(limiter, rows):
            used[hour] = used.get(hour, 0) + rows
        clock._now_s += wait_s
    assert all(rows <= per_hour for rows in used.values())


def test_no_brake_adds_nothing_to_the_gate(tmp_path: Path) -> None:
    entered = nullcontext()
    limiter = EscalationLimiter(tmp_path / "brake", SimulatedClock())
    assert limiter.before(lambda _request, _link: entered)(request(0.5), "http") is entered


def test_starts_and_unclean_ends_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    first = note_start(folder)
    note_end(folder, first)
    assert [(found.starts, found.unclean) for found in (first, note_start(folder), note_start(folder))] == [
        (1, 0),
        (2, 0),
        (3, 1),
    ]
    (folder / "starts").write_bytes(b"nonsense\nx\n")
    assert note_start(folder).starts == 1


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"revision": -1}', b"\xff", with_checksum(b'{"revision": 1, "format": 2}')]
)
def test_a_stored_state_is_read_and_damage_is_detected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fleet" / "desired"
    assert read_stored(path, Desired, "desired state") is None
    desired = Desired(7, brake=Brake(1.0, "why"))
    assert store(path, desired, "desired state")
    assert read_stored(path, Desired, "desired state") == desired
    path.write_bytes(content)
    assert read_stored(path, Desired, "desired state") is None


def test_a_control_group_limits_the_memory_for_models(tmp_path: Path) -> None:
    with board("virtual-machine", tmp_path / "machine") as root:
        assert device_hardware(tmp_path, tree=Tree(root)).memory_mb == 512


VALID_CERTIFICATES = SimpleNamespace(of=lambda _: VALID, alarm_of=lambda _: None)


async def test_rows_are_counted_by_the_tier_of_the_final_answer() -> None:
    scene = Scene(certified=0.8)
    alarmed = SimpleNamespace(of=lambda _: CertificateState("broken_on_device"), alarm_of=lambda _: OWN)
    counts = FleetCounts(scene.models, alarmed, lambda size_bytes: size_bytes / 10)
    for values in ((SURE,), (UNSURE,), (UNSURE,), (SURE, UNSURE, 0.61)):
        infer_request = request(*values)
        context = scene.context(infer_request)
        counts.answered(infer_request, await scene.cascade.infer(context), 0.0015, context.rows)
    counts.refused(request(SURE, SURE), scene.held.version, InferenceError("no"), 0.3)
    (found,) = counts.counts()
    assert (found.rows, found.kept, found.escalated, found.errors) == (8, 2, 4, 2)
    assert sum(found.latency) == 5 and found.latency[1] == 4
    assert (found.alarm, found.device_alarm) == (True, OWN)
    sent = request(SURE).size_bytes
    assert (found.saved_bytes, found.saved_mj) == (2 * sent, pytest.approx(2 * sent / 10))
    assert found.objects == {"yes": 6}  # what the edge model says, also where the full model answers
    await scene.close()


async def test_audits_are_counted_by_the_events_that_can_occur() -> None:
    scene = Scene(certified=0.8)
    counts = FleetCounts(scene.models, VALID_CERTIFICATES, lambda _: 0.0)
    for outcome, loss, events in (
        ("agreed", 0.0, {"missed yes": 0.0, "invented yes": 0.0}),
        ("disagreed", 0.25, {"missed no": 1.0, "invented yes": 1.0}),
        ("agreed", 0.0, {}),
        ("lost", 0.0, {}),
    ):
        finding = SimpleNamespace(model="m", version=scene.held.version, outcome=outcome, loss=loss, events=events)
        counts.audited(finding)
    (found,) = counts.counts()
    assert (found.audited, found.audited_empty, found.telling_audits, found.disagreed) == (3, 1, 2, 1)
    assert found.losses == 0.25
    assert found.event_audits == {"missed yes": 1, "invented yes": 2, "missed no": 1}
    assert found.event_losses == {"missed no": 1, "invented yes": 1}
    await scene.close()


async def test_counts_of_many_versions_fit_in_a_report() -> None:
    """An agent may run through many updates of a detector with many classes."""
    scene = Scene(certified=0.8)
    counts = FleetCounts(scene.models, VALID_CERTIFICATES, lambda _: 0.0)
    events = {f"{kind} {'class' * 4} {number}": 1.0 for kind in ("missed", "invented") for number in range(80)}
    loaded = int(scene.held.version)
    for version in (loaded, *range(100, 130)):
        finding = {"model": "m", "version": str(version), "outcome": "disagreed", "loss": 1.0, "events": events}
        counts.audited(SimpleNamespace(**finding))
    found = counts.counts()
    report = Telemetry("s" * 64, 1, models=found, ended=(EndedPromise("i" * 64, "m" * 64, "v" * 64),) * ENDED_LIMIT)
    assert len(msgspec.json.encode(report)) < LIMIT_BYTES
    assert [each.version for each in found[:3]] == [loaded, 129, 128]
    counts.audited(SimpleNamespace(model="m", version="100", outcome="agreed", loss=0.0, events={}))
    assert counts.counts()[1].audited == 1  # from zero, because the gateway has not seen it in the latest report
    await scene.close()


async def test_long_names_of_events_are_cut() -> None:
    scene = Scene(certified=0.8)
    counts = FleetCounts(scene.models, VALID_CERTIFICATES, lambda _: 0.0)
    events = {f"missed {'x' * 300}": 1.0, **{f"missed {number}": 1.0 for number in range(300)}}
    counts.audited(SimpleNamespace(model="gone", version="1", outcome="disagreed", loss=1.0, events=events))
    (found,) = counts.counts()
    assert len(found.event_audits) == 2 * GROUPS_LIMIT and next(iter(found.event_losses)).startswith("missed xx")
    assert found.audited == 1
    await scene.close()


async def test_client_errors_count_against_no_model() -> None:
    scene = Scene(certified=0.8)
    counts = FleetCounts(scene.models, VALID_CERTIFICATES, lambda _: 0.0)
    errors: tuple[FirstlineError, ...] = (InvalidTensorError("no"), PayloadTooLargeError("no"), RequestError("no"))
    for callers in errors:
        counts.refused(request(SURE), scene.held.version, callers, 0.3)
    assert counts.answered_of(scene.held) == (0, 0)
    errors = (ModelMismatchError("no"), UnknownModelError("no"), LinkDownError("no"))
    for other in errors:
        counts.refused(request(SURE), scene.held.version, other, 0.3)
    assert counts.answered_of(scene.held) == (3, 3)
    await scene.close()


@pytest.mark.parametrize("state", LinkStatus)
def test_the_condition_of_a_device_is_reported(tmp_path: Path, state: LinkStatus) -> None:
    chain = SimpleNamespace(reports=lambda: {"http": LinkReport(state, "url"), "mqtt": LinkReport(LinkStatus.UP, "b")})
    credentials = SimpleNamespace(identity=SimpleNamespace(not_after_s=2e9))
    snapshot = Snapshot(
        temperature_c={"cpu": Measured(71.0, "t"), "nvme": Absent("none")}, throttling={"heat": Measured(1.0, "t")}
    )
    outbox = SimpleNamespace(oldest_s=90.0)
    health = health_of(outbox, chain, credentials, snapshot, tmp_path)
    assert health.links_down == (state in ("down", "probing", "refused"))
    assert (health.outbox_oldest_s, health.hottest_c, health.throttled) == (90.0, 71.0, True)
    assert health.certificate_ends_s == 2e9 and health.disk_free_share is not None and 0 < health.disk_free_share < 1


def test_unknown_conditions_are_absent(tmp_path: Path) -> None:
    outbox, chain = SimpleNamespace(oldest_s=0.0), SimpleNamespace(reports=dict)
    assert health_of(outbox, chain, None, NOTHING_READ, tmp_path / "away") == DeviceHealth()


class FakeTransport:
    """A gateway that hears, unless it is `away` or loses counts, and says what the test puts."""

    session = "s"

    def __init__(self) -> None:
        self.documents: asyncio.Queue[Desired] = asyncio.Queue()
        self.reports: list[Reported] = []
        self.counts: list[Telemetry] = []
        self.away = self.loses_counts = False
        self.connections = 1

    async def desired(self, revision: int) -> Desired:
        return await self.documents.get()

    async def report(self, reported: Reported) -> None:
        self._check()
        self.reports.append(reported)

    async def send_telemetry(self, telemetry: Telemetry) -> None:
        self._check(lost=self.loses_counts)
        self.counts.append(telemetry)

    def _check(self, *, lost: bool = False) -> None:
        if self.away or lost:
            raise LinkDownError("No gateway answers.")


class FakeWork:
    """Updates, profiles and audits of a device, which notes what the fleet desires of them."""

    def __init__(self) -> None:
        self.received: list[tuple[object, ...]] = []

    def receive(self, *desired: object) -> None:
        self.received.append(desired)

    audit_for_rollouts = receive

    def updates(self) -> tuple[()]:
        return ()

    progress = updates

    async def run(self) -> None:
        await asyncio.Event().wait()


def member_of(
    folder: Path,
    clock: SimulatedClock,
    transport: FakeTransport,
    updater: FakeWork,
    reported: Callable[..., Reported],
) -> FleetMember:
    state = SimpleNamespace(
        own=EdgeSettings(fleet=FleetSection(telemetry_s=60)),
        folder=folder,
        limiter=EscalationLimiter(folder / "brake", clock),
        changes=asyncio.Event(),
        reporting=asyncio.Event(),
    )
    report = SimpleNamespace(reported=reported, telemetry=lambda: Telemetry("-", 0))
    parts: list[Any] = [state, updater, FakeWork(), FakeWork()]
    return FleetMember(*parts, report=report, transport=transport, clock=clock, rng=random.Random(1))


async def test_a_twin_applies_the_desired_state_and_reports_changes(tmp_path: Path) -> None:
    clock, transport, updater = SimulatedClock(), FakeTransport(), FakeWork()
    applied = updater.received
    so = Reported("-", 0, agent_version="1")

    def twin() -> FleetMember:
        return member_of(tmp_path, clock, transport, updater, lambda *_: so)

    device_twin = twin()
    transport.away = True
    running = asyncio.create_task(device_twin.run())
    await until(lambda: device_twin.problem)
    assert transport.reports == []
    transport.away = False
    await clock.advance(440)
    assert [(report.session, report.revision) for report in transport.reports] == [("s", 0)]
    await clock.advance(160)
    assert len(transport.counts) >= 2 and device_twin.problem == ""
    transport.documents.put_nowait(Desired(4, brake=Brake(0.0, "")))
    await until(lambda: applied)
    so = replace(so, braked=True)
    await asyncio.sleep(0)
    await clock.advance(10)
    assert transport.reports[-1].revision == 4 and transport.reports[-1].braked
    sequences = [report.sequence for report in transport.reports]
    assert sequences == sorted(set(sequences))
    reports = len(transport.reports)
    transport.connections += 1  # to a broker that may have lost all
    await clock.advance(10)
    assert len(transport.reports) == reports + 1 and transport.reports[-1].revision == 4
    reports, transport.loses_counts = len(transport.reports), True
    await clock.advance(60)
    assert device_twin.problem == "No gateway answers."
    transport.loses_counts = False
    await clock.advance(60)
    assert device_twin.problem == "" and len(transport.reports) == reports  # the counts that arrived ended it
    await clock.advance(900)
    assert len(transport.reports) in (reports + 1, reports + 2)  # repeated, because a broker may have dropped it
    assert replace(transport.reports[-1], sequence=0) == replace(transport.reports[reports - 1], sequence=0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert twin().desired == Desired(4, brake=Brake(0.0, "")) and len(applied) == 2  # at once, from the disk


async def test_a_report_of_many_failures_is_shortened(tmp_path: Path) -> None:
    clock, transport = SimulatedClock(), FakeTransport()
    failed = Update("m", 1, UpdateState.FAILED, message="\0" * SENTENCE_CHARACTERS)
    long = Reported("-", 0, updates=(failed,) * UPDATES)
    assert len(msgspec.json.encode(long)) > LIMIT_BYTES
    running = asyncio.create_task(member_of(tmp_path, clock, transport, FakeWork(), lambda *_: long).run())
    await until(lambda: transport.reports)
    assert len(msgspec.json.encode(transport.reports[0])) <= LIMIT_BYTES
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_clock_that_was_ahead_blocks_only_one_hour(tmp_path: Path) -> None:
    clock = SimulatedClock(wall_start_s=3600.0 * 9_000_000)
    limiter = limiter_at(tmp_path, clock, 1)
    assert passes(limiter)
    clock.set_wall_s(3600.0 * 1000)
    assert not passes(limiter)
    await clock.advance(3600)
    assert passes(limiter)


async def test_an_outdated_retained_state_is_ignored() -> None:
    callbacks: list[Callable[[Message], None]] = []

    class Link:
        topics = Topics("cam")

        async def listen(self, _topic: str, on_message: Callable[[Message], None]) -> None:
            callbacks.append(on_message)

    transport = MqttTransport(Link())
    desired = asyncio.create_task(transport.desired(9))
    await asyncio.sleep(0)  # it listens now
    for revision in (5, 10):
        callbacks[0](Message("", msgspec.json.encode(Desired(revision))))
        for _ in range(10):
            await asyncio.sleep(0)
        assert desired.done() == (revision == 10)
    assert (await desired).revision == 10


async def test_a_refused_subscription_is_made_again() -> None:
    clock, refusals = SimulatedClock(), [UnauthorizedError("The broker's rules do not allow it yet.")]

    async def listen(_topic: str, on_message: Callable[[Message], None]) -> None:
        if refusals:
            raise refusals.pop()
        on_message(Message("", msgspec.json.encode(Desired(1))))

    transport = MqttTransport(SimpleNamespace(topics=Topics("cam"), clock=clock, listen=listen))
    desired = asyncio.create_task(transport.desired(0))
    await asyncio.sleep(0)  # it is refused now
    assert not refusals
    await clock.advance(300.0)
    assert desired.done() and desired.result().revision == 1


async def test_an_outdated_state_is_ignored_while_the_broker_is_away_too() -> None:
    """A gateway that does not know or accept the device under the name of its HTTP key answers with revision 0."""
    revisions = [0, 5, 10]

    class Link:
        topics, connected = Topics("cam"), False

        async def listen(self, _topic: str, _on_message: Callable[[Message], None]) -> None:
            pass

    class Http:
        async def exchange(self, *_: object, **__: object) -> tuple[int, dict[str, str], bytes]:
            return 200, {}, msgspec.json.encode(Desired(revisions.pop(0)))

    clock, link = SimulatedClock(), Link()
    polling = HttpTransport(Http(), 60.0, clock, random.Random(1), link)
    desired = asyncio.create_task(MqttTransport(link, polling).desired(9))
    while not desired.done():
        await asyncio.sleep(0)
        await clock.advance(10.0)
    assert (await desired).revision == 10 and not revisions


@pytest.mark.parametrize(("status", "arrives"), [(204, True), (200, False)])
async def test_a_report_to_a_login_page_has_not_arrived(status: int, arrives: bool) -> None:
    class Http:
        async def exchange(self, *_: object, **__: object) -> tuple[int, dict[str, str], bytes]:
            return status, {}, b"<html>login</html>"

    transport = HttpTransport(Http(), 60.0, SimulatedClock(), random.Random(1))  # type: ignore[arg-type]
    for send in (transport.report(Reported("s", 1)), transport.send_telemetry(Telemetry("s", 1))):
        with nullcontext() if arrives else pytest.raises(ProtocolError, match="login"):
            await send


async def test_a_device_with_a_broker_polls_only_while_it_is_away() -> None:
    clock, link, polls = SimulatedClock(), SimpleNamespace(connected=True), list[str]()

    class Http:
        async def exchange(self, _method: str, path: str, **_: object) -> tuple[int, dict[str, str], bytes]:
            polls.append(path)
            if len(polls) <= 3:
                raise LinkDownError("away")
            return 200, {}, msgspec.json.encode(Desired(3))

    transport = HttpTransport(Http(), 60.0, clock, random.Random(1), link)
    desired = asyncio.create_task(transport.desired(0))
    await asyncio.sleep(0)  # it sleeps now
    await clock.advance(600)
    assert polls == []
    link.connected = False
    while len(polls) < 3:
        await clock.advance(20)
    link.connected = True
    for _ in range(100):
        await clock.advance(20)
    assert len(polls) == 3
    link.connected = False
    for _ in range(8):
        await clock.advance(20)
    assert desired.done() and desired.result().revision == 3  # failures of an earlier outage delay nothing


async def test_a_login_page_is_polled_with_backoff(caplog: pytest.LogCaptureFixture) -> None:
    clock, polled_s = SimulatedClock(), list[float]()

    class Http:
        async def exchange(self, *_: object, **__: object) -> tuple[int, dict[str, str], bytes]:
            polled_s.append(clock.monotonic_s())
            return 200, {}, b"<html>login</html>"

    transport = HttpTransport(Http(), 60.0, clock, random.Random(1))  # type: ignore[arg-type]
    desired = asyncio.create_task(transport.desired(0))
    for _ in range(10 * 60):
        await asyncio.sleep(0)
        await clock.advance(60)
    assert len(polled_s) < 100  # within ten hours
    assert caplog.text.count("desired state not fetched") == 1
    desired.cancel()


async def test_a_member_survives_a_lack_of_threads(tmp_path: Path) -> None:
    clock, transport, updater = SimulatedClock(), FakeTransport(), FakeWork()
    member = member_of(tmp_path, clock, transport, updater, lambda *_: Reported("-", 0))
    asyncio.get_running_loop().set_default_executor(NoThreads())
    running = asyncio.create_task(member.run())
    transport.documents.put_nowait(Desired(4, brake=Brake(0.0, "")))
    await until(lambda: updater.received or running.done())
    assert not running.done() and member.desired == Desired(4, brake=Brake(0.0, ""))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
