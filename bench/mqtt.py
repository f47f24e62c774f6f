"""What an escalation over MQTT QoS 1 takes beside raw paho doing the same, through one Mosquitto and one responder.

    python bench/mqtt.py [--requests 200] [--repeats 21]

The request is 1 KB. Both clients take turns in the same run, one request at a time and 16 at a time, in short
turns; a ratio is the median of those of neighbouring turns. Writes bench/results/mqtt.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from figures import Figure, report
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from firstline.demo.processes import mosquitto
from firstline_core.ids import new_request_id
from firstline_core.protocol import envelope
from firstline_core.protocol.mqtt_messages import MqttSettings
from firstline_core.protocol.topics import Topics
from firstline_core.types import InferRequest, Tensor
from firstline_edge.cloud.mqtt_link import MqttLink

_RESPONDER = Path(__file__).parent / "device" / "responder.py"
_PREFIX = "bench"
_PAYLOAD = np.zeros((1, 1024), np.uint8)
_AT_ONCE = 16
_P50_AIM, _RATE_AIM = 1.3, 0.8
_TIMEOUT_S = 30.0


@contextlib.contextmanager
def broker(folder: Path, binary: Path) -> Iterator[int]:
    """Mosquitto on a free port, with the responder behind it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\nmax_inflight_messages 1000\n"
        f"max_queued_messages 10000\nlog_type error\n"
    )
    with contextlib.ExitStack() as running:
        _started(running, [str(binary), "-c", str(config)])
        _until_open(port)
        answers = _started(running, [sys.executable, str(_RESPONDER), "mqtt", str(port), _PREFIX])
        if answers.stdout is None or answers.stdout.readline() != "ready\n":
            raise RuntimeError("the responder did not start")
        yield port


def _started(running: contextlib.ExitStack, command: list[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    running.callback(process.wait)
    running.callback(process.terminate)
    return process


def _until_open(port: int) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
    raise RuntimeError("Mosquitto did not start")


class RawPaho:
    """paho with its own thread, as its documentation has it; what an answer says is not read."""

    def __init__(self, port: int) -> None:
        self._topics = Topics("raw", _PREFIX)
        self._awaited: dict[bytes, threading.Event] = {}
        self._numbers = itertools.count()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        subscribed = threading.Event()
        self._client.on_socket_open = _no_delay
        self._client.on_connect = lambda *_: self._client.subscribe(self._topics.response, qos=1)
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.on_message = self._heard
        self._client.max_inflight_messages_set(1000)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        if not subscribed.wait(_TIMEOUT_S):
            raise RuntimeError("raw paho could not subscribe")
        asked = InferRequest("s", (Tensor("x", _PAYLOAD),), new_request_id(), deadline_s=_TIMEOUT_S, binary_output=True)
        self._asked = envelope.request_publication(
            asked,
            topic=self._topics.request("s"),
            response_topic=self._topics.response,
            correlation_data=b"",
            now_s=0.0,
        )

    def _heard(self, _client: paho.Client, _userdata: object, message: paho.MQTTMessage) -> None:
        awaited = self._awaited.pop(message.properties.CorrelationData, None)  # type: ignore[union-attr]
        if awaited is not None:
            awaited.set()

    def send(self) -> threading.Event:
        """One request on its way; the event comes with its answer."""
        data, answered = next(self._numbers).to_bytes(16), threading.Event()
        self._awaited[data] = answered
        said = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        said.ResponseTopic, said.CorrelationData = self._topics.response, data
        said.UserProperty = list(self._asked.properties.items())
        self._client.publish(self._topics.request("s"), self._asked.payload, qos=1, properties=said)
        return answered

    def round_trips_ms(self, count: int) -> list[float]:
        """One after the other."""
        spent = []
        for _ in range(count):
            started_s = time.perf_counter()
            self.send().wait(_TIMEOUT_S)
            spent.append((time.perf_counter() - started_s) * 1000)
        return spent

    def rate(self, count: int) -> float:
        """A second, so many at once."""
        started_s = time.perf_counter()
        under_way = [self.send() for _ in range(_AT_ONCE)]
        for position in range(count):
            under_way[position % _AT_ONCE].wait(_TIMEOUT_S)
            under_way[position % _AT_ONCE] = self.send()
        for answered in under_way:
            answered.wait(_TIMEOUT_S)
        return (count + _AT_ONCE) / (time.perf_counter() - started_s)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def _no_delay(_client: object, _userdata: object, opened: Any) -> None:
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@contextlib.asynccontextmanager
async def agents_link(port: int) -> AsyncIterator[MqttLink]:
    """The agent's link, connected."""
    link = MqttLink(MqttSettings("127.0.0.1", port, client_id="device"), Topics("device", _PREFIX))
    await link.start()
    try:
        await link.wait_connected()
        yield link
    finally:
        await link.close()


async def _ask(link: MqttLink) -> None:
    await link.infer(InferRequest("s", (Tensor("x", _PAYLOAD),), new_request_id()), _TIMEOUT_S)


async def round_trips_ms(link: MqttLink, count: int) -> list[float]:
    """One after the other."""
    spent = []
    for _ in range(count):
        started_s = time.perf_counter()
        await _ask(link)
        spent.append((time.perf_counter() - started_s) * 1000)
    return spent


async def rate(link: MqttLink, count: int) -> float:
    """A second, so many at once."""
    left = iter(range(count))

    async def client() -> None:
        for _ in left:
            await _ask(link)

    started_s = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(_AT_ONCE)))
    return count / (time.perf_counter() - started_s)


