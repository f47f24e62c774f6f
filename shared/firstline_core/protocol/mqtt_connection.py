"""One MQTT 5 connection, from CONNECT to its loss. The only file that imports paho; nothing of it leaves here.

paho is driven by the event loop, not by a thread of its own: see `mqtt_socket.py`. Each connection is a fresh paho
client, so nothing of a lost one is sent again behind the caller's back: a publication that was not acknowledged fails,
and whoever sent it decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt import MQTTException
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from firstline_core.errors import ConfigError, LinkDownError, PayloadTooLargeError, ProtocolError, QueueFullError
from firstline_core.protocol.mqtt_faults import refusal
from firstline_core.protocol.mqtt_messages import Message, MqttSettings, Publication
from firstline_core.protocol.mqtt_packet import (
    PROPERTIES_LIMIT_BYTES,
    PublishProperties,
    packed,
    publish_parts,
    unpacked,
)
from firstline_core.protocol.mqtt_socket import WatchedSocket
from firstline_core.protocol.mqtt_tls import disagreement, tls_context
from firstline_core.telemetry.logs import logger

_MISC_INTERVAL_S = 1.0  # how often paho looks at its keepalive
_NO_SUBSCRIBER = 0x10
_PACKET_OVERHEAD_BYTES = 16  # fixed header, topic length, packet id, properties length
# Packet ids have 16 bits; far fewer in flight keeps a broker's own limit ("receive maximum", 65535) out of sight.
_IN_FLIGHT = 1024
# MQTT 5, section 2.1.4: no packet is larger than its length field can say.
_LARGEST_PACKET_BYTES = 268_435_455
_NOT_MQTT = (ValueError, LookupError, struct.error, MQTTException)
_PUBLISH = 0x30

log = logger(__name__)


class _Client(paho.Client):
    """paho, kept from what it would take minutes over; see `mqtt_packet.py`."""

    payload = b""
    received = PublishProperties()
    """Of the message that is being handed over; paho's own has neither."""

    def _packet_handle(self) -> MQTTErrorCode:
        command, packet = self._in_packet["command"], self._in_packet["packet"]
        if command & 0xF0 != _PUBLISH:
            return super()._packet_handle()
        qos = (command >> 1) & 3
        parts = publish_parts(qos, packet)
        if parts.properties_bytes > PROPERTIES_LIMIT_BYTES:
            log.warning("mqtt message dropped", why="its properties are too long", size_bytes=parts.properties_bytes)
            return self.ack(parts.packet_id, qos)  # or else the broker would send it again
        properties_at = parts.payload_at - parts.properties_bytes
        self.received = unpacked(bytes(packet[properties_at : parts.payload_at]))
        self.payload = bytes(packet[parts.payload_at :])
        del packet[parts.properties_length_at :]
        packet.append(0)
        return super()._packet_handle()


class _Packed:
    """A publication's properties, as paho asks for them."""

    def __init__(self, publication: Publication) -> None:
        self._bytes = packed(
            PublishProperties(
                tuple(publication.properties.items()),
                publication.response_topic,
                publication.correlation_data,
                publication.expiry_s,
            )
        )

    def pack(self) -> bytes:
        return self._bytes


