"""The MQTT 5 link: requests and responses, and the device's messages (birth, state, corrections)."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass

import orjson
from msgspec.structs import replace

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import (
    FirstlineError,
    InvalidTensorError,
    LinkDownError,
    PayloadTooLargeError,
    ProtocolError,
    RemoteTimeoutError,
)
from firstline_core.ids import new_request_id
from firstline_core.protocol import mqtt_messages
from firstline_core.protocol.limits import DEFAULT_LIMITS, Limits
from firstline_core.protocol.mqtt import MqttClient
from firstline_core.protocol.mqtt_messages import Message, MqttSettings, Publication, Topics
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import rounded
from firstline_core.types import InferRequest, InferResponse
from firstline_edge.cloud.link import MessageRefusedError
from firstline_edge.telemetry.link_traffic import count_traffic

log = logger(__name__)

# How long to wait for a moment without requests under way, and then for each step of an exchange of connections.
_QUIET_S = 60.0
_RENEWAL_S = 2.0


@dataclass(eq=False)
class MqttLink:
    """Asks the gateway through a broker; all responses to this device come on one topic.

    Args:
        settings: of the broker.
        topics: of this device.
        birth: returns the content of the retained birth message (capabilities, model digests), for each connection.
        clock: for deadlines.
        limits: for answers.

    Attributes:
        topics: of this device.
        session_id: of this process, part of its state, birth and last will.
        connections: number of connections so far.
    """

    in_turn = True

    settings: MqttSettings
    topics: Topics
    _: KW_ONLY
    name: str = "mqtt"
    birth: Callable[[], Mapping[str, object]] = dict
    clock: Clock = SYSTEM_CLOCK
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        # Distinguishes the "offline" of an old process from the "online" of a new one.
        self.session_id = new_request_id()
        self.connections = 0
        self._pending: dict[bytes, asyncio.Future[Message]] = {}
        self._introduced = asyncio.Event()
        self._open = asyncio.Event()  # cleared while the connection is replaced
        self._open.set()
        self._quiet = asyncio.Event()  # set while no request is in progress
        self._quiet.set()
        self.probe_wanted = asyncio.Event()
        # The broker keeps no session: an answer to a lost connection is useless, because the request is sent again.
        self._client = MqttClient(
            self.settings, will=self._state("offline"), on_connected=self._introduce, on_lost=self._connection_lost
        )

    @property
    def address(self) -> str:
        """The broker's host and port."""
        return self.settings.address

    @property
    def connected(self) -> bool:
        return self._client.connected

    async def wait_connected(self) -> None:
        """Waits until there is a connection."""
        await self._introduced.wait()

    async def start(self) -> None:
        """Starts to connect, and retries in the background."""
        await self._client.listen(self.topics.response, self._on_response)
        self._client.start()

    async def infer(self, request: InferRequest, timeout_s: float) -> InferResponse:
        """See `Link.infer`."""
        now_s = self.clock.monotonic_s()
        correlation_data = secrets.token_bytes(16)
        publication = mqtt_messages.request_publication(
            replace(request, deadline_s=now_s + timeout_s, binary_output=True, outputs=()),
            topic=self.topics.request(request.model),
            response_topic=self.topics.response,
            correlation_data=correlation_data,
            now_s=now_s,
        )
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._open.wait()
                self._pending[correlation_data] = answer
                self._quiet.clear()
                await self._publish_to_gateway(publication)
                message = await answer
                count_traffic(self.name, received=_size_bytes(message))
                return mqtt_messages.read_response(message, self.limits)
        except TimeoutError as error:
            raise RemoteTimeoutError(
                f"No answer came through the MQTT broker at {self.address} within {rounded(timeout_s)} s."
            ) from error
        finally:
            # A later answer is ignored.
            self._pending.pop(correlation_data, None)
            if not self._pending:
                self._quiet.set()
            answer.cancel()

    async def probe(self, timeout_s: float) -> None:
        """Makes one round trip to the broker by publishing the state "online" again; waits for a connection.

        A silent connection is replaced: the network may have forgotten it, and the keepalive would take longer to tell.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.connect(timeout_s)
                await self._client.publish(self._state("online"))
        except TimeoutError as error:
            await self._client.reconnect()
            raise RemoteTimeoutError(f"The MQTT broker at {self.address} is silent.") from error

    async def publish_correction(self, response: InferResponse) -> None:
        """Publishes a corrected answer for applications near the device; JSON where its outputs allow.

        Raises:
            LinkDownError: not connected; the answer is still available by its id.
            FirstlineError: the broker refused it.
        """
        request_id = "" if response.answer is None else response.answer.request_id
        form = InferRequest(model=response.model, inputs=(), request_id=request_id)
        topic, data = self.topics.results, request_id.encode()
        try:
            publication = mqtt_messages.response_publication(form, response, topic=topic, correlation_data=data)
        except InvalidTensorError:  # NaN, or bytes that are not text
            form = replace(form, binary_output=True)
            publication = mqtt_messages.response_publication(form, response, topic=topic, correlation_data=data)
        await self._client.publish(publication)

    async def listen(self, topic: str, handle: Callable[[Message], None]) -> None:
        """Subscribes to a topic, also after reconnections, and calls `handle` with each message.

        Raises:
            FirstlineError: the broker refused it.
        """
        await self._client.listen(topic, handle)

    async def publish_document(self, topic: str, content: bytes, *, retain: bool = False) -> bool:
        """Publishes a document about this device; returns when the broker has acknowledged it.

        While the device starts, waits until the first connection attempt has ended.

        Returns:
            False if the broker reports that no gateway is subscribed.

        Raises:
            LinkDownError: not connected.
            FirstlineError: the broker refused it.
        """
        await self._client.first_attempt()
        return await self._client.publish(Publication(topic, content, retain=retain))

    async def discard_connections(self) -> None:
        """Does nothing: every message is complete, so an answer cannot be the rest of another one."""

    async def reconnect(self) -> None:
        """Replaces the connection by one with newer credentials, without losing a request.

        A broker closes the older of two connections of one device, so both cannot be open at the same time. New
        requests wait for the new connection, some 10 ms. The exchange waits up to a minute for requests in progress;
        after that, new requests wait as well.
        """
        if not self._client.connected:
            return  # the next connection uses them anyway
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_QUIET_S):
                await self._quiet.wait()
        self._open.clear()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RENEWAL_S):
                    await self._quiet.wait()
            self._introduced.clear()
            await self._client.reconnect()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RENEWAL_S):
                    await self._introduced.wait()
        finally:
            self._open.set()

    async def close(self) -> None:
        """Publishes the state "offline" and disconnects; after a clean end the broker publishes no will."""
        if self._client.connected:
            try:
                async with asyncio.timeout(1):
                    await self._client.publish(self._state("offline"))
            except (TimeoutError, FirstlineError):
                pass  # the broker is gone, and will publish the will
        await self._client.close()

    async def _publish_to_gateway(self, publication: Publication) -> None:
        # While the device starts, a request waits until the first connection attempt has ended.
        await self._client.first_attempt()
        if not self._client.connected:
            error = self._client.last_error
            why = f": {error.message}" if error is not None else "."
            raise LinkDownError(f"Not connected to the MQTT broker at {self.address}{why}")
        count_traffic(self.name, sent=_size_bytes(publication))  # bytes that were sent in vain count as well
        try:
            accepted = await self._client.publish(publication)
        except ProtocolError as refusal:
            raise MessageRefusedError(refusal.message) from refusal
        if not accepted:
            raise LinkDownError(f"No gateway listens at the MQTT broker at {self.address}.")

    def _on_response(self, message: Message) -> None:
        answer = self._pending.get(message.correlation_data)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _connection_lost(self) -> None:
        self._introduced.clear()
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(
                    LinkDownError(f"The connection to the MQTT broker at {self.address} was lost before the answer.")
                )
        if self._open.is_set():
            self.probe_wanted.set()

    async def _introduce(self) -> None:
        try:
            await self._client.publish(self._introduction())
        except (PayloadTooLargeError, ProtocolError) as error:  # requests do not need it
            log.warning("birth message refused by broker", link=self.name, error=error.message)
        await self._client.publish(self._state("online"))
        self.connections += 1
        self._introduced.set()

    def _introduction(self) -> Publication:
        birth = {"session_id": self.session_id, **self.birth()}
        return Publication(self.topics.birth, orjson.dumps(birth), retain=True)

    def _state(self, state: str) -> Publication:
        content = {"state": state, "session_id": self.session_id}
        return Publication(self.topics.state, orjson.dumps(content), retain=True)


def _size_bytes(message: Publication | Message) -> int:
    """Returns the bytes on the wire, without the packet's fixed header."""
    properties = sum(len(name) + len(value) + 5 for name, value in message.properties.items())
    addressing = len(message.topic) + len(message.response_topic) + len(message.correlation_data)
    return len(message.payload) + properties + addressing