async def measured(port: int, requests: int, repeats: int) -> list[Figure]:
    """All figures."""
    raw = RawPaho(port)
    ours_ms, raws_ms, ours_rate, raws_rate = [], [], [], []
    async with agents_link(port) as link:
        await round_trips_ms(link, 100)
        await asyncio.to_thread(raw.round_trips_ms, 100)
        for _ in range(repeats):
            ours_ms.append(float(np.median(await round_trips_ms(link, requests))))
            raws_ms.append(float(np.median(await asyncio.to_thread(raw.round_trips_ms, requests))))
            ours_rate.append(await rate(link, 2 * requests))
            raws_rate.append(await asyncio.to_thread(raw.rate, 2 * requests))
    raw.close()
    p50 = float(np.median(np.divide(ours_ms, raws_ms)))
    share = float(np.median(np.divide(ours_rate, raws_rate)))
    return [
        Figure("MQTT QoS 1, 1 KB: p50 / raw paho", round(p50, 3), "times", f"<= {_P50_AIM:g}", p50 <= _P50_AIM),
        Figure("MQTT QoS 1, 1 KB: the agent's link, p50", round(min(ours_ms), 3), "ms"),
        Figure("MQTT QoS 1, 1 KB: raw paho, p50", round(min(raws_ms), 3), "ms"),
        Figure(
            f"MQTT QoS 1, {_AT_ONCE} in flight: rate / raw paho",
            round(share, 3),
            "times",
            f">= {_RATE_AIM:g}",
            share >= _RATE_AIM,
        ),
        Figure(f"MQTT QoS 1, {_AT_ONCE} in flight: the agent's link", round(max(ours_rate)), "/s"),
        Figure(f"MQTT QoS 1, {_AT_ONCE} in flight: raw paho", round(max(raws_rate)), "/s"),
    ]


def main() -> int:
    """Measures and reports; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200, help="of a repeat, one at a time; twice as many at once")
    parser.add_argument("--repeats", type=int, default=21)
    given = parser.parse_args()
    binary = mosquitto()
    if binary is None:
        print("mosquitto is not installed; make mosquitto", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="firstline-mqtt-") as folder, broker(Path(folder), binary) as port:
        return report("mqtt", asyncio.run(measured(port, given.requests, given.repeats)))


if __name__ == "__main__":
    sys.exit(main())
