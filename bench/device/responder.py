"""The least that can answer an escalation: one and the same reply to every request, over MQTT or HTTP.

    python responder.py mqtt PORT PREFIX
    python responder.py http

Both clients of a comparison talk to it, so that what it costs is the same on both sides.
"""

from __future__ import annotations

import asyncio
import sys

import httptools
import numpy as np
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from firstline_core.protocol import envelope
from firstline_core.protocol.http import headers_for
from firstline_core.protocol.oip import Encoded, encode_response
from firstline_core.types import Answer, InferRequest, InferResponse, Reason, Status, Tensor, Tier


def answer() -> Encoded:
    """One row of ten probabilities, as a gateway says them."""
    said = Answer("0" * 36, Status.FINAL, True, False, Tier.CLOUD, Reason.REQUESTED, None, "f" * 64)
    probabilities = np.full((1, 10), 0.1, np.float32)
    response = InferResponse("s", "1", (Tensor("probabilities", probabilities),), answer=said)
    return encode_response(InferRequest("s", (), "0" * 36, binary_output=True), response)


def over_mqtt(port: int, prefix: str) -> None:
    """Until it is ended."""
    reply = answer()
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)

    def connected(*_: object) -> None:
        client.subscribe(f"{prefix}/+/req/+", qos=1)

    def subscribed(*_: object) -> None:
        print("ready", flush=True)

    def asked(_client: paho.Client, _userdata: object, message: paho.MQTTMessage) -> None:
        heard, said = message.properties, Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        said.CorrelationData = heard.CorrelationData  # type: ignore[union-attr]
        said.UserProperty = [(envelope.STATUS, envelope.OK), (envelope.HEADER_LENGTH, str(reply.header_length))]
        client.publish(heard.ResponseTopic, reply.body, qos=1, properties=said)  # type: ignore[union-attr]

    client.on_connect, client.on_subscribe, client.on_message = connected, subscribed, asked
    client.max_inflight_messages_set(1000)
    if client.connect("127.0.0.1", port, clean_start=True) is not MQTTErrorCode.MQTT_ERR_SUCCESS:
        sys.exit("no broker")
    client.loop_forever()


_ALIVE = b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"live": true}'


class _Http(asyncio.Protocol):
    """One connection."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._asked = b""
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._asked = url

    def on_message_complete(self) -> None:
        alive = self._asked.endswith(b"/health/live")
        self._transport.write(_ALIVE if alive else self._reply)  # type: ignore[attr-defined]


async def over_http() -> None:
    """Until it is ended; says on which port."""
    encoded = answer()
    head = "".join(f"{name}: {value}\r\n" for name, value in headers_for(encoded).items())
    reply = f"HTTP/1.1 200 OK\r\n{head}Content-Length: {len(encoded.body)}\r\n\r\n".encode() + encoded.body
    server = await asyncio.get_running_loop().create_server(lambda: _Http(reply), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "mqtt":
        over_mqtt(int(sys.argv[2]), sys.argv[3])
    else:
        asyncio.run(over_http())
