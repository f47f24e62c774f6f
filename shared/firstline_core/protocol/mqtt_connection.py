"""One MQTT 5 connection on paho, from CONNECT to its loss. The only module that imports paho.

A thread connects the socket. Then the event loop drives it (`add_reader`, `add_writer`), so that paho needs no thread
and no lock. Each connection is a fresh paho client, so nothing of a lost connection is sent again behind the caller's
back: a publication that was not acknowledged fails, and the sender decides what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt import MQTTException
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from firstline_core.errors import ConfigError, LinkDownError, PayloadTooLargeError, ProtocolError, QueueFullError
from firstline_core.protocol import happy_eyeballs
from firstline_core.protocol.mqtt_messages import (
    Message,
    MqttSettings,
    Publication,
    connection_lost,
    handshake_problem,
    not_connected,
    refusal,
    tls_context,
)
from firstline_core.telemetry.logs import logger

PROPERTIES_LIMIT_BYTES = 8192
"""Of one message received; Firstline's own messages take some 300."""

_LENGTH_BYTES = 4  # of a variable byte integer at most (section 1.5.5)
# Packet ids have 16 bits; far fewer in flight stay below a broker's own limit ("receive maximum", 65535).
_IN_FLIGHT = 1024
# MQTT 5, section 2.1.4: no packet is larger than its length field can say.
_LARGEST_PACKET_BYTES = 268_435_455
_PACKET_OVERHEAD_BYTES = 16  # fixed header, topic length, packet id, properties length
_KEEPALIVE_INTERVAL_S = 1.0  # between two checks of the keepalive
_NO_SUBSCRIBER = 0x10
_UNSPECIFIED_ERROR = 0x80  # this and every higher reason code is a refusal (section 2.4)
_BYTE_ORDER_MARK = "\ufeff".encode()
_MALFORMED = (ValueError, LookupError, struct.error, MQTTException)

log = logger(__name__)


class PublishParts(NamedTuple):
    """The parts of a PUBLISH packet.

    Attributes:
        packet_id: 0 at QoS 0.
        properties: with their length in front.
    """

    topic: bytes
    packet_id: int
    properties: bytes
    payload: bytes


class _Reason(NamedTuple):
    """A reason code of the broker with its name (MQTT 5, section 2.4)."""

    code: int
    name: str


class _Client(paho.Client):
    """paho, with a bounded decoder of PUBLISH packets, and with every reason code of an acknowledgement.

    paho copies the rest of the packet for each property: 80,000 short properties in half a megabyte block the process
    for 20 seconds. So the length of the properties is checked first, and paho decodes their bytes alone.
    paho ends the connection on a reason code that the standard does not list for a PUBACK, but Mosquitto sends one
    (149, packet too large). So paho reads "unspecified error" instead, and `refusal_code` has the broker's code.
    `_handle_publish`, `_handle_pubackcomp`, `_in_packet` and `_create_socket` are private to paho: hence the upper
    bound on its version.

    Attributes:
        refusal_code: of the PUBACK that is being handled.
        connected: its socket.
    """

    refusal_code = _UNSPECIFIED_ERROR
    connected: socket.socket

    def _create_socket(self) -> socket.socket:
        return self.connected

    def _handle_pubackcomp(self, cmd: Literal["PUBACK", "PUBCOMP"]) -> MQTTErrorCode:
        packet = self._in_packet["packet"]
        if len(packet) > 2 and packet[2] >= _UNSPECIFIED_ERROR:
            self.refusal_code = packet[2]
            self._in_packet["packet"] = packet[:2] + bytes((_UNSPECIFIED_ERROR,))
        return super()._handle_pubackcomp(cmd)

    def _handle_publish(self) -> MQTTErrorCode:
        header, packet = self._in_packet["command"], self._in_packet["packet"]
        qos = (header >> 1) & 3
        if qos > 1:
            raise ValueError(f"a message of QoS {qos}, although no subscription asks for more than 1")
        parts = split_publish(qos, packet)
        if len(parts.properties) > PROPERTIES_LIMIT_BYTES:
            log.warning("mqtt message dropped", why="its properties are too long", size_bytes=len(parts.properties))
            return self.ack(parts.packet_id, qos)  # otherwise the broker would send it again
        message = paho.MQTTMessage(parts.packet_id, parts.topic)
        message.qos, message.retain, message.payload = qos, bool(header & 1), parts.payload
        message.properties = _properties(PacketTypes.PUBLISH)
        try:
            message.properties.unpack(parts.properties)  # type: ignore[no-untyped-call]
        except MQTTException as error:
            # paho refuses U+FEFF, which MQTT 5 allows (1.5.4): without this a device could end the connection.
            if _BYTE_ORDER_MARK not in parts.properties:
                raise
            log.warning("mqtt message dropped", why=f"its properties cannot be read: {error}")
            return self.ack(parts.packet_id, qos)
        if self.on_message is not None:
            self.on_message(self, None, message)
        return MQTTErrorCode.MQTT_ERR_SUCCESS


