"""An MQTT 5 client that stays connected: reconnects, renews subscriptions, runs handlers. See `mqtt_connection.py`."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

from firstline_core.clock import SYSTEM_CLOCK, Clock, first_of
from firstline_core.errors import FirstlineError, LinkDownError
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.protocol.mqtt_connection import Connection
from firstline_core.protocol.mqtt_messages import Message, MqttSettings, Publication
from firstline_core.telemetry.logs import logger

__all__ = ["Handler", "Message", "MqttClient", "MqttSettings", "Publication"]

Handler = Callable[[Message], Awaitable[None]]

# A connection that ended sooner counts as one that failed: two of one client id take it from each other for ever.
_STEADY_S = 30.0
_RECONNECT_BASE_S = 0.5

log = logger(__name__)


class MqttClient:
    """Keeps one connection to a broker.

    The wait between attempts is drawn from [0, min(cap, 0.5 * 2^attempts)]: a fleet that lost its broker together
    must not return together, and paho's own reconnection doubles without any jitter.

    Messages are acknowledged when their handler has returned; with `manual_ack`, when it calls `message.ack()`.
    A message whose handler failed stays unacknowledged, so that the broker delivers it again on the next
    connection; of those at most half of `receive_maximum` are held back, then the oldest is acknowledged after
    all: otherwise messages that always fail would in the end keep every other one out. Acknowledgements go out
    as handlers end, not in the order of arrival (MQTT 5, section 4.6, asks for that): brokers match them by
    packet id, and one slow request must not hold up the rest.

    Args:
        settings: where to, and how.
        will: published by the broker when this client vanishes.
        manual_ack: whether handlers acknowledge by themselves.
        on_connected: awaited after each connection, once subscriptions are renewed.
        on_lost: called when an established connection is lost or closed.
        session_expiry_s: how long the broker keeps messages for us while we are away; 0 starts afresh each time.
    """

    def __init__(
        self,
        settings: MqttSettings,
        *,
        will: Publication | None = None,
        manual_ack: bool = False,
        on_connected: Callable[[], Awaitable[None]] | None = None,
        on_lost: Callable[[], None] | None = None,
        session_expiry_s: int = 0,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._will = will
        self._manual_ack = manual_ack
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._session_expiry_s = session_expiry_s
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 (spreads load, guards nothing)
        self._handlers: dict[str, Callable[[Message], None]] = {}
        self._filters: dict[str, None] = {}  # in order; what is subscribed to, now and after a reconnection
        self._running: set[asyncio.Task[None]] = set()
        # The broker holds back what exceeds `receive_maximum`, but not every broker counts well.
        self._slots = asyncio.Semaphore(settings.receive_maximum)
        self._held_back: deque[Message] = deque()
        self._connection: Connection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._reconnecting = False
        self._up = asyncio.Event()
        self._tried = asyncio.Event()
        self._hurry = asyncio.Event()
        self._last_error: FirstlineError | None = None

    @property
    def connected(self) -> bool:
        """Whether the broker greeted us and every subscription is in force."""
        return self._up.is_set() and self._connection is not None and self._connection.alive

    @property
    def last_error(self) -> FirstlineError | None:
        """Why the latest attempt to connect failed; None once one succeeded."""
        return self._last_error

    def start(self) -> None:
        """Starts to connect, and to stay connected, without waiting for it."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_connected())

    async def connect(self, timeout_s: float) -> None:
        """Starts, and waits until connected, beginning with an attempt now; they go on until `close`.

        Raises:
            LinkDownError: no connection within `timeout_s`.
            FirstlineError: what the broker said at the latest attempt, e.g. `UnauthorizedError`.
        """
        self.start()
        self._hurry.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            raise self._last_error or LinkDownError(
                f"No connection to the MQTT broker at {self._settings.address} within {timeout_s:g} s."
            ) from None

    async def first_attempt(self) -> None:
        """Returns once the first attempt to connect has ended, either way; at once ever after."""
        await self._tried.wait()

    async def reconnect(self) -> None:
        """Ends the connection, without the will, for another one at once: with other credentials, say."""
        if self._connection is not None:
            self._reconnecting = True
            await self._connection.close()

    async def publish(self, publication: Publication) -> bool:
        """Returns when the broker has acknowledged; nothing is queued while there is no connection.

        Returns:
            False if the broker says that nobody subscribes to the topic (brokers need not say so).

        Raises:
            LinkDownError: not connected, or the connection was lost before the acknowledgement.
            PayloadTooLargeError, UnauthorizedError, CapacityError, ProtocolError: the broker refused it.
        """
        if self._connection is None:
            raise LinkDownError(f"Not connected to the MQTT broker at {self._settings.address}.")
        return await self._connection.publish(publication)

    async def subscribe(self, topic_filter: str, handler: Handler) -> None:
        """Has `handler` called for each message that matches, from now on and over reconnections.

        A message goes to the first filter that it matches. While there is no connection this only takes note.

        Raises:
            UnauthorizedError, CapacityError, ProtocolError: the broker refused it.
        """
        await self._subscribe(topic_filter, partial(self._start_handler, handler))

    async def listen(self, topic_filter: str, hear: Callable[[Message], None]) -> None:
        """As `subscribe`, for what waits for nothing: `hear` is called in the very turn that brings a message.

        Raises:
            UnauthorizedError, CapacityError, ProtocolError: the broker refused it.
        """
        await self._subscribe(topic_filter, partial(self._call_handler, hear))

    async def _subscribe(self, topic_filter: str, handle: Callable[[Message], None]) -> None:
        self._handlers[topic_filter] = handle
        self._filters[topic_filter] = None
        if self.connected and self._connection is not None:
            await self._connection.subscribe(topic_filter)

    async def unsubscribe(self, topic_filter: str) -> None:
        """Asks for no more messages of a filter; those that are here already are still handled.

        Raises:
            LinkDownError: the connection was lost before the broker confirmed; it is not renewed on the next one.
        """
        if topic_filter not in self._filters:
            return
        del self._filters[topic_filter]  # the handler stays: until the broker has confirmed, messages may come
        if self.connected and self._connection is not None:
            await self._connection.unsubscribe(topic_filter)

    async def close(self) -> None:
        """Says goodbye, without the will, and ends running handlers."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _keep_connected(self) -> None:
        attempts = 0
        while True:
            connection = Connection(
                self._settings.renewed(),
                will=self._will,
                # Within this client's life a session is resumed; what an earlier process left is resumed too,
                # if and only if the caller asked the broker to keep it.
                clean_start=self._session_expiry_s == 0,
                session_expiry_s=self._session_expiry_s,
                on_message=self._dispatch,
            )
            try:
                await self._establish(connection)
                since_s = asyncio.get_running_loop().time()
                why = await asyncio.shield(connection.lost)
                if asyncio.get_running_loop().time() - since_s > _STEADY_S:
                    attempts = 0
                if not self._reconnecting:
                    log.warning("mqtt connection lost", broker=self._settings.address, why=why)
            except FirstlineError as error:
                if type(error) is not type(self._last_error):  # once a kind, not once an attempt
                    log.warning("mqtt connection failed", broker=self._settings.address, error=error.message)
                self._failed(error)
            except Exception as error:  # the outermost loop of the connection, which must not end unheard
                if type(self._last_error) is not FirstlineError:
                    log.exception("mqtt connection failed unexpectedly", broker=self._settings.address)
                self._failed(FirstlineError(f"The MQTT connection failed unexpectedly: {error!r}."))
            finally:
                established, self._connection = self._connection is not None, None
                self._up.clear()
                if established and self._on_lost is not None:
                    self._on_lost()
                self._held_back.clear()
                await connection.close()
            at_once, self._reconnecting = self._reconnecting, False
            if at_once:
                continue
            attempts += 1
            max_s = self._settings.reconnect_max_s
            await self._pause(full_jitter_s(self._rng, attempts, base_s=_RECONNECT_BASE_S, max_s=max_s))

    def _failed(self, error: FirstlineError) -> None:
        # Kept, so without the frames (and sockets) that its traceback would keep with it.
        error.__cause__ = error.__context__ = None
        self._last_error = error.with_traceback(None)
        self._tried.set()

    async def _pause(self, seconds: float) -> None:
        """Until the time is over, or somebody calls `connect`."""
        self._hurry.clear()
        await first_of(self._clock.sleep(seconds), self._hurry.wait())

    async def _establish(self, connection: Connection) -> None:
        await connection.open()
        self._connection = connection
        for topic_filter in tuple(self._filters):
            await connection.subscribe(topic_filter)
        if self._on_connected is not None:
            await self._on_connected()
        self._last_error = None
        self._up.set()
        self._tried.set()
        log.info("mqtt connected", broker=self._settings.address)

    def _dispatch(self, message: Message) -> None:
        handle = next((found for f, found in self._handlers.items() if matches(f, message.topic)), None)
        if handle is None:
            message.ack()
        else:
            handle(message)

    def _call_handler(self, hear: Callable[[Message], None], message: Message) -> None:
        try:
            hear(message)
        except Exception:  # the outermost loop of a message
            log.exception("mqtt handler failed", topic=message.topic)
            self._hold_back(message)
        else:
            if not self._manual_ack:
                message.ack()

    def _start_handler(self, handler: Handler, message: Message) -> None:
        if message.qos == 0 and len(self._running) >= self._settings.receive_maximum:
            # Nothing bounds these but the sender; those of QoS 1 are bounded by the broker.
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
            self._hold_back(message)
        else:
            if not self._manual_ack:
                message.ack()

    def _hold_back(self, message: Message) -> None:
        self._held_back.append(message)
        if len(self._held_back) > self._settings.receive_maximum // 2:
            self._held_back.popleft().ack()


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a topic is of a filter, wildcards and shared subscriptions included (MQTT 5, section 4.7)."""
    if topic_filter.startswith("$share/"):
        topic_filter = topic_filter.split("/", 2)[2]
    if topic_filter == topic:
        return True
    wanted, levels = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for position, level in enumerate(wanted):
        if level == "#":
            return True
        if position >= len(levels) or level not in ("+", levels[position]):
            return False
    return len(wanted) == len(levels)
