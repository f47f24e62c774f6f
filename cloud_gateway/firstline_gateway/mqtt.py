"""Answers requests over MQTT 5; the gateways of a group share the requests of all devices.

The identity is the device in the topic: the broker's ACL lets each device publish below its own name only. For the
same reason an answer goes only to that device's own response topic.

Mosquitto adds any client to a shared subscription and then drops messages it may not read (with 2.0.11 and one such
client: every second request). The group name therefore contains an HMAC of the gateways' password.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import math
import secrets
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from firstline_core.clock import Clock
from firstline_core.errors import (
    ConfigError,
    FirstlineError,
    LinkDownError,
    PayloadTooLargeError,
    ProtocolError,
    RequestError,
)
from firstline_core.protocol import mqtt_messages
from firstline_core.protocol.data_plane import DataPlane
from firstline_core.protocol.enrolment import device_principal
from firstline_core.protocol.http import BodyBudget, class_labels, run_decoder
from firstline_core.protocol.mqtt import MqttClient
from firstline_core.protocol.oip import Origin
from firstline_core.storage.secrets import read_secret
from firstline_core.telemetry import logs
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import TraceContext
from firstline_gateway.serving.data_plane import InFlight
from firstline_gateway.settings.settings import MqttSection
from firstline_gateway.telemetry.journal import record, unexpected

# A message has a topic and properties in addition to its payload.
_PACKET_OVERHEAD_BYTES = 64 * 1024
# How long the broker may take to confirm that it sends no more requests, before a drain goes on without.
_UNSUBSCRIBE_S = 2
# Expiry of an answer for a disconnected device, if the request had no deadline.
_ANSWER_EXPIRY_S = 60

log = logs.logger(__name__)


@dataclass(eq=False)
class MqttConsumer:
    """Takes requests from the broker, has the data plane answer them, and acknowledges after answering.

    A gateway that dies with a request in work leaves it unacknowledged; the device's own deadline then decides.

    Args:
        plane: answers.
        settings: the broker, the topics and how many requests may be in work.
        bodies: limits the bytes of requests in memory, as over HTTP.
        metrics: counts the outcomes.
        clock: measures durations.
        admit: returns if a device of this name may call, and raises otherwise: its requests are not answered even if
            the broker passes them on.

    Raises:
        ConfigError: the password file or a topic is invalid.
    """

    plane: DataPlane
    settings: MqttSection
    bodies: BodyBudget
    metrics: RequestMetrics
    clock: Clock
    admit: Callable[[str], Awaitable[None]]

    def __post_init__(self) -> None:
        settings = self.settings
        self.connection = connection_settings(settings, self.plane.limits.body_bytes)
        self._filter = mqtt_messages.shared_requests(_group(settings.group, self.connection.password), settings.prefix)
        self._in_work = InFlight()
        self._client = MqttClient(self.connection)
        self.metrics.gauge("mqtt_connected", "1 while the broker is connected.", lambda: float(self._client.connected))

    @property
    def connected(self) -> bool:
        return self._client.connected

    async def start(self) -> None:
        """Connects in the background, retries until it succeeds, and reconnects when the connection is lost."""
        await self._client.subscribe(self._filter, self._handle)
        self._client.start()

    async def stop_taking(self) -> None:
        """Has the broker give requests to other gateways from now on; a broker that does not confirm is not waited for.

        Returns once every request that this gateway was given is being worked on.
        """
        try:
            async with asyncio.timeout(_UNSUBSCRIBE_S):
                await self._client.unsubscribe(self._filter)
        except (TimeoutError, LinkDownError):
            log.warning("unsubscription not confirmed by broker")

    async def drain(self) -> None:
        """Returns once every request taken from the broker is answered."""
        await self._in_work.end()

    async def close(self) -> None:
        await self._client.close()

    async def _handle(self, message: mqtt_messages.Message) -> None:
        with self._in_work:
            await self._answer(message)

    async def _answer(self, message: mqtt_messages.Message) -> None:
        trace = mqtt_messages.trace_of(message)
        if trace is not None:
            logs.FACTS.set(trace.facts)  # until the request is decoded
        try:
            device, model = mqtt_messages.parse_request(message.topic, self.settings.prefix)
            response_topic = mqtt_messages.Topics(device, self.settings.prefix).response
        except (ProtocolError, ConfigError) as fault:
            self._drop(message, fault)
            return
        if message.retain:  # a broker sends it again for each new subscription, also for a shared one (Mosquitto 2.0)
            self._drop(message, RequestError("The broker retained this request; publish requests without retain."))
            return
        try:
            await self.admit(device)
        except FirstlineError as refusal:
            self._drop(message, refusal)
            return
        if message.response_topic != response_topic:
            requested = f"'{message.response_topic}'" if message.response_topic else "none"
            self._drop(
                message,
                RequestError(f"A request's response topic must be '{response_topic}', and it names {requested}."),
            )
            return
        started_s = self.clock.monotonic_s()
        principal = device_principal(device)
        publication, error = await self._work(message, model, response_topic, principal, trace)
        record(
            self.metrics,
            transport="mqtt",
            model=model,
            principal=principal,
            seconds=self.clock.monotonic_s() - started_s,
            error=error,
        )
        try:
            await self._client.publish(publication)
        except LinkDownError as lost:
            # The request stays unacknowledged with the connection, so the broker may give it to another gateway.
            log.warning("answer not published", device=device, error=lost.message)
        except FirstlineError as refused:
            log.error("answer refused by the broker", device=device, error=refused.message)
            if isinstance(refused, PayloadTooLargeError):  # the device may have another link
                await self._report_too_large(refused, response_topic, message.correlation_data)

    async def _report_too_large(self, refused: PayloadTooLargeError, topic: str, correlation_data: bytes) -> None:
        error = mqtt_messages.error_publication(
            refused, topic=topic, correlation_data=correlation_data, expiry_s=_ANSWER_EXPIRY_S
        )
        with contextlib.suppress(FirstlineError):  # the device's timeout tells it then
            await self._client.publish(error)

    async def _work(
        self,
        message: mqtt_messages.Message,
        model: str,
        response_topic: str,
        principal: str,
        trace: TraceContext | None,
    ) -> tuple[mqtt_messages.Publication, FirstlineError | None]:
        """Returns the answer to publish, and its error if it failed."""
        expiry_s = _ANSWER_EXPIRY_S
        origin = Origin(self.clock.monotonic_s(), principal, limits=self.plane.limits, trace=trace)
        read = partial(mqtt_messages.read_request, message, model, origin)
        try:
            with self.bodies.share(principal) as reserve:
                reserve(len(message.payload))
                request = await run_decoder(read, mqtt_messages.json_bytes(message))
                if request.deadline_s is not None:
                    left_s = math.ceil(request.deadline_s - self.clock.monotonic_s())
                    expiry_s = min(max(1, left_s), mqtt_messages.EXPIRY_MAX_S)
                response = await self.plane.infer(request)
            return (
                mqtt_messages.response_publication(
                    request,
                    response,
                    topic=response_topic,
                    labels=class_labels(self.plane, request, response),
                    correlation_data=message.correlation_data,
                    expiry_s=expiry_s,
                ),
                None,
            )
        except Exception as failure:  # noqa: BLE001 (the outermost loop of a request)
            error = failure if isinstance(failure, FirstlineError) else unexpected(failure, topic=message.topic)
            publication = mqtt_messages.error_publication(
                error, topic=response_topic, correlation_data=message.correlation_data, expiry_s=expiry_s, trace=trace
            )
            # Its traceback leads to frames that refer to the error: only the garbage collector would free the message.
            failure.__traceback__ = None
            return publication, error

    def _drop(self, message: mqtt_messages.Message, error: FirstlineError) -> None:
        """Counts a message that gets no answer."""
        self.metrics.count_error(error)
        log.warning("mqtt request dropped", topic=ascii(message.topic), error=error.message)


def check(settings: MqttSection) -> None:
    """Checks the files and topics that the settings name, without connecting.

    Raises:
        ConfigError: the password file, the authority's certificate or a topic is invalid.
    """
    mqtt_messages.shared_requests(settings.group, settings.prefix)
    mqtt_messages.tls_context(connection_settings(settings, 0))


def connection_settings(settings: MqttSection, body_bytes: int) -> mqtt_messages.MqttSettings:
    """Returns the settings of the connection to the broker.

    Args:
        settings: the `[mqtt]` section.
        body_bytes: the largest accepted payload (bytes).

    Raises:
        ConfigError: the password file cannot be read.
    """
    return mqtt_messages.MqttSettings(
        host=settings.host,
        port=settings.port,
        # Unique, because a broker ends the older of two connections of one client id.
        client_id=f"{settings.group}-{socket.gethostname()}-{secrets.token_hex(4)}",
        username=settings.username,
        password=read_secret(settings.password_file, "mqtt.password_file", "the password"),
        tls_ca_file=Path(settings.tls_ca_file) if settings.tls_ca_file else None,
        receive_maximum=settings.concurrency,
        maximum_packet_bytes=body_bytes + _PACKET_OVERHEAD_BYTES,
    )


def _group(group: str, password: str) -> str:
    """Returns the name of the shared subscription, which is equal for gateways with the same password."""
    if not password:
        return group
    return f"{group}-{hmac.new(password.encode(), b'shared subscription', hashlib.sha256).hexdigest()[:32]}"
