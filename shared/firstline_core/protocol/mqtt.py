"""An MQTT 5 client that stays connected: reconnects, renews subscriptions, runs handlers. See `mqtt_connection.py`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

from firstline_core.clock import SYSTEM_CLOCK, Clock, end_tasks, first_of
from firstline_core.errors import FirstlineError, LinkDownError
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.protocol.mqtt_connection import Connection, matches
from firstline_core.protocol.mqtt_messages import Message, MqttSettings, Publication, not_connected
from firstline_core.telemetry.logs import logger

Handler = Callable[[Message], Awaitable[None]]

# A shorter connection counts as failed: two clients with one id would otherwise disconnect each other endlessly.
_STEADY_S = 30.0
_RECONNECT_BASE_S = 0.5

log = logger(__name__)


@dataclass(eq=False)
class MqttClient:
    """Keeps one connection to a broker.

    The delay between attempts is random in [0, min(cap, 0.5 * 2^attempts)], which prevents a thundering herd when a
    fleet loses its broker. paho's own reconnection has no jitter.

    A message is acknowledged when its handler has ended, also if it failed: the broker keeps no session, so it would
    not deliver the message again. Acknowledgements are sent when handlers end, not in the order of arrival that MQTT 5
    (section 4.6) requires: brokers match them by packet id, and one slow request must not delay the others.

    Args:
        settings: settings of the broker.
        will: published by the broker when the connection is lost.
        on_connected: awaited after each connection, when subscriptions are renewed.
        on_lost: called when an established connection is lost or closed.

    Attributes:
        last_error: why the latest attempt to connect failed; None after a success.
    """

    settings: MqttSettings
    _: KW_ONLY
    will: Publication | None = None
    on_connected: Callable[[], Awaitable[None]] | None = None
    on_lost: Callable[[], None] | None = None
    clock: Clock = SYSTEM_CLOCK
    rng: random.Random = field(default_factory=random.Random)
    last_error: FirstlineError | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._handlers: dict[str, Callable[[Message], None]] = {}
        self._filters: dict[str, None] = {}  # in order; subscribed now and after a reconnection
        self._running: set[asyncio.Task[None]] = set()
        # The broker limits messages in flight to `receive_maximum`, but not every broker counts correctly.
        self._slots = asyncio.Semaphore(self.settings.receive_maximum)
        self._connection: Connection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._reconnecting = False
        self._up = asyncio.Event()
        self._tried = asyncio.Event()
        self._hurry = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Returns whether the connection is established with every subscription."""
        return self._up.is_set() and self._connection is not None and self._connection.alive

    def start(self) -> None:
        """Starts to connect and stay connected, without waiting."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_connected())

    async def connect(self, timeout_s: float) -> None:
        """Starts the client and waits until it is connected.

        The first attempt is immediate; attempts continue until `close`.

        Raises:
            LinkDownError: no connection within `timeout_s`.
            FirstlineError: the broker's error of the latest attempt, e.g. `UnauthorizedError`.
        """
        self.start()
        self._hurry.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            raise self.last_error or LinkDownError(
                f"No connection to the MQTT broker at {self.settings.address} within {timeout_s:g} s."
            ) from None

    async def first_attempt(self) -> None:
        """Waits until the first attempt to connect has ended, with or without success."""
        await self._tried.wait()

    async def reconnect(self) -> None:
        """Reconnects at once, without publishing the will, for example with new credentials."""
        if self._connection is not None:
            self._reconnecting = True
            await self._connection.close()

    async def publish(self, publication: Publication) -> bool:
        """Returns when the broker has acknowledged; nothing is queued without a connection.

        Returns:
            False if the broker reports that the topic has no subscriber (brokers need not report it).

        Raises:
            LinkDownError: not connected, or the connection was lost before the acknowledgement.
            PayloadTooLargeError, UnauthorizedError, CapacityError, ProtocolError: the broker refused it.
        """
        if self._connection is None:
            raise not_connected(self.settings.address)
        return await self._connection.publish(publication)

    async def subscribe(self, topic_filter: str, handler: Handler) -> None:
        """Subscribes to a filter: `handler` is called for each matching message, also after reconnections.

        A message goes to the first filter that it matches. Without a connection, or if it is lost meanwhile, the
        subscription is only recorded, and the next connection makes it.

        Raises:
            UnauthorizedError, CapacityError, ProtocolError: the broker refused it.
        """
        await self._subscribe(topic_filter, partial(self._start_handler, handler))

    async def listen(self, topic_filter: str, handle: Callable[[Message], None]) -> None:
        """Like `subscribe` for a function that does not wait: `handle` is called as soon as a message is read.

        Raises:
            UnauthorizedError, CapacityError, ProtocolError: the broker refused it.
        """
        await self._subscribe(topic_filter, partial(self._call_handler, handle))

    async def _subscribe(self, topic_filter: str, handle: Callable[[Message], None]) -> None:
        self._handlers[topic_filter] = handle
        self._filters[topic_filter] = None
        if self._connection is not None and self._connection.alive:
            try:
                await self._connection.subscribe(topic_filter)
            except LinkDownError as error:
                log.info("subscription recorded for the next connection", filter=topic_filter, error=error.message)
            except FirstlineError:
                self._filters.pop(topic_filter, None)  # it would be refused on every later connection, and end it
                raise

    async def unsubscribe(self, topic_filter: str) -> None:
        """Ends a subscription; messages received before are still handled.

        Raises:
            LinkDownError: the connection was lost before the broker confirmed; it is not renewed on the next one.
        """
        if topic_filter not in self._filters:
            return
        del self._filters[topic_filter]  # the handler stays: messages may arrive until the broker has confirmed
        if self._connection is not None and self._connection.alive:
            await self._connection.unsubscribe(topic_filter)

    async def close(self) -> None:
        """Disconnects without publishing the will, and ends running handlers."""
        await end_tasks(self._keeper)
        self._keeper = None
        await end_tasks(*self._running)

    async def _keep_connected(self) -> None:
        attempts = 0
        while True:
            connection = Connection(self.settings.renewed(), will=self.will, on_message=self._dispatch)
            try:
                await self._establish(connection)
                since_s = asyncio.get_running_loop().time()
                why = await asyncio.shield(connection.lost)
                if asyncio.get_running_loop().time() - since_s > _STEADY_S:
                    attempts = 0
                if not self._reconnecting:
                    log.warning("mqtt connection lost", broker=self.settings.address, why=why)
            except FirstlineError as error:
                if type(error) is not type(self.last_error):  # once per kind of error, not per attempt
                    log.warning("mqtt connection failed", broker=self.settings.address, error=error.message)
                self._failed(error)
            except Exception as error:  # the outermost loop of the connection, which must not end silently
                if type(self.last_error) is not FirstlineError:
                    log.exception("mqtt connection failed unexpectedly", broker=self.settings.address)
                self._failed(FirstlineError(f"The MQTT connection failed unexpectedly: {error!r}."))
            finally:
                established, self._connection = self._connection is not None, None
                self._up.clear()
                if established and self.on_lost is not None:
                    self.on_lost()
                await connection.close()
            at_once, self._reconnecting = self._reconnecting, False
            if at_once:
                continue
            attempts += 1
            max_s = self.settings.reconnect_max_s
            await self._pause(full_jitter_s(self.rng, attempts, base_s=_RECONNECT_BASE_S, max_s=max_s))

    def _failed(self, error: FirstlineError) -> None:
        # Stored without the frames (and sockets) of its traceback.
        error.__cause__ = error.__context__ = None
        self.last_error = error.with_traceback(None)
        self._tried.set()

    async def _pause(self, seconds: float) -> None:
        """Waits for a time, or until `connect` is called."""
        self._hurry.clear()
        await first_of(self.clock.sleep(seconds), self._hurry.wait())

    async def _establish(self, connection: Connection) -> None:
        await connection.open()
        self._connection = connection
        for topic_filter in tuple(self._filters):  # `subscribe` itself adds what a caller asks for from here on
            if topic_filter in self._filters:
                await connection.subscribe(topic_filter)
        if self.on_connected is not None:
            await self.on_connected()
        self.last_error = None
        self._up.set()
        self._tried.set()
        log.info("mqtt connected", broker=self.settings.address)

    def _dispatch(self, message: Message) -> None:
        handle = next((found for f, found in self._handlers.items() if matches(f, message.topic)), None)
        if handle is None:
            message.ack()
        else:
            handle(message)

    def _call_handler(self, handle: Callable[[Message], None], message: Message) -> None:
        try:
            handle(message)
        except Exception:  # the outermost loop of a message
            log.exception("mqtt handler failed", topic=message.topic)
        message.ack()

    def _start_handler(self, handler: Handler, message: Message) -> None:
        if message.qos == 0 and len(self._running) >= self.settings.receive_maximum:
            # Only the sender limits these; the broker limits those of QoS 1.
            log.warning("mqtt message dropped", topic=message.topic, why="too many handlers run")
            return
        task = asyncio.create_task(self._handle(handler, message))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _handle(self, handler: Handler, message: Message) -> None:
        try:
            async with self._slots:
                await handler(message)
        except Exception:  # the outermost loop of a message
            log.exception("mqtt handler failed", topic=message.topic)
        message.ack()
