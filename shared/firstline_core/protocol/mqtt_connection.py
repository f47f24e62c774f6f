"""One MQTT 5 connection, from CONNECT to its loss: what is sent is waited for, and fails where no answer can come.

Each connection is a fresh client of the library, so nothing of a lost one is sent again behind the caller's back: a
publication that was not acknowledged fails, and whoever sent it decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Sequence
from typing import Any

from firstline_core.errors import LinkDownError, PayloadTooLargeError, ProtocolError
from firstline_core.protocol.mqtt_faults import connection_lost, not_connected, refusal
from firstline_core.protocol.mqtt_messages import Message, MqttSettings, Publication
from firstline_core.protocol.mqtt_packet import PublishProperties, packed
from firstline_core.protocol.mqtt_paho import Code, Paho, Told

_KEEPALIVE_INTERVAL_S = 1.0  # how often the library looks at it
_NO_SUBSCRIBER = 0x10
_PACKET_OVERHEAD_BYTES = 16  # fixed header, topic length, packet id, properties length


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
        self._clean_start = clean_start
        self._session_expiry_s = session_expiry_s
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._waiting: dict[int, asyncio.Future[Sequence[Code]]] = {}
        self._maximum_packet_bytes: int | None = None
        self._closed = False
        self._misc: asyncio.Task[None] | None = None
        self.lost: asyncio.Future[str] = self._loop.create_future()
        told = Told(self._greeted, self._answered, on_message, self._lose, lambda: not self.lost.done())
        self._paho = Paho(settings, will, told)

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
        # Name look-up, TCP and TLS block: off the event loop with them.
        await asyncio.to_thread(
            self._paho.connect, clean_start=self._clean_start, session_expiry_s=self._session_expiry_s
        )
        self._misc = asyncio.create_task(self._look_after_keepalive())
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
            False if the broker says that nobody subscribes to the topic; brokers need not say so.

        Raises:
            LinkDownError: the connection was lost before the acknowledgement.
            PayloadTooLargeError: larger than the broker takes.
            UnauthorizedError, CapacityError, ProtocolError: the broker refused it.
        """
        if not self.alive:
            raise not_connected(self._settings.address)
        try:
            properties = packed(
                PublishProperties(
                    tuple(publication.properties.items()),
                    publication.response_topic,
                    publication.correlation_data,
                    publication.expiry_s,
                )
            )
            self._check_size(publication, len(properties))
            packet_id = self._paho.publish(publication, properties)
        except (ValueError, struct.error) as error:
            raise ProtocolError(f"'{publication.topic}' cannot be published: {error}.") from error
        if packet_id is None:
            return True
        (code,) = await self._answer(packet_id)
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
            raise not_connected(self._settings.address)
        try:
            packet_id = self._paho.subscribe(topic_filter)
        except ValueError as error:
            raise ProtocolError(f"'{topic_filter}' is no topic filter: {error}.") from error
        code = (await self._answer(packet_id))[0]
        if code.is_failure:
            raise refusal(code.value, str(code), f"the subscription to '{topic_filter}'")

    async def unsubscribe(self, topic_filter: str) -> None:
        """Ends a subscription; returns when the broker has confirmed, after which it sends no message for it.

        Raises:
            LinkDownError: the connection was lost first.
        """
        if not self.alive:
            raise not_connected(self._settings.address)
        await self._answer(self._paho.unsubscribe(topic_filter))

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
        self._paho.socket.close()

    def _greeted(self, code: Code, maximum_packet_bytes: int | None) -> None:
        if self._ready.done():
            return
        if code.is_failure:
            self._ready.set_exception(refusal(code.value, str(code), "the connection"))
            return
        self._maximum_packet_bytes = maximum_packet_bytes
        self._ready.set_result(None)

    async def _answer(self, packet_id: int) -> Sequence[Code]:
        """What the broker says to a packet of ours."""
        if self.lost.done():  # found out as it was written
            raise connection_lost(self._settings.address, self.lost.result())
        answer: asyncio.Future[Sequence[Code]] = self._loop.create_future()
        # What is read is read on another turn of the loop, so no answer can have come before this line.
        self._waiting[packet_id] = answer
        try:
            return await answer
        finally:
            self._waiting.pop(packet_id, None)

    def _answered(self, packet_id: int, codes: Sequence[Code]) -> None:
        answer = self._waiting.pop(packet_id, None)
        if answer is not None and not answer.done():
            answer.set_result(codes)

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
            self._ready.exception()  # seen, even if nobody awaits it any more

    async def _look_after_keepalive(self) -> None:
        while not self.lost.done():
            if not self._paho.look_after_keepalive():
                self._lose("no sign of life within the keepalive time")
            await asyncio.sleep(_KEEPALIVE_INTERVAL_S)

    def _check_size(self, publication: Publication, properties_bytes: int) -> None:
        # Encoded in any case: the library, which keeps what it was given, must not be the one to find what cannot be.
        size_bytes = len(publication.payload) + len(publication.topic.encode()) + properties_bytes
        if self._maximum_packet_bytes is None:
            return
        size_bytes += _PACKET_OVERHEAD_BYTES
        if size_bytes > self._maximum_packet_bytes:
            raise PayloadTooLargeError(
                f"The publication on '{publication.topic}' has {size_bytes} bytes; the MQTT broker at "
                f"{self._settings.address} takes at most {self._maximum_packet_bytes}."
            )
