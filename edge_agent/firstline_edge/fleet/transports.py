"""The transports of the fleet's messages: MQTT with retained messages; without a broker, and while it is away, HTTP."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

import msgspec

from firstline_core.clock import Clock, first_of
from firstline_core.errors import ConfigError, FirstlineError, LinkDownError, LinkError, ProtocolError
from firstline_core.fleet import rest
from firstline_core.fleet.telemetry import Telemetry
from firstline_core.fleet.twin import Desired, Reported, read_document
from firstline_core.ids import new_request_id
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.http_client import FleetHttp

if TYPE_CHECKING:
    from firstline_core.protocol.mqtt_messages import Message
    from firstline_edge.cloud.links import Links
    from firstline_edge.cloud.mqtt_link import MqttLink

log = logger(__name__)

_BACKOFF_MAX_S = 900.0
_SUBSCRIBE_AGAIN_S = 300.0  # after a refusal: the broker may have other rules then
_SPREAD = 0.2
_DESIRED = "What the gateway desires of this device"


class FleetTransport(Protocol):
    """Carries the twin and the telemetry between this device and the gateway; requests go over a `cloud.link.Link`.

    Attributes:
        session: name of this process, which its last will has too.
        connections: number of connections so far; messages of an earlier one may be lost.
    """

    @property
    def session(self) -> str: ...

    @property
    def connections(self) -> int: ...

    async def desired(self, revision: int) -> Desired:
        """Returns the next desired state; waits for it without a limit.

        Args:
            revision: of the state that this device has; 0 for none.
        """

    async def report(self, reported: Reported) -> None:
        """Sends the actual state; raises `FirstlineError` if it did not arrive."""

    async def send_telemetry(self, telemetry: Telemetry) -> None:
        """Sends counts and ended promises; raises `FirstlineError` if they did not arrive.

        A broker may confirm counts that no gateway receives, but not promises that have ended.
        """


@dataclass(eq=False)
class HttpTransport:
    """Polls with jitter, which prevents a thundering herd; less often while the gateway does not answer.

    Attributes:
        instead_of: polls only while the broker of this link is away, and ignores a state that is older than this device
            knows; None to poll always.
    """

    connections = 0  # every message is acknowledged

    http: FleetHttp
    poll_s: float
    clock: Clock
    rng: random.Random
    instead_of: MqttLink | None = None
    session: str = field(default_factory=new_request_id, init=False)
    _etag: str = field(default="", init=False)
    _polled: bool = field(default=False, init=False)
    _failures: int = field(default=0, init=False)

    async def desired(self, revision: int) -> Desired:
        """See `FleetTransport`."""
        while True:
            if self._polled or self.instead_of is not None:
                await self.clock.sleep(self._pause_s())
            if self.instead_of is not None and self.instead_of.connected:
                self._failures = 0
                continue
            self._polled = True
            try:
                headers = {"If-None-Match": self._etag} if self._etag else {}
                status, response_headers, body = await self.http.exchange("GET", rest.TWIN_PATH, headers=headers)
                desired = None if status == HTTPStatus.NOT_MODIFIED else read_document(body, Desired, _DESIRED)
            except FirstlineError as error:
                if not self._failures:
                    log.warning("desired state not fetched", error=error.message)
                self._failures += 1
                continue
            self._failures = 0
            if desired is None:
                continue
            self._etag = response_headers.get("etag", "")
            if self.instead_of is None or desired.revision >= revision:
                return desired
            log.info("outdated desired state ignored", revision=desired.revision, known=revision)

    def _pause_s(self) -> float:
        pause_s = self.poll_s * self.rng.uniform(1 - _SPREAD, 1 + _SPREAD)
        if self._failures > 1:
            pause_s += full_jitter_s(self.rng, self._failures - 1, base_s=self.poll_s, max_s=_BACKOFF_MAX_S)
        return pause_s

    async def report(self, reported: Reported) -> None:
        """See `FleetTransport`."""
        await self._send("PUT", rest.REPORTED_PATH, reported)

    async def send_telemetry(self, telemetry: Telemetry) -> None:
        """See `FleetTransport`."""
        await self._send("POST", rest.TELEMETRY_PATH, telemetry)

    async def _send(self, method: str, path: str, document: Reported | Telemetry) -> None:
        headers = {"Content-Type": "application/json"}
        content = msgspec.json.encode(document)
        status, _headers, _body = await self.http.exchange(method, path, headers=headers, content=content)
        if status != HTTPStatus.NO_CONTENT:  # the page of a captive portal: the gateway has not received it
            raise ProtocolError(
                f"The answer to a report is not a Firstline gateway's (HTTP status {status}); check the link's url, "
                "and whether a proxy between this device and the gateway wants a login."
            )


class MqttTransport:
    """Receives the retained topic `desired`; of several gateways' messages the one with the highest revision counts.

    A broker's retained message may be older than the state that this device has, because the broker, or the gateway's
    database, was restored from a backup. The gateway then learns from the next report which revision this device has,
    and continues after it.

    Args:
        link: to the broker.
        http: used while the broker is away; None without an HTTP link.
    """

    def __init__(self, link: MqttLink, http: HttpTransport | None = None) -> None:
        self._link = link
        self._http = http
        self._messages: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)
        self._subscribed = False

    async def desired(self, revision: int) -> Desired:
        """See `FleetTransport`."""
        if self._http is None:
            return await self._received(revision)
        tasks = [asyncio.create_task(each) for each in (self._received(revision), self._http.desired(revision))]
        await first_of(*tasks)
        return max((task.result() for task in tasks if not task.cancelled()), key=lambda desired: desired.revision)

    async def _received(self, revision: int) -> Desired:
        while not self._subscribed:
            try:
                await self._link.listen(self._link.topics.desired, self._receive)
                self._subscribed = True  # the link renews it with each connection
            except FirstlineError as error:
                log.warning("desired state subscription refused", error=error.message)
                await self._link.clock.sleep(_SUBSCRIBE_AGAIN_S)
        while True:
            message = await self._messages.get()
            try:
                desired = read_document(message.payload, Desired, _DESIRED)
            except ProtocolError as error:
                log.warning("desired state malformed", error=error.message)
                continue
            if desired.revision >= revision:
                return desired
            log.info("outdated desired state ignored", revision=desired.revision, known=revision)

    def _receive(self, message: Message) -> None:
        if self._messages.full():  # only the newest message counts
            self._messages.get_nowait()
        self._messages.put_nowait(message)

    @property
    def session(self) -> str:
        """See `FleetTransport`."""
        return self._link.session_id

    @property
    def connections(self) -> int:
        """See `FleetTransport`."""
        return self._link.connections

    async def report(self, reported: Reported) -> None:
        """See `FleetTransport`."""
        try:
            await self._link.publish_document(self._link.topics.reported, msgspec.json.encode(reported), retain=True)
        except LinkError:
            if self._http is None:
                raise
            await self._http.report(reported)

    async def send_telemetry(self, telemetry: Telemetry) -> None:
        """See `FleetTransport`."""
        try:
            accepted = await self._link.publish_document(self._link.topics.telemetry, msgspec.json.encode(telemetry))
            if telemetry.ended and not accepted:
                raise LinkDownError("No gateway listens to the reports at the MQTT broker.")
        except LinkError:
            if self._http is None:
                raise
            await self._http.send_telemetry(telemetry)


def fleet_transport(
    links: Links, http: FleetHttp | None, poll_s: float, clock: Clock, rng: random.Random
) -> FleetTransport:
    """Returns the transport of the fleet's messages.

    Raises:
        ConfigError: no link carries them.
    """
    broker = links.mqtt[0] if links.mqtt else None
    polling = HttpTransport(http, poll_s, clock, rng, broker) if http is not None else None
    if broker is not None:
        return MqttTransport(broker, polling)
    if polling is None:
        raise ConfigError(
            'No link of this device carries the fleet\'s messages; add [[links]] with kind = "http" or "mqtt", or set '
            "fleet.enabled = false."
        )
    return polling
