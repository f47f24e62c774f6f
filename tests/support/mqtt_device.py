"""A device's side of the protocol over MQTT, and an application that listens, by the core's own client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Self

from support.broker import Broker

from firstline_core.protocol import mqtt_messages
from firstline_core.protocol.mqtt import MqttClient
from firstline_core.protocol.mqtt_messages import Message, MqttSettings, Publication, Topics
from firstline_core.types import InferRequest, InferResponse


class MqttDevice:
    """Asks one thing after the other; connected within its `async with`."""

    def __init__(self, name: str, settings: MqttSettings) -> None:
        self.topics = Topics(name)
        self.client = MqttClient(settings)
        self.got: asyncio.Queue[Message] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        await self.client.subscribe(self.topics.response, self.got.put)
        await self.client.connect(10)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    def publication(self, request: InferRequest, now_s: float = 0.0, **changes: object) -> Publication:
        """The request as a device publishes it, but for the changes."""
        publication = mqtt_messages.request_publication(
            request,
            topic=self.topics.request(request.model),
            response_topic=self.topics.response,
            correlation_data=request.request_id.encode(),
            now_s=now_s,
        )
        return replace(publication, **changes)

    async def message_to(self, publication: Publication) -> Message:
        """What comes back, whatever it is; it must be the next that comes."""
        await self.client.publish(publication)
        async with asyncio.timeout(10):
            message = await self.got.get()
        assert message.correlation_data == publication.correlation_data
        assert not message.retain
        return message

    async def ask(self, publication: Publication) -> InferResponse:
        return mqtt_messages.read_response(await self.message_to(publication))

    async def infer(self, request: InferRequest) -> InferResponse:
        return await self.ask(self.publication(request))


def device_at(broker: Broker, name: str, password: str = "") -> MqttDevice:
    """A device that is not yet connected; without a password, for a broker that lets anybody in."""
    username = name if password else ""
    settings = MqttSettings(broker.host, broker.port, client_id=name, username=username, password=password)
    return MqttDevice(name, settings)


@asynccontextmanager
async def hearing(broker: Broker, *topics: str, username: str = "", password: str = "") -> AsyncIterator[list[Message]]:
    """Connects an application to a broker, and yields the messages of these topics that it has heard."""
    messages: list[Message] = []

    async def note(message: Message) -> None:
        messages.append(message)

    client = MqttClient(
        MqttSettings(broker.host, broker.port, username=username, password=password, reconnect_max_s=0.2)
    )
    try:
        for topic in topics:
            await client.subscribe(topic, note)
        await client.connect(10)
        yield messages
    finally:
        await client.close()
