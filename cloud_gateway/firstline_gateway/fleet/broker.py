"""The fleet over MQTT: reads what devices publish, and publishes each device's desired document as a retained message.

Every replica may subscribe: reports are numbered, so that a second replica changes nothing. Brokers send retained
messages only to subscriptions that are not shared, and a gateway needs them after a restart to know its fleet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import msgspec

from firstline_core.clock import Clock
from firstline_core.errors import (
    CapacityError,
    ConfigError,
    FirstlineError,
    PayloadTooLargeError,
    ProtocolError,
    UnauthorizedError,
)
from firstline_core.fleet.telemetry import Telemetry
from firstline_core.fleet.twin import LIMIT_BYTES, Desired, Reported, read_document
from firstline_core.protocol.mqtt import MqttClient
from firstline_core.protocol.mqtt_messages import Message, MqttSettings, Publication, Topics
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_gateway.background import PeriodicTask
from firstline_gateway.fleet.fleet import Fleet

_LEAVES = ("state", "reported", "telemetry")
_AT_ONCE = 256
# A broker that refuses as many topics in one round may refuse all: the next round continues with the others.
_REFUSED_LIMIT = 1000
# Longest delay until desired documents of another replica are published.
_LOOK_S = 2.0

log = logger(__name__)


class StateMessage(msgspec.Struct):
    """A device's `state` topic: "online", or "offline" as its last will says."""

    state: str
    session_id: Annotated[str, msgspec.Meta(max_length=64)]


@dataclass(eq=False)
class FleetBroker:
    """Follows the devices of a broker, and publishes their desired documents.

    Args:
        fleet: stores the reports of devices, and their desired documents.
        connection: to the broker, with a client id of its own.
        prefix: first levels of every topic.
        admit: returns if the messages of a device are heard, and raises otherwise.
        due: set when the desired state of devices has changed; cleared here.
        metrics: the gateway's; this adds its own.
        clock: paces the look-ups of documents that another replica has changed.
    """

    fleet: Fleet
    connection: MqttSettings
    prefix: str
    admit: Callable[[str], Awaitable[None]]
    due: asyncio.Event
    metrics: RequestMetrics
    clock: Clock

    def __post_init__(self) -> None:
        self._client = MqttClient(self.connection)
        self.metrics.gauge(
            "fleet_mqtt_connected",
            "1 while the fleet's connection to the broker is established.",
            lambda: float(self._client.connected),
        )
        self._refused: set[str] = set()  # devices whose topics the broker refused the last time
        self._after = ""  # the device behind which the next round continues; "" to begin with the oldest document
        self._refusals = self.metrics.counter(
            "fleet_mqtt_refused_total", "Desired documents that the broker refused; each is sent again."
        )
        self._publishing = PeriodicTask(
            "desired state", self._publish, interval_s=_LOOK_S, clock=self.clock, wake=self.due
        )

    async def start(self) -> None:
        """Connects in the background, retries until it succeeds, and reconnects when the connection is lost."""
        for leaf in _LEAVES:
            await self._client.subscribe(f"{self.prefix}/+/{leaf}", partial(self._hear, leaf))
        self._client.start()
        await self._publishing.start()

    async def close(self) -> None:
        await self._publishing.close()
        await self._client.close()

    async def _hear(self, leaf: str, message: Message) -> None:
        """Handles one message; an unreadable message is logged and dropped, as no sender waits for an answer."""
        device = message.topic.removeprefix(f"{self.prefix}/").removesuffix(f"/{leaf}")
        try:
            Topics(device, self.prefix)  # raises ConfigError for a name that no device can have
            await self.admit(device)
            await self._take(device, leaf, message.payload)
        except UnauthorizedError as error:
            log.info("device message refused", topic=ascii(message.topic), error=error.message)
        except CapacityError as error:
            log.warning("device message not stored", topic=ascii(message.topic), error=error.message)
        except FirstlineError as error:
            log.warning("device message not readable", topic=ascii(message.topic), error=error.message)

    async def _take(self, device: str, leaf: str, payload: bytes) -> None:
        where = f"The {leaf} message of {device}"
        if leaf == "reported":
            await self.fleet.report(device, read_document(payload, Reported, where))
        elif leaf == "telemetry":
            if b'"session"' in payload[:LIMIT_BYTES]:  # else it is another fact, such as an alarm
                await self.fleet.take_telemetry(device, read_document(payload, Telemetry, where))
        else:
            state = read_document(payload, StateMessage, where)
            take = self.fleet.take_start if state.state == "online" else self.fleet.take_end
            await take(device, state.session_id)

    async def _publish(self) -> None:
        """Publishes the due documents while there is a connection.

        Raises:
            CapacityError: the store refuses.
            LinkError: the connection is lost.
        """
        count = 0
        while self._client.connected and count < _REFUSED_LIMIT:
            due = await self.fleet.unpublished(_AT_ONCE, self._after)
            refused = await self._publish_some(due)
            if len(due) < _AT_ONCE:
                self._after = ""
                return
            if refused:  # they are still due, so that the next page would begin with them
                self._after = refused[-1]
            count += len(refused)

    async def _publish_some(self, due: Sequence[tuple[str, Desired]]) -> list[str]:
        """Publishes some of the due documents; returns the devices whose topics the broker refused, in their order."""
        done: dict[str, int] = {}
        refused: list[str] = []
        for device, desired in due:
            try:
                topic = Topics(device, self.prefix).desired
                await self._client.publish(Publication(topic, msgspec.json.encode(desired), retain=True))
            except ConfigError as error:  # a name that no topic can carry
                log.error("device name not usable over MQTT", device=ascii(device), error=error.message)
            except PayloadTooLargeError as error:  # the documents of other devices must not wait for this one
                log.error("desired state not taken by the broker", device=device, error=error.message)
            except (UnauthorizedError, ProtocolError) as error:  # of this topic; a later round tries it again
                refused.append(device)
                self._refusals.inc()
                if device not in self._refused:
                    log.error("desired state refused by the broker", device=device, error=error.message)
                continue
            done[device] = desired.revision
        self._refused = (self._refused | set(refused)) - done.keys()
        if done:
            await self.fleet.mark_published(done)
        return refused