class Connection:
    """A connection to the broker, with a session of its own: it discards what the broker kept for the client id.

    Args:
        settings: settings of the broker.
        will: published by the broker when the connection is lost without a DISCONNECT.
        on_message: called on the event loop for each message; `Message.ack` acknowledges it.
    """

    def __init__(
        self, settings: MqttSettings, *, will: Publication | None, on_message: Callable[[Message], None]
    ) -> None:
        self._settings = settings
        self._will = will
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._waiting: dict[int, asyncio.Future[Sequence[_Reason]]] = {}
        self._maximum_packet_bytes: int | None = None
        self._closed = False
        self._keepalive: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None
        self.lost: asyncio.Future[str] = self._loop.create_future()

    @property
    def alive(self) -> bool:
        """Whether the broker has accepted the connection, and it was neither lost nor closed since."""
        return self._ready.done() and not self.lost.done() and not self._closed

    async def open(self) -> None:
        """Connects to the broker and waits for its CONNACK.

        Raises:
            LinkDownError: unreachable, no agreement on TLS, or no CONNACK in time.
            UnauthorizedError: the broker refused the name or password.
            ConfigError: a certificate file that cannot be used, or settings that MQTT has no place for.
        """
        try:
            client = self._client = self._make_client()
            opened = client.connected = await asyncio.to_thread(self._connect)  # name look-up, TCP and TLS block
            client.reconnect()  # sends the CONNECT
        except ssl.SSLError as error:
            raise LinkDownError(handshake_problem(self._settings.address, error)) from error
        except OSError as error:
            raise LinkDownError(f"The MQTT broker at {self._settings.address} cannot be reached: {error}.") from error
        except (ValueError, MQTTException) as error:
            raise ConfigError(
                f"The settings of the MQTT connection to {self._settings.address} make no sense: {error}."
            ) from error
        self._loop.add_reader(opened, self._read, client, opened)
        self._keepalive = asyncio.create_task(self._keep_alive())
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                await self._ready
        except TimeoutError:
            raise LinkDownError(
                f"{self._settings.address} accepts connections, but does not greet us as an MQTT broker does."
            ) from None

    async def publish(self, publication: Publication) -> bool:
        """Returns when the broker has acknowledged (QoS 1), or the bytes are written (QoS 0).

        Returns:
            False if the broker reports that the topic has no subscriber; brokers need not report it.

        Raises:
            LinkDownError: the connection was lost before the acknowledgement.
            PayloadTooLargeError: larger than the broker takes.
            QueueFullError: too many publications wait for the broker.
            UnauthorizedError, CapacityError, ProtocolError: the broker refused it.
        """
        client = self._connected()
        try:
            properties = _publication_properties(PacketTypes.PUBLISH, publication)
            self._check_size(publication, len(properties.pack()))  # type: ignore[no-untyped-call]
            info = client.publish(
                publication.topic, publication.payload, publication.qos, publication.retain, properties
            )
        except (*_MALFORMED, TypeError) as error:
            raise ProtocolError(f"'{publication.topic}' cannot be published: {str(error).rstrip('.')}.") from error
        if info.rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
            raise QueueFullError(f"{_IN_FLIGHT} publications wait for the MQTT broker at {self._settings.address}.")
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise not_connected(self._settings.address)
        (reason,) = await self._answer(info.mid)
        if reason.code >= _UNSPECIFIED_ERROR:
            raise refusal(reason.code, reason.name, f"the publication on '{publication.topic}'")
        return reason.code != _NO_SUBSCRIBER

    async def subscribe(self, topic_filter: str) -> None:
        """Subscribes at QoS 1; returns when the broker has agreed.

        Raises:
            LinkDownError: the connection was lost first.
            UnauthorizedError, CapacityError, ProtocolError: the broker refused it.
        """
        client = self._connected()
        try:
            # A shared subscription must not ask for noLocal (section 3.8.3.1), so none does.
            packet_id = client.subscribe(topic_filter, options=SubscribeOptions(qos=1))[1]
        except ValueError as error:
            raise ProtocolError(f"'{topic_filter}' is no topic filter: {str(error).rstrip('.')}.") from error
        reason = (await self._answer(packet_id))[0]
        if reason.code >= _UNSPECIFIED_ERROR:
            raise refusal(reason.code, reason.name, f"the subscription to '{topic_filter}'")

    async def unsubscribe(self, topic_filter: str) -> None:
        """Ends a subscription; returns when the broker has confirmed, after which it sends no message for it.

        Raises:
            LinkDownError: the connection was lost first.
        """
        await self._answer(self._connected().unsubscribe(topic_filter)[1])

    async def close(self) -> None:
        """Disconnects without publishing the will; also while a thread is still connecting."""
        if self.alive:
            self._client.disconnect()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await asyncio.shield(self.lost)
        self._closed = True
        self._lose("closed by us")
        if self._keepalive is not None:
            self._keepalive.cancel()
        if (left := self._socket) is not None:
            self._unwatch(left)
            left.close()

    def _connected(self) -> _Client:
        if not self.alive:
            raise not_connected(self._settings.address)
        return self._client

    def _connect(self) -> socket.socket:
        """Connects a socket by Happy Eyeballs, which paho does not; called in a thread."""
        settings = self._settings
        tls = tls_context(settings)
        connected = happy_eyeballs.connect(settings.host, settings.port, settings.connect_timeout_s)
        if tls is not None:
            connected = tls.wrap_socket(connected, server_hostname=settings.host)
        # Nagle's algorithm holds a small packet back until the last one is acknowledged: 40 ms a round trip.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # A cut cable is noticed by unacknowledged data after this time, not after a quarter of an hour.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, settings.keepalive_s * 1000)
        self._socket = connected
        if self._closed:  # while this thread was connecting
            connected.close()
        return connected

    def _make_client(self) -> _Client:
        settings, will = self._settings, self._will
        client = _Client(
            CallbackAPIVersion.VERSION2,
            client_id=settings.client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.max_inflight_messages_set(_IN_FLIGHT)
        client.max_queued_messages_set(_IN_FLIGHT)
        if settings.username:
            client.username_pw_set(settings.username, settings.password)
        if will is not None:
            properties = _publication_properties(PacketTypes.WILLMESSAGE, will)
            client.will_set(will.topic, will.payload, will.qos, will.retain, properties)
        client.on_socket_close = lambda _c, _u, closing: self._unwatch(closing)
        client.on_socket_register_write = lambda _c, _u, opened: self._loop.add_writer(opened, client.loop_write)
        client.on_socket_unregister_write = self._wrote_all
        client.on_connect = self._accepted
        client.on_disconnect = self._disconnected
        client.on_publish = self._acknowledged
        client.on_subscribe = lambda _c, _u, mid, codes, _p: self._answered(mid, codes)
        client.on_unsubscribe = lambda _c, _u, mid, codes, _p: self._answered(mid, codes)
        client.on_message = self._received
        properties = _properties(PacketTypes.CONNECT)
        properties.ReceiveMaximum = settings.receive_maximum
        properties.MaximumPacketSize = min(settings.maximum_packet_bytes, _LARGEST_PACKET_BYTES)
        client.connect_async(
            settings.host, settings.port, settings.keepalive_s, clean_start=True, properties=properties
        )
        return client

    def _wrote_all(self, _client: object, _userdata: object, opened: Any) -> None:
        self._loop.remove_writer(opened)

    def _read(self, client: paho.Client, opened: Any) -> None:
        try:
            client.loop_read()
            # TLS may have decrypted more than paho has read, and the descriptor does not show it.
            while self._socket is opened and getattr(opened, "pending", int)() > 0:
                client.loop_read()
        except _MALFORMED as error:
            self._lose(f"the broker sent what is not MQTT 5: {error!r}")

    def _unwatch(self, closing: Any) -> None:
        self._socket = None
        if closing.fileno() >= 0:
            self._loop.remove_reader(closing)
            self._loop.remove_writer(closing)

    def _accepted(self, _client: object, _userdata: object, _flags: object, code: ReasonCode, properties: Any) -> None:
        if self._ready.done():
            return
        if code.is_failure:
            self._ready.set_exception(refusal(code.value, str(code), "the connection"))
            return
        self._maximum_packet_bytes = getattr(properties, "MaximumPacketSize", None)
        self._ready.set_result(None)

    def _disconnected(
        self, _client: object, _userdata: object, flags: paho.DisconnectFlags, code: ReasonCode, _properties: object
    ) -> None:
        why = str(code)
        # paho calls an end without a DISCONNECT so. Mosquitto 2.0 gives the older of two clients with one id no other.
        if code.value == _UNSPECIFIED_ERROR and not flags.is_disconnect_packet_from_server:
            why = "closed without a reason"
            if self._settings.client_id:
                why += f"; does another client use the client id {self._settings.client_id}?"
        self._lose(why)

    def _received(self, client: paho.Client, _userdata: object, received: paho.MQTTMessage) -> None:
        acknowledged = False

        def ack() -> None:
            nonlocal acknowledged
            if not acknowledged and not self.lost.done():
                acknowledged = True
                client.ack(received.mid, received.qos)

        try:
            topic = received.topic
        except UnicodeDecodeError:
            ack()  # it cannot have been subscribed to
            return
        properties = received.properties
        self._on_message(
            Message(
                topic=topic,
                payload=bytes(received.payload),
                properties=dict(getattr(properties, "UserProperty", ())),
                response_topic=getattr(properties, "ResponseTopic", ""),
                correlation_data=getattr(properties, "CorrelationData", b""),
                expiry_s=getattr(properties, "MessageExpiryInterval", None),
                retain=received.retain,
                qos=received.qos,
                ack=ack,
            )
        )

    def _acknowledged(self, client: Any, _userdata: object, mid: int, code: ReasonCode, _properties: object) -> None:
        if not code.is_failure:
            self._answered(mid, (code,))
            return
        names = [*code.names.get(client.refusal_code, ()), "an unknown reason"]
        self._resolve(mid, (_Reason(client.refusal_code, f"{names[0]} (reason code {client.refusal_code})"),))

    async def _answer(self, packet_id: int | None) -> Sequence[_Reason]:
        """Returns the broker's reason codes for a packet that was sent."""
        if packet_id is None:
            raise not_connected(self._settings.address)
        if self.lost.done():  # found out when it was written
            raise connection_lost(self._settings.address, self.lost.result())
        answer: asyncio.Future[Sequence[_Reason]] = self._loop.create_future()
        # Packets are written and read in other turns of the loop, so no answer can have come before this line.
        self._waiting[packet_id] = answer
        try:
            return await answer
        finally:
            self._waiting.pop(packet_id, None)

    def _answered(self, packet_id: int, codes: Sequence[ReasonCode]) -> None:
        self._resolve(packet_id, [_Reason(code.value, str(code)) for code in codes])

    def _resolve(self, packet_id: int, reasons: Sequence[_Reason]) -> None:
        answer = self._waiting.pop(packet_id, None)
        if answer is not None and not answer.done():
            answer.set_result(reasons)

    def _lose(self, why: str) -> None:
        if self.lost.done():
            return
        self.lost.set_result(why)
        futures: list[asyncio.Future[Any]] = [*self._waiting.values(), self._ready]
        for waiting in futures:
            if not waiting.done():
                waiting.set_exception(connection_lost(self._settings.address, why))
        self._waiting.clear()
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()  # marks it as retrieved, even if it is awaited no more

    async def _keep_alive(self) -> None:
        while not self.lost.done():
            if self._client.loop_misc() != MQTTErrorCode.MQTT_ERR_SUCCESS:
                self._lose("no sign of life within the keepalive time")
            await asyncio.sleep(_KEEPALIVE_INTERVAL_S)

    def _check_size(self, publication: Publication, properties_bytes: int) -> None:
        # The topic is always encoded: paho keeps a publication before it finds that it cannot be encoded.
        size_bytes = len(publication.payload) + len(publication.topic.encode()) + properties_bytes
        if self._maximum_packet_bytes is None:
            return
        size_bytes += _PACKET_OVERHEAD_BYTES
        if size_bytes > self._maximum_packet_bytes:
            raise PayloadTooLargeError(
                f"The publication on '{publication.topic}' has {size_bytes} bytes; the MQTT broker at "
                f"{self._settings.address} takes at most {self._maximum_packet_bytes}."
            )


def matches(topic_filter: str, topic: str) -> bool:
    """Returns whether a topic matches a filter, including wildcards and shared subscriptions (MQTT 5, section 4.7)."""
    if topic_filter.startswith("$share/"):
        topic_filter = topic_filter.split("/", 2)[2]
    return paho.topic_matches_sub(topic_filter, topic)


def split_publish(qos: int, packet: bytes | bytearray) -> PublishParts:
    """Splits a PUBLISH packet of MQTT 5 (section 3.3) without decoding its parts.

    Args:
        qos: quality of service in the fixed header.
        packet: everything after the fixed header.

    Raises:
        ValueError: the packet ends too early.
    """
    topic_ends = start = 2 + int.from_bytes(packet[:2], "big")
    packet_id = 0
    if qos:
        packet_id, start = int.from_bytes(packet[start : start + 2], "big"), start + 2
    size_bytes = 0
    for position in range(_LENGTH_BYTES):
        at = start + position
        byte = packet[at] if at < len(packet) else 0x80
        size_bytes |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            break
    else:
        raise ValueError("a PUBLISH packet without a length of its properties")
    end = at + 1 + size_bytes
    if end > len(packet):
        raise ValueError("a PUBLISH packet that ends inside its properties")
    with memoryview(packet) as view:
        return PublishParts(bytes(view[2:topic_ends]), packet_id, bytes(view[start:end]), bytes(view[end:]))


def _properties(packet_type: int) -> Properties:
    return Properties(packet_type)  # type: ignore[no-untyped-call]


def _publication_properties(packet_type: int, publication: Publication) -> Properties:
    properties = _properties(packet_type)
    if publication.properties:
        properties.UserProperty = list(publication.properties.items())
    if publication.response_topic:
        properties.ResponseTopic = publication.response_topic
    if publication.correlation_data:
        properties.CorrelationData = publication.correlation_data
    if publication.expiry_s is not None:
        properties.MessageExpiryInterval = publication.expiry_s
    return properties
