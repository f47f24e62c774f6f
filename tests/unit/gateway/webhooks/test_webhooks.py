"""Webhooks: signed messages of the audit log, in order and at least once, to a real receiver on loopback."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.broker import free_port
from support.identities import server_tls
from support.logs import captured_lines
from support.streams import serving_streams
from support.waiting import until
from support.webhook_receiver import Receiver, receiver, secret_file

from firstline_core.clock import SimulatedClock
from firstline_core.errors import ConfigError, NotFoundError
from firstline_core.fleet.rest import WebhookState
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_gateway import audit_log
from firstline_gateway.settings.settings import WebhookSection
from firstline_gateway.store.database import Database
from firstline_gateway.store.service_clock import ServiceClock, advance
from firstline_gateway.store.store import Store
from firstline_gateway.webhooks import records
from firstline_gateway.webhooks.webhooks import GIVE_UP_S, Webhooks, check

ON_SQLITE = pytest.mark.parametrize("store_settings", ["sqlite"], indirect=True)


class SharedClock(SimulatedClock):
    """The clock of all replicas, which moves only while each of them waits for its next round."""

    replicas = 0

    async def advance(self, seconds: float) -> None:
        await until(lambda: self.sleepers == self.replicas)
        await super().advance(seconds)


class Site:
    """One process of a gateway with one webhook, on a store that other processes use too."""

    def __init__(self, database: Database, settings: WebhookSection, clock: SharedClock) -> None:
        self.database, self.clock = database, clock
        self.store = Store(database)
        self.metrics = RequestMetrics("gateway")
        self.service = ServiceClock(database, clock)
        self.webhooks = Webhooks({"ops": settings}, self.store, metrics=self.metrics, clock=clock, service=self.service)

    def note(self, *actions: str) -> None:
        with self.database.begin() as connection:
            for action in actions:
                audit_log.add(connection, self.clock.wall_s(), "rule:order", action, "rollout:r1", sentence="why")

    def count(self, result: str) -> float:
        labels = {"webhook": "ops", "result": result}
        return self.metrics.registry.get_sample_value("firstline_gateway_webhook_attempts_total", labels) or 0.0

    @property
    def up(self) -> float | None:
        return self.metrics.registry.get_sample_value("firstline_gateway_webhook_up", {"webhook": "ops"})

    async def problem(self) -> str:
        (state,) = await self.webhooks.states()
        return state.problem

    async def pass_by(self, seconds: float = 1.0) -> None:
        await self.clock.advance(seconds)


@asynccontextmanager
async def site(database: Database, settings: WebhookSection, clock: SharedClock) -> AsyncIterator[Site]:
    site = Site(database, settings, clock)
    await site.webhooks.start()
    clock.replicas += 1
    try:
        yield site
    finally:
        clock.replicas -= 1
        await site.webhooks.close()
        site.store.close()
        with database.begin() as connection:
            advance(connection, site.service.now_s())


async def eventually(site: Site, count: int, arrived: list[object], step_s: float = 1.0) -> None:
    """Lets time pass until `count` messages have arrived."""
    async with asyncio.timeout(20):
        while len(arrived) < count:
            await site.pass_by(step_s)


@pytest.fixture
def found() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@pytest.fixture
def settings(found: Receiver, tmp_path: Path) -> WebhookSection:
    return WebhookSection(url=found.url, secret_file=secret_file(tmp_path))


@pytest.fixture
async def replica(database: Database, settings: WebhookSection) -> AsyncIterator[Site]:
    async with site(database, settings, SharedClock()) as replica:
        yield replica


async def test_messages_are_signed_and_name_the_event(
    database: Database, settings: WebhookSection, found: Receiver
) -> None:
    settings = replace(settings, events=("alarms", "rollouts"))
    async with site(database, settings, SharedClock()) as replica:
        replica.note("rollout.create", "device.enrol", "profile.put", "contract.alarm")
        await eventually(replica, 2, found.ids)
        assert found.types == ["rollout.create", "contract.alarm"]
        assert found.messages[0] == {
            "type": "rollout.create",
            "timestamp": "2027-01-15T08:00:00Z",
            "data": {"number": 1, "actor": "rule:order", "subject": "rollout:r1", "details": {"sentence": "why"}},
        }
        assert len(set(found.ids)) == 2
        assert await replica.problem() == ""
        await until(lambda: replica.count("delivered") == 2)  # counted after the receiver's answer
        assert replica.count("failed") == 0


async def test_a_new_webhook_receives_nothing_old(
    database: Database, settings: WebhookSection, found: Receiver
) -> None:
    with database.begin() as connection:
        audit_log.add(connection, 1.0, "a", "rollout.old", "s")
    async with site(database, settings, SharedClock()) as replica:
        replica.note("rollout.new")
        await eventually(replica, 1, found.ids)
        assert found.types == ["rollout.new"]


async def test_a_receiver_that_was_down_gets_everything_in_order(database: Database, tmp_path: Path) -> None:
    port = free_port()
    settings = WebhookSection(url=f"http://127.0.0.1:{port}/", secret_file=secret_file(tmp_path))
    actions = [f"rollout.{number}" for number in range(5)]
    clock = SharedClock()
    with captured_lines() as lines:
        async with site(database, settings, clock) as replica:
            replica.note(*actions[:3])

            async with asyncio.timeout(20):
                while replica.count("failed") < 2:
                    await replica.pass_by()
            assert "cannot be reached" in await replica.problem()
            assert replica.up == 0
        # Another process continues, after the receiver has come back.
        with receiver(port) as found:
            async with site(database, settings, clock) as replica:
                replica.note(*actions[3:])
                await eventually(replica, 5, found.ids)
                assert found.types == actions
                await until(lambda: _is_up(replica))
                await replica.pass_by()
                await until(lambda: replica.up == 1)
    text = "\n".join(map(str, lines))
    assert text.count("webhook failed") == 1
    assert text.count("webhook delivers again") == 1


async def _is_up(replica: Site) -> bool:
    return not await replica.problem()


@ON_SQLITE
@pytest.mark.parametrize("status", [302, 404, 500])
async def test_other_answers_are_failures_and_never_followed(replica: Site, found: Receiver, status: int) -> None:
    found.status = status
    replica.note("rollout.create")
    await eventually(replica, 3, found.refused)
    assert len(set(found.refused)) == 1
    assert await replica.problem() == f"it answered with status {status}"
    found.status = 200
    await eventually(replica, 1, found.ids)
    assert found.ids == found.refused[:1]


@ON_SQLITE
async def test_delays_grow_and_a_message_is_skipped_after_a_day(replica: Site, found: Receiver) -> None:
    found.status = 400
    replica.note("rollout.poison", "rollout.next")
    async with asyncio.timeout(20):
        while not replica.count("skipped"):
            await replica.pass_by(600.0)
    assert replica.clock.monotonic_s() >= GIVE_UP_S
    assert len(set(found.refused)) == 1
    assert 10 < len(found.refused) < 60
    found.status = 200
    await eventually(replica, 1, found.ids, 600.0)
    assert found.types == ["rollout.next"]


async def test_replicas_share_the_work(database: Database, settings: WebhookSection, found: Receiver) -> None:
    clock = SharedClock()
    async with site(database, settings, clock) as one, site(database, settings, clock) as two:
        actions = [f"rollout.{number}" for number in range(30)]
        one.note(*actions)
        await eventually(one, 30, found.ids)
        assert found.types == actions
        await until(lambda: one.count("delivered") + two.count("delivered") == 30)


async def test_another_replica_takes_over_after_a_crash(replica: Site, found: Receiver) -> None:
    with replica.database.begin() as connection:
        assert records.claim(connection, "ops", "crashed", replica.service.now_s(), 30.0) is not None
    replica.note("rollout.create")
    await eventually(replica, 1, found.ids)
    assert found.types == ["rollout.create"]
    assert replica.service.now_s() >= 30
    with replica.database.begin() as connection:  # the crashed one was only slow
        assert not records.release(connection, "ops", "crashed", records.Position(0))


@ON_SQLITE
async def test_a_test_message_is_signed_and_changes_no_state(replica: Site, found: Receiver) -> None:
    tested = await replica.webhooks.test("ops")
    assert (tested.name, tested.status, tested.problem, tested.remedy) == ("ops", 200, "", "")
    assert found.ids == [tested.message_id]
    (message,) = found.messages
    assert (message["type"], message["data"]["webhook"]) == ("webhook.test", "ops")
    assert await replica.webhooks.states() == [WebhookState("ops", "", delivered=False)]
    assert replica.count("delivered") == 0
    with pytest.raises(NotFoundError, match=r"has no webhook 'shop' in its settings; it has: ops"):
        await replica.webhooks.test("shop")


@ON_SQLITE
@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (302, "Name the final address in webhooks.ops.url; the gateway follows no redirect."),
        (401, "Compare its signing key with webhooks.ops.secret_file here"),
        (404, "Check the path of the address in webhooks.ops.url."),
        (500, "Look into the receiver's log."),
    ],
)
async def test_a_failed_test_says_what_to_do(replica: Site, found: Receiver, status: int, remedy: str) -> None:
    found.status = status
    tested = await replica.webhooks.test("ops")
    assert (tested.status, tested.problem) == (status, f"it answered with status {status}")
    assert tested.remedy.startswith(remedy)
    assert await replica.problem() == ""


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads the beginning of a request, and resets the connection."""
    await reader.read(1)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@ON_SQLITE
