"""paho, as one MQTT 5 connection needs it: the only file that imports it. Who publishes what, and waits, is not known.

It is driven by the event loop, not by a thread of its own: see `mqtt_socket.py`.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Protocol

import paho.mqtt.client as paho
from paho.mqtt import MQTTException
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from firstline_core.errors import ConfigError, LinkDownError, QueueFullError
from firstline_core.protocol.mqtt_faults import not_connected
from firstline_core.protocol.mqtt_messages import Message, MqttSettings, Publication
from firstline_core.protocol.mqtt_packet import PROPERTIES_LIMIT_BYTES, PublishParts, publish_parts, unpacked
from firstline_core.protocol.mqtt_socket import WatchedSocket
from firstline_core.protocol.mqtt_tls import disagreement, tls_context
from firstline_core.telemetry.logs import logger

# Packet ids have 16 bits; far fewer in flight keeps a broker's own limit ("receive maximum", 65535) out of sight.
_IN_FLIGHT = 1024
# MQTT 5, section 2.1.4: no packet is larger than its length field can say.
_LARGEST_PACKET_BYTES = 268_435_455
_NOT_MQTT = (ValueError, LookupError, struct.error, MQTTException)
_PUBLISH, _PUBACK = 0x30, 0x40
_PACKET_ID_BYTES = 2
_READ_AHEAD_BYTES = 64 * 1024
_SUCCESS = ReasonCode(PacketTypes.PUBACK)
_NO_PROPERTIES = Properties(PacketTypes.PUBACK)  # type: ignore[no-untyped-call]

log = logger(__name__)


class Code(Protocol):
    """What a broker says of one thing that it was asked (MQTT 5, section 2.4); its text is the standard's."""

    value: int

    @property
    def is_failure(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Told:
    """Who is told what, on the event loop.

    Args:
        greeted: of the broker's greeting, and the largest packet that it takes, where it says so.
        answered: of the answer to a packet of ours, by its id.
        heard: of a message; acknowledging is left to `Message.ack`.
        ended: why there is no connection any more.
        alive: asked whether it is still worth to acknowledge.
    """

    greeted: Callable[[Code, int | None], None]
    answered: Callable[[int, Sequence[Code]], None]
    heard: Callable[[Message], None]
    ended: Callable[[str], None]
    alive: Callable[[], bool]


class _Client(paho.Client):
    """paho, but for what it would take minutes over (see `mqtt_packet.py`), or most of what a message costs.

    It makes objects of the properties of each packet, also of none, and asks the system for a packet's head byte by
    byte. So what comes with every request is read here: a message, and the word that one of ours arrived.

    Args:
        on_publish_packet: told of each message: its parts, its QoS and whether it was retained.
    """

    def __init__(self, on_publish_packet: Callable[[PublishParts, int, bool], None], client_id: str) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        self._on_publish_packet = on_publish_packet
        self._ahead = BytesIO()
        self._ahead_bytes = 0

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        code = super().loop_read()
        while self._sock is not None and self._ahead.tell() < self._ahead_bytes:
            code = super().loop_read()
        return code

    def _sock_recv(self, bufsize: int) -> bytes:
        content = self._ahead.read(bufsize)
        if not content:
            read = super()._sock_recv(max(bufsize, _READ_AHEAD_BYTES))
            self._ahead, self._ahead_bytes = BytesIO(read), len(read)
            content = self._ahead.read(bufsize)
        return content

    def _packet_handle(self) -> MQTTErrorCode:
        command, packet = self._in_packet["command"], self._in_packet["packet"]
        if command & 0xF0 == _PUBLISH:
            return self._take(publish_parts((command >> 1) & 3, packet), (command >> 1) & 3, bool(command & 1))
        if command == _PUBACK and len(packet) == _PACKET_ID_BYTES:  # of success, without properties
            packet_id = int.from_bytes(packet, "big")
            if packet_id in self._out_messages:
                return self._do_on_publish(packet_id, _SUCCESS, _NO_PROPERTIES)
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        return super()._packet_handle()

    def _take(self, parts: PublishParts, qos: int, retain: bool) -> MQTTErrorCode:
        if qos > 1:
            raise ValueError(f"a message of QoS {qos}, which nobody asked for")
        if len(parts.properties) > PROPERTIES_LIMIT_BYTES:
            log.warning("mqtt message dropped", why="its properties are too long", size_bytes=len(parts.properties))
            return self.ack(parts.packet_id, qos)  # or else the broker would send it again
        self._on_publish_packet(parts, qos, retain)
        return MQTTErrorCode.MQTT_ERR_SUCCESS


class _Packed:
    """A publication's properties, as paho asks for them."""

    def __init__(self, properties: bytes) -> None:
        self._properties = properties

    def pack(self) -> bytes:
        return self._properties


class Paho:
    """One client of paho's, for one connection: there to be asked once `connect` has returned.

    Args:
        settings: where to, and how.
        will: published by the broker when the connection is lost without a goodbye.
        told: what becomes of it.
    """

    _client: _Client

    def __init__(self, settings: MqttSettings, will: Publication | None, told: Told) -> None:
        self._settings = settings
        self._will = will
        self._told = told
        self.socket = WatchedSocket(
            settings.keepalive_s,
            _NOT_MQTT,
            lambda error: told.ended(f"the broker sent what is not MQTT 5: {error!r}"),
        )

    def connect(self, *, clean_start: bool, session_expiry_s: int) -> None:
        """Reaches the broker; blocks for the name's look-up, TCP and TLS. The greeting comes later.

        Raises:
            LinkDownError: unreachable, or no agreement on TLS.
            ConfigError: a certificate file that cannot be used, or settings that MQTT has no place for.
        """
        settings, where = self._settings, self._settings.address
        try:
            self._client = self._make_client()
            properties = _empty_properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = session_expiry_s
            properties.ReceiveMaximum = settings.receive_maximum
            properties.MaximumPacketSize = min(settings.maximum_packet_bytes, _LARGEST_PACKET_BYTES)
            self._client.connect(
                settings.host, settings.port, settings.keepalive_s, clean_start=clean_start, properties=properties
            )
        except ssl.SSLError as error:
            raise LinkDownError(disagreement(where, error)) from error
        except OSError as error:
            raise LinkDownError(f"The MQTT broker at {where} cannot be reached: {error}.") from error
        except (ValueError, MQTTException) as error:
            raise ConfigError(f"The settings of the MQTT connection to {where} make no sense: {error}.") from error

    def publish(self, publication: Publication, properties: bytes) -> int | None:
        """Sends a publication, at once as far as the socket takes it.

        Args:
            publication: all of it but its properties.
            properties: as they stand in the packet.

        Returns:
            The id that its answer will have; None where there will be none, at QoS 0, and it is written already.

        Raises:
            LinkDownError: there is no connection.
            QueueFullError: too many wait for the broker.
            ValueError, struct.error: what no packet can carry.
        """
        info = self._client.publish(
            publication.topic,
            publication.payload,
            publication.qos,
            publication.retain,
            _Packed(properties),  # type: ignore[arg-type]  # paho packs them, and nothing else
        )
        if info.rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
            raise QueueFullError(f"{_IN_FLIGHT} publications wait for the MQTT broker at {self._settings.address}.")
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise not_connected(self._settings.address)
        return None if info.is_published() else info.mid

    def subscribe(self, topic_filter: str) -> int:
        """Asks for a subscription at QoS 1; the id that its answer will have.

        Raises:
            LinkDownError: there is no connection.
            ValueError: it is no topic filter.
        """
        # A shared subscription must not ask for noLocal (section 3.8.3.1), so none does.
        return self._sent(self._client.subscribe(topic_filter, options=SubscribeOptions(qos=1))[1])

    def unsubscribe(self, topic_filter: str) -> int:
        """As `subscribe`, for its end."""
        return self._sent(self._client.unsubscribe(topic_filter)[1])

    def _sent(self, packet_id: int | None) -> int:
        if packet_id is None:
            raise not_connected(self._settings.address)
        return packet_id

    def disconnect(self) -> None:
        """Says goodbye; `Told.ended` follows."""
        self._client.disconnect()

    def look_after_keepalive(self) -> bool:
        """To be called each second or so; False where the broker gave no sign of life."""
        return self._client.loop_misc() == MQTTErrorCode.MQTT_ERR_SUCCESS

    def _make_client(self) -> _Client:
        settings, will, told = self._settings, self._will, self._told
        client = _Client(self._hear, settings.client_id)
        client.connect_timeout = settings.connect_timeout_s
        client.max_inflight_messages_set(_IN_FLIGHT)
        client.max_queued_messages_set(_IN_FLIGHT)
        if settings.username:
            client.username_pw_set(settings.username, settings.password)
        if (tls := tls_context(settings)) is not None:
            client.tls_set_context(tls)
        if will is not None:
            client.will_set(will.topic, will.payload, will.qos, will.retain, _will_properties(will))
        client.on_socket_open = self.socket.opened
        client.on_socket_close = self.socket.closing
        client.on_socket_register_write = self.socket.wants_write
        client.on_socket_unregister_write = self.socket.wants_no_write
        client.on_connect = lambda _c, _u, _f, code, properties: told.greeted(
            code, getattr(properties, "MaximumPacketSize", None)
        )
        client.on_disconnect = lambda _c, _u, _f, code, _p: told.ended(str(code))
        client.on_publish = lambda _c, _u, mid, code, _p: told.answered(mid, (code,))
        client.on_subscribe = lambda _c, _u, mid, codes, _p: told.answered(mid, codes)
        client.on_unsubscribe = lambda _c, _u, mid, codes, _p: told.answered(mid, codes)
        return client

    def _hear(self, parts: PublishParts, qos: int, retain: bool) -> None:
        acknowledged = False

        def ack() -> None:
            nonlocal acknowledged
            if not acknowledged and self._told.alive():
                acknowledged = True
                self._client.ack(parts.packet_id, qos)

        try:
            topic = parts.topic.decode()
        except UnicodeDecodeError:
            ack()  # nobody can have subscribed to it
            return
        properties = unpacked(parts.properties)
        self._told.heard(
            Message(
                topic=topic,
                payload=parts.payload,
                properties=dict(properties.user),
                response_topic=properties.response_topic,
                correlation_data=properties.correlation_data,
                expiry_s=properties.expiry_s,
                retain=retain,
                qos=qos,
                ack=ack,
            )
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