class Connection:
    """One connection.

    Args:
        settings: where to, and how.
        will: published by the broker when the connection is lost without a goodbye.
        clean_start: forget what the broker kept for this client id.
        session_expiry_s: how long the broker keeps subscriptions and messages after a loss.
        on_message: called on the event loop for each message; acknowledging is left to `Message.ack`.
    """

    def __init__(
        self,
        settings: MqttSettings,
        *,
        will: Publication | None,
        clean_start: bool,
        session_expiry_s: int,
        on_message: Callable[[Message], None],
    ) -> None:
        self._settings = settings
        self._will = will
        self._session_expiry_s = session_expiry_s
        self._clean_start = clean_start
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._maximum_packet_bytes: int | None = None
        self._socket = WatchedSocket(
            settings.keepalive_s,
            _NOT_MQTT,
            lambda error: self._lose(f"the broker sent what is not MQTT 5: {error!r}"),
        )
        self._closed = False
        self._misc: asyncio.Task[None] | None = None
        self.lost: asyncio.Future[str] = self._loop.create_future()

    @property
    def alive(self) -> bool:
        return self._ready.done() and not self.lost.done() and not self._closed

    async def open(self) -> None:
        """Connects and waits for the broker's greeting.

        Raises:
            LinkDownError: unreachable, or the broker did not greet us in time.
            UnauthorizedError: it refused our name or password.
            ConfigError: a certificate file that cannot be used, or settings that MQTT has no place for.
        """
        where = self._settings.address
        try:
            self._paho = self._make_client()
            properties = self._connect_properties()
            # Name look-up, TCP and TLS block: off the event loop with them.
            await asyncio.to_thread(
                self._paho.connect,
                self._settings.host,
                self._settings.port,
                self._settings.keepalive_s,
                clean_start=self._clean_start,
                properties=properties,
            )
        except ssl.SSLError as error:
            raise LinkDownError(disagreement(where, error)) from error
        except OSError as error:
            raise LinkDownError(f"The MQTT broker at {where} cannot be reached: {error}.") from error
        except (ValueError, MQTTException) as error:
            raise ConfigError(f"The settings of the MQTT connection to {where} make no sense: {error}.") from error
        self._misc = asyncio.create_task(self._look_after_keepalive())
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                await self._ready
        except TimeoutError:
            raise LinkDownError(f"{where} accepts connections, but does not greet us as an MQTT broker does.") from None

    async def publish(self, publication: Publication) -> bool:
        """Returns when the broker has acknowledged (QoS 1), or the bytes are written (QoS 0).

        Returns:
            False if the broker says that nobody subscribes to the topic; brokers need not say so.

        Raises:
            LinkDownError: the connection was lost before the acknowledgement.
            PayloadTooLargeError: larger than the broker takes.
            UnauthorizedError, CapacityError, ProtocolError: the broker refused it.
        """
        if not self.alive:
            raise self._not_connected()
        try:
            properties = _Packed(publication)
            self._check_size(publication, len(properties.pack()))
            info = self._paho.publish(
                publication.topic,
                publication.payload,
                publication.qos,
                publication.retain,
                properties,  # type: ignore[arg-type]  # paho packs them, and nothing else
            )
        except (ValueError, struct.error) as error:
            raise ProtocolError(f"'{publication.topic}' cannot be published: {error}.") from error
        if info.rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
            raise QueueFullError(f"{_IN_FLIGHT} publications wait for the MQTT broker at {self._settings.address}.")
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise self._not_connected()
        code: ReasonCode = await self._answer(info.mid)
        if code.is_failure:
            raise refusal(code.value, str(code), f"the publication on '{publication.topic}'")
        return code.value != _NO_SUBSCRIBER

    async def subscribe(self, topic_filter: str) -> None:
        """Subscribes at QoS 1; returns at the broker's consent.

        Raises:
            LinkDownError: the connection was lost first.
            UnauthorizedError, CapacityError, ProtocolError: the broker refused it.
        """
        if not self.alive:
            raise self._not_connected()
        # A shared subscription must not ask for noLocal (section 3.8.3.1), so none does.
        try:
            _, mid = self._paho.subscribe(topic_filter, options=SubscribeOptions(qos=1))
        except ValueError as error:
            raise ProtocolError(f"'{topic_filter}' is no topic filter: {error}.") from error
        if mid is None:
            raise self._not_connected()
        codes: list[ReasonCode] = await self._answer(mid)
        if codes[0].is_failure:
            raise refusal(codes[0].value, str(codes[0]), f"the subscription to '{topic_filter}'")

    async def unsubscribe(self, topic_filter: str) -> None:
        """Ends a subscription; returns when the broker has confirmed, after which it sends no message for it.

        Raises:
            LinkDownError: the connection was lost first.
        """
        if not self.alive:
            raise self._not_connected()
        _, mid = self._paho.unsubscribe(topic_filter)
        if mid is None:
            raise self._not_connected()
        await self._answer(mid)

    async def close(self) -> None:
        """Says goodbye (so that no will is published) and ends the connection."""
        if self.alive:
            self._paho.disconnect()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await asyncio.shield(self.lost)
        self._closed = True
        self._lose("closed by us")
        if self._misc is not None:
            self._misc.cancel()
        self._socket.close()

    def _connect_properties(self) -> Properties:
        properties = _empty_properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = self._session_expiry_s
        properties.ReceiveMaximum = self._settings.receive_maximum
        properties.MaximumPacketSize = min(self._settings.maximum_packet_bytes, _LARGEST_PACKET_BYTES)
        return properties

    def _make_client(self) -> _Client:
        settings, will = self._settings, self._will
        client = _Client(
            CallbackAPIVersion.VERSION2,
            client_id=settings.client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.connect_timeout = settings.connect_timeout_s
        client.max_inflight_messages_set(_IN_FLIGHT)
        client.max_queued_messages_set(_IN_FLIGHT)
        if settings.username:
            client.username_pw_set(settings.username, settings.password)
        if (tls := tls_context(settings)) is not None:
            client.tls_set_context(tls)
        if will is not None:
            properties = _will_properties(will)
            client.will_set(will.topic, will.payload, will.qos, will.retain, properties)
        client.on_socket_open = self._socket.opened
        client.on_socket_close = self._socket.closing
        client.on_socket_register_write = self._socket.wants_write
        client.on_socket_unregister_write = self._socket.wants_no_write
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = lambda _c, _u, mid, code, _p: self._settle(mid, code)
        client.on_subscribe = lambda _c, _u, mid, codes, _p: self._settle(mid, codes)
        client.on_unsubscribe = lambda _c, _u, mid, codes, _p: self._settle(mid, codes)
        client.on_message = self._on_paho_message
        return client

    # What paho tells.

    def _on_connect(
        self, _client: paho.Client, _userdata: object, _flags: object, code: ReasonCode, properties: Properties | None
    ) -> None:
        if self._ready.done():
            return
        if code.is_failure:
            self._ready.set_exception(refusal(code.value, str(code), "the connection"))
            return
        self._maximum_packet_bytes = getattr(properties, "MaximumPacketSize", None)
        self._ready.set_result(None)

    def _on_disconnect(
        self, _client: paho.Client, _userdata: object, _flags: object, code: ReasonCode, _properties: object
    ) -> None:
        self._lose(str(code))

    def _on_paho_message(self, client: paho.Client, _userdata: object, received: paho.MQTTMessage) -> None:
        properties = self._paho.received
        mid, qos, acknowledged = received.mid, received.qos, False

        def ack() -> None:
            nonlocal acknowledged
            if not acknowledged and not self.lost.done():
                acknowledged = True
                client.ack(mid, qos)

        try:
            topic = received.topic
        except UnicodeDecodeError:
            ack()  # nobody can have subscribed to it
            return
        self._on_message(
            Message(
                topic=topic,
                payload=self._paho.payload,
                properties=dict(properties.user),
                response_topic=properties.response_topic,
                correlation_data=properties.correlation_data,
                expiry_s=properties.expiry_s,
                retain=received.retain,
                qos=qos,
                ack=ack,
            )
        )

    # Waiting for the broker's answers.

    async def _answer(self, mid: int) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()
        # paho writes on the loop's next turn, so no answer can have come before this line.
        self._waiting[mid] = answer
        try:
            return await answer
        finally:
            self._waiting.pop(mid, None)

    def _settle(self, mid: int, result: object) -> None:
        answer = self._waiting.pop(mid, None)
        if answer is not None and not answer.done():
            answer.set_result(result)

    def _lose(self, why: str) -> None:
        if self.lost.done():
            return
        self.lost.set_result(why)
        for waiting in (*self._waiting.values(), self._ready):
            if not waiting.done():
                waiting.set_exception(
                    LinkDownError(f"The connection to the MQTT broker at {self._settings.address} was lost ({why}).")
                )
        self._waiting.clear()
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()  # seen, even if nobody awaits it any more

    async def _look_after_keepalive(self) -> None:
        while not self.lost.done():
            if self._paho.loop_misc() != MQTTErrorCode.MQTT_ERR_SUCCESS:
                self._lose("no sign of life within the keepalive time")
            await asyncio.sleep(_MISC_INTERVAL_S)

    def _not_connected(self) -> LinkDownError:
        return LinkDownError(f"Not connected to the MQTT broker at {self._settings.address}.")

    def _check_size(self, publication: Publication, properties_bytes: int) -> None:
        # Encoded in any case: paho, which keeps what it was given, must not be the one to find what cannot be.
        size_bytes = len(publication.payload) + len(publication.topic.encode()) + properties_bytes
        if self._maximum_packet_bytes is None:
            return
        size_bytes += _PACKET_OVERHEAD_BYTES
        if size_bytes > self._maximum_packet_bytes:
            raise PayloadTooLargeError(
                f"The publication on '{publication.topic}' has {size_bytes} bytes; the MQTT broker at "
                f"{self._settings.address} takes at most {self._maximum_packet_bytes}."
            )


def _empty_properties(packet_type: int) -> Properties:
    return Properties(packet_type)  # type: ignore[no-untyped-call]


def _will_properties(will: Publication) -> Properties:
    properties = _empty_properties(PacketTypes.WILLMESSAGE)
    if will.properties:
        properties.UserProperty = list(will.properties.items())
    if will.response_topic:
        properties.ResponseTopic = will.response_topic
    if will.correlation_data:
        properties.CorrelationData = will.correlation_data
    if will.expiry_s is not None:
        properties.MessageExpiryInterval = will.expiry_s
    return properties