async def test_unanswered_test_has_advice(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()

    async def tested(url: str) -> tuple[str, str]:
        settings = WebhookSection(url=url, secret_file=secret_file(tmp_path))
        async with site(database, settings, SharedClock()) as replica:
            found = await replica.webhooks.test("ops")
            assert found.status is None and "t0ken" not in f"{found.problem} {found.remedy}"
            return found.problem, found.remedy

    problem, remedy = await tested(f"http://127.0.0.1:{port}/?token=t0ken")
    assert problem == "it cannot be reached: it accepts no connection"
    assert "reaches the address in webhooks.ops.url" in remedy
    async with serving_streams(_reset) as resetting:
        problem, _ = await tested(f"http://127.0.0.1:{resetting}/")
    assert problem.startswith("it cannot be reached: it closed the connection without an answer")
    tls, authority = server_tls(tmp_path)
    with receiver(tls=tls) as found:
        problem, remedy = await tested(found.url)
        assert problem.startswith("it cannot be reached: its certificate is not trusted") and "SSL_CERT_FILE" in remedy
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))  # the remedy
        async with site(
            database, WebhookSection(url=found.url, secret_file=secret_file(tmp_path)), SharedClock()
        ) as replica:
            assert (await replica.webhooks.test("ops")).status == 200
    monkeypatch.setattr("firstline_gateway.webhooks.receiver._TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        problem, _ = await tested(f"http://127.0.0.1:{silent.getsockname()[1]}/")
    assert problem == "it did not answer within 0.2 s"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "SSL_CERT_FILE",
            "/nothing.pem",
            r"^SSL_CERT_FILE: /nothing.pem does not exist; name a file with certificates in PEM\.$",
        ),
        ("https_proxy", "http://", r"^https_proxy is not a URL"),
    ],
)
def test_a_variable_that_no_attempt_could_use_is_refused(
    variable: str, value: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    settings = WebhookSection(url="https://hooks.example.com/", secret_file=secret_file(tmp_path))
    with pytest.raises(ConfigError, match=message):
        check({"ops": settings})


@ON_SQLITE
async def test_a_lost_file_of_authorities_stops_no_webhook(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, authority = server_tls(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    with receiver(tls=tls) as found:
        async with site(
            database, WebhookSection(url=found.url, secret_file=secret_file(tmp_path)), SharedClock()
        ) as replica:
            authority.unlink()
            replica.note("rollout.create")
            await eventually(replica, 1, found.ids)
