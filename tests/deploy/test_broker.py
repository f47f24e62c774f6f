"""The broker that the other tests rely on keeps its promises."""

import socket
from collections.abc import Callable

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from support.broker import Broker

pytestmark = pytest.mark.mosquitto


def connect(broker: Broker) -> None:
    socket.create_connection((broker.host, broker.port), timeout=1).close()


def connack(broker: Broker, user: str | None = None, password: str | None = None) -> str:
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.username_pw_set(user, password)
    answers: list[str] = []
    client.on_connect = lambda _c, _u, _f, reason, _p: answers.append(reason.getName())
    client.connect(broker.host, broker.port)
    while not answers:
        client.loop(timeout=5)
    client.disconnect()
    return answers[0]


def test_broker_restarts_on_the_same_port(mosquitto: Broker) -> None:
    port = mosquitto.port
    connect(mosquitto)
    mosquitto.stop()
    with pytest.raises(OSError, match="refused"):
        connect(mosquitto)
    mosquitto.start()
    assert mosquitto.port == port
    connect(mosquitto)


def test_broker_accepts_anonymous_mqtt_5_clients(mosquitto: Broker) -> None:
    assert connack(mosquitto) == "Success"


def test_users_need_their_password(start_mosquitto: Callable[..., Broker]) -> None:
    broker = start_mosquitto(users={"a": "right"})
    assert connack(broker, "a", "right") == "Success"
    assert connack(broker, "a", "wrong") == "Not authorized"
    assert connack(broker) == "Not authorized"


def test_failed_start_states_the_reason(start_mosquitto: Callable[..., Broker], mosquitto: Broker) -> None:
    with pytest.raises(RuntimeError, match="Unknown configuration variable"):
        start_mosquitto(settings=["no_such_setting true"])
