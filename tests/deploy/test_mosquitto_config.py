"""The shipped broker configuration and ACL, proven on a real Mosquitto."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from support.broker import Broker, free_port, write_password_file

pytestmark = pytest.mark.mosquitto

SHIPPED = Path(__file__).parents[2] / "cloud_gateway" / "mosquitto"
USERS = {"gateway": "g-secret", "a": "a-secret", "b": "b-secret"}
PREFIX = "firstline/v1"


class Peer:
    """One logged-in MQTT 5 client that keeps what it receives."""

    def __init__(self, port: int, user: str | None, password: str | None) -> None:
        self.received: list[tuple[str, bytes]] = []
        self.connected_as = ""
        self._changed = threading.Condition()
        self._acknowledged: dict[int, str] = {}
        self.client = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        self.client.username_pw_set(user, password)
        self.client.on_connect = self._on_connect
        self.client.on_message = self._on_message
        self.client.on_publish = self._on_acknowledged
        self.client.on_subscribe = lambda c, u, mid, reasons, p: self._on_acknowledged(c, u, mid, reasons[0], p)
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        self._wait(lambda: self.connected_as)

    def publish(self, topic: str, payload: bytes = b"x") -> str:
        """Publish at QoS 1; the broker's reason, "Success" where it was let through."""
        mid = self.client.publish(topic, payload, qos=1).mid
        self._wait(lambda: mid in self._acknowledged)
        reason = self._acknowledged[mid]
        return "Success" if reason == "No matching subscribers" else reason

    def subscribe(self, topic: str) -> None:
        _, mid = self.client.subscribe(topic, qos=1)
        self._wait(lambda: mid in self._acknowledged)

    def wait_for(self, topic: str) -> bytes:
        self._wait(lambda: any(t == topic for t, _ in self.received))
        return next(payload for t, payload in self.received if t == topic)

    def _wait(self, condition: Callable[[], Any]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout=5), "the broker did not answer in 5 s"

    def _on_connect(self, _c: Any, _u: Any, _flags: Any, reason: Any, _p: Any) -> None:
        with self._changed:
            self.connected_as = reason.getName()
            self._changed.notify_all()

    def _on_message(self, _c: Any, _u: Any, message: paho.MQTTMessage) -> None:
        with self._changed:
            self.received.append((message.topic, message.payload))
            self._changed.notify_all()

    def _on_acknowledged(self, _c: Any, _u: Any, mid: int, reason: Any, _p: Any) -> None:
        with self._changed:
            self._acknowledged[mid] = reason.getName()
            self._changed.notify_all()


Connect = Callable[..., Peer]


@contextmanager
def shipped_broker(folder: Path) -> Iterator[Broker]:
    """A broker on the shipped files, with only its port and its paths moved."""
    data = folder / "data"
    data.mkdir()
    passwords = write_password_file(folder / "passwords", USERS)
    acl = folder / "acl"
    acl.write_bytes((SHIPPED / "acl").read_bytes())
    acl.chmod(0o600)
    port = free_port()
    text = (SHIPPED / "mosquitto.conf").read_text()
    for shipped, here in {
        "listener 1883": f"listener {port} 127.0.0.1",
        "/run/secrets/mosquitto_passwords": str(passwords),
        "/mosquitto/config/acl": str(acl),
        "/mosquitto/data/": f"{data}/",
    }.items():
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, here)
    config = folder / "mosquitto.conf"
    config.write_text(text + "user root\n")  # only so that it can read this test's folder; ignored for others
    with Broker(folder, config=config, port=port) as broker:
        yield broker


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with shipped_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def connect(shipped: Broker) -> Iterator[Connect]:
    peers: list[Peer] = []

    def open_peer(user: str | None, password: str | None = None) -> Peer:
        peers.append(Peer(shipped.port, user, password or USERS.get(user or "")))
        return peers[-1]

    yield open_peer
    for peer in peers:
        peer.client.disconnect()
        peer.client.loop_stop()


def test_nagle_is_off() -> None:
    assert re.search(r"^set_tcp_nodelay true$", (SHIPPED / "mosquitto.conf").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("user", "password"), [(None, None), ("a", "b-secret"), ("c", "a-secret")])
def test_strangers_are_refused(connect: Connect, user: str | None, password: str | None) -> None:
    assert connect(user, password).connected_as == "Not authorized"


@pytest.mark.parametrize("leaf", ["birth", "state", "req/digits", "results", "reported", "telemetry"])
def test_a_device_publishes_its_own_facts_and_no_other_device_s(connect: Connect, leaf: str) -> None:
    device = connect("a")
    assert device.publish(f"{PREFIX}/a/{leaf}") == "Success"
    assert device.publish(f"{PREFIX}/b/{leaf}") == "Not authorized"


@pytest.mark.parametrize("leaf", ["res", "desired"])
def test_only_the_gateway_writes_what_a_device_obeys(connect: Connect, leaf: str) -> None:
    device, other, gateway = connect("a"), connect("b"), connect("gateway")
    device.subscribe(f"{PREFIX}/a/{leaf}")
    other.subscribe(f"{PREFIX}/+/{leaf}")
    assert device.publish(f"{PREFIX}/a/{leaf}", b"forged") == "Not authorized"
    assert gateway.publish(f"{PREFIX}/a/{leaf}", b"for a") == "Success"
    assert gateway.publish(f"{PREFIX}/b/{leaf}", b"for b") == "Success"
    assert device.wait_for(f"{PREFIX}/a/{leaf}") == b"for a"
    other.wait_for(f"{PREFIX}/b/{leaf}")  # sent after a's, so a's would have come by now
    assert other.received == [(f"{PREFIX}/b/{leaf}", b"for b")]


def test_the_gateway_reads_requests_through_its_shared_subscription_and_devices_do_not(connect: Connect) -> None:
    gateway, device, spy = connect("gateway"), connect("a"), connect("b")
    gateway.subscribe(f"$share/gateway/{PREFIX}/+/req/+")
    spy.subscribe(f"{PREFIX}/#")
    assert device.publish(f"{PREFIX}/a/req/digits", b"request") == "Success"
    assert gateway.wait_for(f"{PREFIX}/a/req/digits") == b"request"
    assert gateway.publish(f"{PREFIX}/b/res", b"last") == "Success"
    spy.wait_for(f"{PREFIX}/b/res")
    assert spy.received == [(f"{PREFIX}/b/res", b"last")]


def test_the_gateway_may_not_pretend_to_be_a_device(connect: Connect) -> None:
    assert connect("gateway").publish(f"{PREFIX}/a/req/digits") == "Not authorized"


def test_retained_facts_outlive_a_restart(tmp_path: Path) -> None:
    with shipped_broker(tmp_path) as broker:
        device = Peer(broker.port, "a", USERS["a"])
        device.client.publish(f"{PREFIX}/a/state", b"online", qos=1, retain=True).wait_for_publish(5)
        device.client.disconnect()
        device.client.loop_stop()
        broker.stop()
        broker.start()
        gateway = Peer(broker.port, "gateway", USERS["gateway"])
        gateway.subscribe(f"{PREFIX}/+/state")
        assert gateway.wait_for(f"{PREFIX}/a/state") == b"online"
        gateway.client.disconnect()
        gateway.client.loop_stop()
