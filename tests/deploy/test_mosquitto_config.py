"""The broker configuration and access list that a gateway writes, proven on a real Mosquitto with real TLS."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import find_mosquitto
from support.mosquitto import PREFIX, GeneratedBroker, Issuer, Peer

from firstline_gateway.broker import config
from firstline_gateway.settings.settings import BrokerSection, Settings

pytestmark = pytest.mark.mosquitto

SHIPPED = Path(__file__).parents[2] / "cloud_gateway" / "mosquitto"

Connect = Callable[..., Peer]


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    found = Issuer(tmp_path_factory.mktemp("issuer"))
    for name in ("a", "b"):
        found.device(name)
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[GeneratedBroker]:
    with GeneratedBroker(tmp_path_factory.mktemp("broker"), issuer) as found:
        yield found


@pytest.fixture
def connect(broker: GeneratedBroker) -> Iterator[Connect]:
    """A device by its name, or a gateway."""
    peers: list[Peer] = []

    def open_peer(name: str, **options: Any) -> Peer:
        is_gateway = name == "gateway"
        certificate = broker.issuer.folder / f"{name}.pem"
        peers.append(broker.gateway(**options) if is_gateway else broker.device(certificate, **options))
        return peers[-1]

    yield open_peer
    for peer in peers:
        peer.close()


def test_shipped_files_equal_generated_ones() -> None:
    settings = Settings(broker=BrokerSection(directory="/mosquitto/config"))
    assert (SHIPPED / "mosquitto.conf").read_text() == config.configuration(settings)
    assert (SHIPPED / "acl").read_text() == config.access_list(PREFIX)


def test_private_files_are_private(broker: GeneratedBroker) -> None:
    for name in (config.KEY, config.PASSWORDS, broker.files.password_file.name):
        assert (broker.files.path / name).stat().st_mode & 0o077 == 0


def test_a_device_cannot_pass_for_the_gateway(connect: Connect) -> None:
    pretender, gateway = connect("b", user=("_gateway", "whatever")), connect("gateway")
    assert pretender.publish(f"{PREFIX}/a/res") == "Not authorized"
    pretender.subscribe(f"{PREFIX}/+/req/+")
    assert connect("a").publish(f"{PREFIX}/a/req/digits", b"secret") == "Success"
    gateway.publish(f"{PREFIX}/b/res", b"last")
    pretender.subscribe(f"{PREFIX}/b/res")
    assert gateway.publish(f"{PREFIX}/b/res", b"last") == "Success"
    pretender.wait_for(f"{PREFIX}/b/res")
    assert [topic for topic, _ in pretender.received] == [f"{PREFIX}/b/res"]


def test_gateway_listener_needs_the_password(broker: GeneratedBroker, issuer: Issuer) -> None:
    device = issuer.folder / "a.pem"
    assert not broker.stranger_at_gateways(None).is_in
    assert not broker.stranger_at_gateways(device, client_id="b").is_in
    assert not broker.stranger_at_gateways(device, user=("_gateway", "guessed")).is_in


def test_client_ids_do_not_collide_between_devices(connect: Connect) -> None:
    a = connect("a", client_id="anything")
    b = connect("b", client_id="a")
    assert b.is_in
    assert a.publish(f"{PREFIX}/a/state") == "Success"  # still there
    assert not a.gone


def test_replicas_share_the_broker_user(connect: Connect) -> None:
    one, other = connect("gateway", client_id="one"), connect("gateway", client_id="other")
    assert one.publish(f"{PREFIX}/a/res") == other.publish(f"{PREFIX}/a/res") == "Success"


def test_will_is_limited_to_the_devices_topics(connect: Connect) -> None:
    gateway = connect("gateway")
    gateway.subscribe(f"{PREFIX}/+/state")
    connect("a", will=f"{PREFIX}/b/state").vanish()
    connect("b", will=f"{PREFIX}/b/state").vanish()
    gateway.wait_for(f"{PREFIX}/b/state")
    assert [topic for topic, _ in gateway.received] == [f"{PREFIX}/b/state"]  # b's own; a's forgery never came


def test_oversized_message_ends_only_its_connection(tmp_path: Path, issuer: Issuer) -> None:
    with GeneratedBroker(tmp_path, issuer, body_bytes=1000, connections=2) as small:
        a, b = (small.device(issuer.folder / f"{name}.pem") for name in "ab")
        assert a.publish(f"{PREFIX}/a/telemetry", bytes(1000)) == "Success"
        a.client.publish(f"{PREFIX}/a/telemetry", bytes(200_000), qos=1)
        a.wait(lambda: a.gone)
        assert b.publish(f"{PREFIX}/b/telemetry") == "Success"
        b.close()


def test_device_limit_does_not_block_the_gateway(tmp_path: Path, issuer: Issuer) -> None:
    with GeneratedBroker(tmp_path, issuer, connections=1) as small:
        first = small.device(issuer.folder / "a.pem")
        assert first.is_in
        assert not small.device(issuer.folder / "b.pem").is_in
        assert small.gateway().is_in
        first.close()


def test_retained_messages_of_a_device_take_limited_memory(tmp_path: Path, issuer: Issuer) -> None:
    with GeneratedBroker(tmp_path, issuer, memory_bytes=16 << 20) as small:
        gateway, flooding = small.gateway(), small.device(issuer.folder / "a.pem")
        gateway.subscribe(f"{PREFIX}/+/telemetry")
        for number in range(32):
            flooding.client.publish(f"{PREFIX}/a/req/{number}", bytes(1 << 20), qos=1, retain=True)
        flooding.wait(lambda: flooding.gone)
        other = small.device(issuer.folder / "b.pem")
        assert other.publish(f"{PREFIX}/b/telemetry", b"well") == "Success"
        assert gateway.wait_for(f"{PREFIX}/b/telemetry") == b"well"
        assert not gateway.gone
        for peer in (gateway, other, flooding):
            peer.close()


def test_retained_facts_outlive_a_restart(tmp_path: Path, issuer: Issuer) -> None:
    with GeneratedBroker(tmp_path, issuer) as restarted:
        device = restarted.device(issuer.folder / "a.pem")
        device.publish(f"{PREFIX}/a/state", b"online", retain=True)
        device.close()
        restarted.broker.stop()
        restarted.broker.start()
        gateway = restarted.gateway()
        gateway.subscribe(f"{PREFIX}/+/state")
        assert gateway.wait_for(f"{PREFIX}/a/state") == b"online"
        gateway.close()


def test_containerised_broker_waits_for_files_and_reloads(tmp_path: Path, issuer: Issuer) -> None:
    written = GeneratedBroker(tmp_path / "written", issuer)
    files = written.files.path
    conf = files / config.CONFIGURATION
    text = conf.read_text() + ("user root\n" if os.geteuid() == 0 else "")
    conf.unlink()
    process = subprocess.Popen(
        ["sh", SHIPPED / "run.sh", files],
        env={**os.environ, "MOSQUITTO": str(find_mosquitto())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    try:
        assert process.poll() is None
        conf.write_text(text)
        a = _eventually(lambda: written.device(issuer.folder / "a.pem"), lambda peer: peer.is_in)
        Path(written.settings.pid_file).unlink()  # without a signal: the script has to notice
        written.revoke("a")
        _eventually(lambda: a.publish(f"{PREFIX}/a/state"), lambda reason: reason == "Not authorized")
        process.terminate()
        assert process.wait(5) == 0
    finally:
        process.kill()
        process.wait()


def _eventually(make: Callable[[], Any], good: Callable[[Any], bool]) -> Any:
    deadline_s = time.monotonic() + 10
    while not good(found := make()):
        assert time.monotonic() < deadline_s, found
        time.sleep(0.05)
    return found
