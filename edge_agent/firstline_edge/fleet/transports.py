"""How a device's twin goes to and fro: over MQTT as retained words, or by asking a gateway over HTTP."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Protocol

import msgspec

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, ProtocolError
from firstline_core.fleet import rest
from firstline_core.fleet.telemetry import Telemetry
from firstline_core.fleet.twin import Desired, Reported, read_document
from firstline_core.protocol.backoff import full_jitter_s
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.http_client import FleetHttp

if TYPE_CHECKING:
    from firstline_core.protocol.mqtt_messages import Message
    from firstline_edge.cloud.mqtt_link import MqttLink

log = logger(__name__)

_NOT_MODIFIED = 304
_BACKOFF_MAX_S = 900.0
_SPREAD = 0.2


class TwinTransport(Protocol):
    """The transport to the gateway, which stores this device's twin.

    Attributes:
        connections: number of connections so far; messages of an earlier one may be lost.
    """

    @property
    def connections(self) -> int: ...

    async def desired(self, known: int) -> Desired:
        """The next word of what is desired; waits for it, however long.

        Args:
            known: the revision that this device knows; 0 for none.
        """
        ...

    async def report(self, reported: Reported) -> None:
        """Raises `FirstlineError` where it was not heard."""
        ...

    async def count(self, telemetry: Telemetry) -> None:
        """Raises `FirstlineError` where it was not heard."""
        ...


class HttpTransport:
    """Polls with jitter, which prevents a thundering herd; less often while the gateway does not answer."""

    connections = 0  # each word is answered, and kept once it is

    def __init__(self, http: FleetHttp, poll_s: float, clock: Clock, rng: random.Random) -> None:
        self._http = http
        self._poll_s = poll_s
        self._clock = clock
        self._rng = rng
        self._known = ""
        self._asked = False
        self._failures = 0

    async def desired(self, known: int) -> Desired:
        """See `Way`."""
        while True:
            if self._asked:
                await self._clock.sleep(self._pause_s())
            self._asked = True
            try:
                headers = {"If-None-Match": self._known} if self._known else {}
                status, told, body = await self._http.ask("GET", rest.TWIN_PATH, headers=headers)
                self._failures = 0
                if status == _NOT_MODIFIED:
                    continue
                found = read_document(body, Desired, "What the gateway desires of this device")
            except FirstlineError as error:
                if not self._failures:
                    log.warning("the fleet is not heard", error=error.message)
                self._failures += 1
                continue
            self._known = told.get("etag", "")
            return found

    def _pause_s(self) -> float:
        pause_s = self._poll_s * self._rng.uniform(1 - _SPREAD, 1 + _SPREAD)
        if self._failures > 1:
            pause_s += full_jitter_s(self._rng, self._failures - 1, base_s=self._poll_s, max_s=_BACKOFF_MAX_S)
        return pause_s

    async def report(self, reported: Reported) -> None:
        """See `Way`."""
        await self._say("PUT", rest.REPORTED_PATH, msgspec.json.encode(reported))

    async def count(self, telemetry: Telemetry) -> None:
        """See `Way`."""
        await self._say("POST", rest.TELEMETRY_PATH, msgspec.json.encode(telemetry))

    async def _say(self, method: str, path: str, content: bytes) -> None:
        await self._http.ask(method, path, headers={"Content-Type": "application/json"}, content=content)


class MqttTransport:
    """Listens to the retained topic `desired`. Of several gateways' words the one with the highest number holds.

    A broker's retained message may be older than the state that this device has: it, or the gateway's store, was
    restored from a
    backup. Then the gateway learns from the next report which revision is known here, and numbers beyond it.
    """

    def __init__(self, link: MqttLink) -> None:
        self._link = link
        self._heard: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)
        self._listening = False

    async def desired(self, known: int) -> Desired:
        """See `Way`."""
        while not self._listening:
            self._listening = True  # it is renewed with each connection from now on
            try:
                await self._link.listen(self._link.topics.desired, self._hear)
            except FirstlineError as error:
                log.warning("the broker does not let this device hear the fleet", error=error.message)
        while True:
            message = await self._heard.get()
            try:
                found = read_document(message.payload, Desired, "What the gateway desires of this device")
            except ProtocolError as error:
                log.warning("what the fleet desires is not understood", error=error.message)
                continue
            if found.revision >= known:
                return found
            log.info("what the fleet desired before is not heeded", revision=found.revision, known=known)

    def _hear(self, message: Message) -> None:
        if self._heard.full():  # the newest alone matters
            self._heard.get_nowait()
        self._heard.put_nowait(message)

    @property
    def connections(self) -> int:
        """See `Way`."""
        return self._link.connections

    async def report(self, reported: Reported) -> None:
        """See `Way`."""
        await self._link.say(self._link.topics.reported, msgspec.json.encode(reported), retain=True)

    async def count(self, telemetry: Telemetry) -> None:
        """See `Way`."""
        await self._link.say(self._link.topics.telemetry, msgspec.json.encode(telemetry))
