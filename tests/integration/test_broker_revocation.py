"""A revoked device and the real Mosquitto: what a live session can still do, and how soon it is ended."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.broker import HOST
from support.mosquitto import PREFIX, GeneratedBroker, Issuer, Peer, Revocations

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.protocol.mqtt_messages import MqttSettings
from firstline_gateway.broker import updater
from firstline_gateway.broker.updater import BrokerUpdater, end_sessions
from firstline_gateway.identity.authorities import Authorities
from firstline_gateway.identity.credentials import RevokedCertificate
from firstline_gateway.settings.settings import BROKER_AUTHORITIES_FILE, BROKER_USER

pytestmark = pytest.mark.mosquitto

# What docs/how-to/enrol-devices.md promises once the gateway knows of a revocation.
ENDED_WITHIN_S = 5.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[GeneratedBroker]:
    issuer = Issuer(tmp_path / "issuer")
    for name in ("a", "b"):
        issuer.device(name)
    with GeneratedBroker(tmp_path, issuer) as found:
        yield found


def device(broker: GeneratedBroker, name: str, **options: str) -> Peer:
    return broker.device(broker.issuer.folder / f"{name}.pem", **options)


def gateways(broker: GeneratedBroker) -> MqttSettings:
    return MqttSettings(
        HOST,
        broker.settings.gateway_port,
        client_id="gateway",
        username=BROKER_USER,
        password=broker.files.password_file.read_text().strip(),
        tls_ca_file=broker.files.path / BROKER_AUTHORITIES_FILE,
    )


class Revoker:
    """An updater, and the revocations that it applies."""

    def __init__(self, broker: GeneratedBroker) -> None:
        self.revocations = Revocations()
        self.updater = BrokerUpdater(
            broker.files,
            SimpleNamespace(open=lambda: Authorities(broker.issuer.authority)),
            self.revocations,
            partial(gateways, broker),
            refresh_s=0.1,
            clock=SYSTEM_CLOCK,
        )

    def revoke(self, serial: str) -> None:
        """Revokes a certificate of the device "a"."""
        self.revocations.certificates.append(RevokedCertificate(serial, time.time(), "a"))
        self.revocations.version += 1


@pytest.fixture
async def revoker(broker: GeneratedBroker) -> AsyncIterator[Revoker]:
    found = Revoker(broker)
    await found.updater.task.start()
    yield found
    await found.updater.task.close()


async def test_revoked_session_is_silenced_and_then_ended(broker: GeneratedBroker, revoker: Revoker) -> None:
    revoked, other, gateway = device(broker, "a", will=f"{PREFIX}/a/state"), device(broker, "b"), broker.gateway()
    gateway.subscribe(f"{PREFIX}/+/state")
    revoked.subscribe(f"{PREFIX}/a/res")
    assert await asyncio.to_thread(revoked.publish, f"{PREFIX}/a/state", b"before") == "Success"
    gateway.wait_for(f"{PREFIX}/a/state")

    revoker.revocations.revoked_devices.add("a")
    started_s = time.monotonic()
    revoker.revoke(broker.issuer.serials["a"])
    await asyncio.to_thread(revoked.wait, lambda: revoked.gone)
    assert time.monotonic() - started_s < ENDED_WITHIN_S

    assert not (await asyncio.to_thread(device, broker, "a")).is_in
    assert await asyncio.to_thread(other.publish, f"{PREFIX}/b/state", b"well") == "Success"
    await asyncio.to_thread(gateway.wait, lambda: (f"{PREFIX}/b/state", b"well") in gateway.received)
    # Its will was refused with the rest: nothing of it came after the revocation.
    assert [payload for topic, payload in gateway.received if topic == f"{PREFIX}/a/state"] == [b"before"]
    other.close()
    gateway.close()


def test_revoked_session_can_do_nothing_until_it_is_ended(broker: GeneratedBroker) -> None:
    revoked, gateway = device(broker, "a"), broker.gateway()
    gateway.subscribe(f"{PREFIX}/+/req/+")
    revoked.subscribe(f"{PREFIX}/a/res")
    assert broker.revoke("a") == {"a"}
    accepted, deadline_s = 0, time.monotonic() + 5
    while revoked.publish(f"{PREFIX}/a/req/m") != "Not authorized":
        accepted += 1
        assert time.monotonic() < deadline_s
    gateway.wait(lambda: len(gateway.received) == accepted)
    assert revoked.publish(f"{PREFIX}/a/state") == "Not authorized"
    assert revoked.subscribe(f"{PREFIX}/a/desired") == "Granted QoS 1"  # Mosquitto grants what it then does not send
    gateway.publish(f"{PREFIX}/a/res", b"for a")
    gateway.publish(f"{PREFIX}/a/desired", b"for a")
    assert revoked.publish(f"{PREFIX}/a/state") == "Not authorized"  # and by now both would have come
    assert revoked.received == []
    assert len(gateway.received) == accepted
    assert not revoked.gone
    revoked.close()
    gateway.close()


async def test_a_stolen_certificate_is_refused_after_reenrolment(broker: GeneratedBroker, revoker: Revoker) -> None:
    thief = device(broker, "a")
    stolen = broker.issuer.serials["a"]
    fresh = broker.issuer.device("a")
    revoker.revoke(stolen)
    await asyncio.to_thread(thief.wait, lambda: thief.gone)
    owner = await asyncio.to_thread(broker.device, fresh)
    assert owner.is_in
    assert await asyncio.to_thread(owner.publish, f"{PREFIX}/a/state") == "Success"
    owner.close()


async def test_session_revoked_before_the_start_is_ended(broker: GeneratedBroker) -> None:
    """A gateway brings the files up to date before it runs; a stolen certificate may be connected by then."""
    revoker, thief = Revoker(broker), device(broker, "a")
    revoker.revocations.certificates.append(RevokedCertificate(broker.issuer.serials["a"], time.time(), "a"))
    assert await asyncio.to_thread(revoker.updater.refresh) == {"a"}
    await revoker.updater.task.start()
    await asyncio.to_thread(thief.wait, lambda: thief.gone)
    await revoker.updater.task.close()


async def test_ending_is_retried(broker: GeneratedBroker, revoker: Revoker, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = asyncio.Event()

    async def fails_first(settings: MqttSettings, devices: Sequence[str]) -> list[str]:
        if failed.is_set():
            return await end_sessions(settings, devices)
        failed.set()
        return list(devices)

    monkeypatch.setattr(updater, "end_sessions", fails_first)
    monkeypatch.setattr(updater, "_RETRY_S", 0.1)
    thief = device(broker, "a")
    revoker.revoke(broker.issuer.serials["a"])
    await asyncio.to_thread(thief.wait, lambda: thief.gone)
    assert failed.is_set()


async def test_revocation_during_an_outage_holds_afterwards(broker: GeneratedBroker, revoker: Revoker) -> None:
    broker.broker.stop()
    revoker.revocations.certificates.append(RevokedCertificate(broker.issuer.serials["a"], time.time(), "a"))
    revoker.revocations.revoked_devices.add("a")
    assert await asyncio.to_thread(revoker.updater.refresh) == {"a"}
    assert await end_sessions(gateways(broker), ["a"]) == ["a"]
    broker.broker.start()
    assert not (await asyncio.to_thread(device, broker, "a")).is_in
    other = await asyncio.to_thread(device, broker, "b")
    assert other.is_in
    other.close()


def test_only_changed_files_are_written(broker: GeneratedBroker) -> None:
    def written() -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in broker.files.path.iterdir() if path.is_file()}

    before = written()
    assert broker.refresh() == set()
    assert written() == before
    assert broker.revoke("b", name=False) == {"b"}
    assert {name for name, inode in written().items() if before[name] != inode} == {"crl.pem"}
