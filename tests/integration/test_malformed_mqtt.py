"""Messages that no device of ours sends, through a real Mosquitto: refused in an envelope, or dropped, never fatal."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import httpx
import pytest
from support.images import grey, images
from support.inference import digits_request
from support.keys import create_key
from support.line import DEVICE, Line, line
from support.mqtt_device import MqttDevice

from firstline.client.async_client import AsyncClient
from firstline_core.errors import FirstlineError
from firstline_core.ids import new_request_id
from firstline_core.protocol import mqtt_messages
from firstline_core.protocol.mqtt_messages import DEADLINE_MS, MODEL_VERSION, Message, MqttSettings, Publication, Topics
from firstline_gateway.settings.settings import StoreSection

pytestmark = pytest.mark.mosquitto

NAME = "press-7"
TOPICS = Topics(NAME)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    folder = tmp_path_factory.mktemp("line")
    with line(folder, transport="mqtt", environ={"FIRSTLINE_GATEWAY_API__OPEN_METRICS": "true"}) as found:
        create_key(StoreSection(url=f"sqlite:///{folder}/gateway.db"), NAME, "device")
        yield found
        found.check_logs()


@pytest.fixture
async def device(running: Line) -> AsyncIterator[MqttDevice]:
    assert running.broker_port is not None
    async with MqttDevice(NAME, MqttSettings("127.0.0.1", running.broker_port, client_id=NAME)) as found:
        yield found
        # Whatever it was sent, it goes on, and nothing but the answers that were awaited came.
        assert (await found.ask(good())).answer is not None
        assert found.got.empty()


def good() -> Publication:
    return MqttDevice(NAME, MqttSettings("127.0.0.1")).publication(digits_request(images(grey())))


def without(properties: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in properties.items() if key != name}


GOOD = good()
LENGTH = mqtt_messages.HEADER_LENGTH
MALFORMED: dict[str, tuple[Publication, str]] = {
    "empty": (replace(GOOD, payload=b""), "invalid_tensor"),
    "garbage": (replace(GOOD, payload=bytes(range(256)) * 4), "invalid_tensor"),
    "cut short": (replace(GOOD, payload=GOOD.payload[:-1]), "invalid_tensor"),
    "more after it": (replace(GOOD, payload=GOOD.payload + b"\0"), "invalid_tensor"),
    "deep": (replace(GOOD, payload=b"[" * 100_000, properties={}), "invalid_tensor"),
    "NaN": (replace(GOOD, payload=b'{"inputs":[NaN]}', properties={}), "invalid_tensor"),
    "not UTF-8": (replace(GOOD, payload=b'{"inputs":"\xff"}', properties={}), "invalid_tensor"),
    "no length": (replace(GOOD, properties=without(GOOD.properties, LENGTH)), "invalid_tensor"),
    "length zero": (replace(GOOD, properties=GOOD.properties | {LENGTH: "0"}), "invalid_tensor"),
    "length text": (replace(GOOD, properties=GOOD.properties | {LENGTH: "many"}), "invalid_tensor"),
    "length huge": (replace(GOOD, properties=GOOD.properties | {LENGTH: "9" * 6_000}), "invalid_tensor"),
    "deadline text": (replace(GOOD, properties=GOOD.properties | {DEADLINE_MS: "soon"}), "invalid_tensor"),
    "deadline negative": (replace(GOOD, properties=GOOD.properties | {DEADLINE_MS: "-1"}), "invalid_tensor"),
    "deadline zero": (replace(GOOD, properties=GOOD.properties | {DEADLINE_MS: "0"}), "deadline_exceeded"),
    "no such version": (replace(GOOD, properties=GOOD.properties | {MODEL_VERSION: "x"}), "unknown_model"),
    "no such model": (replace(GOOD, topic=TOPICS.request("nobody")), "unknown_model"),
    "a model with spaces": (replace(GOOD, topic=f"firstline/v1/{NAME}/req/ a b "), "unknown_model"),
    "no correlation": (replace(GOOD, payload=b"", correlation_data=b""), "invalid_tensor"),
    "long correlation": (replace(GOOD, payload=b"", correlation_data=b"\0\xff" * 3_000), "invalid_tensor"),
    "at most once": (replace(GOOD, payload=b"", qos=0), "invalid_tensor"),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_refused_in_an_envelope(device: MqttDevice, name: str) -> None:
    publication, code = MALFORMED[name]
    answer = await device.message_to(publication)
    assert answer.properties[mqtt_messages.STATUS] == code
    with pytest.raises(FirstlineError, match=r"\.$") as refused:
        mqtt_messages.read_response(answer)
    assert refused.value.code == code


@pytest.mark.parametrize("properties", [{}, {LENGTH: "5", mqtt_messages.TRACEPARENT: "\u2603" * 100}])
@pytest.mark.parametrize(
    "response_topic", ["", TOPICS.response + "/x", Topics("press-8").response, "firstline/v1/press-8/state", "/"]
)
async def test_dropped_without_a_response_topic_of_its_own(
    device: MqttDevice, running: Line, properties: dict[str, str], response_topic: str
) -> None:
    messages: list[Message] = []

    async def hear(message: Message) -> None:
        messages.append(message)

    if response_topic:
        await device.client.subscribe(response_topic, hear)
    before = await dropped(running)
    await device.client.publish(replace(good(), response_topic=response_topic, properties=properties))
    async with asyncio.timeout(10):
        while await dropped(running) == before:  # noqa: ASYNC110 (what is awaited is in another process)
            await asyncio.sleep(0.01)
    assert messages == []


async def dropped(running: Line) -> int:
    async with httpx.AsyncClient() as http:
        metrics = await http.get(f"{running.gateway.url}/metrics")
    lines = [
        line
        for line in metrics.raise_for_status().text.splitlines()
        if line.startswith("firstline_gateway_errors_total")
    ]
    return sum(int(float(line.split()[-1])) for line in lines if 'code="invalid_request"' in line)


@pytest.mark.parametrize(
    "topic", ["firstline/v1/ /req/digits", f"firstline/v1/{'d' * 2000}/req/digits", "firstline/v1//req/"]
)
async def test_a_topic_of_no_device_is_dropped(device: MqttDevice, topic: str) -> None:
    await device.client.publish(replace(good(), topic=topic))


async def test_expensive_messages_are_refused_unread(device: MqttDevice) -> None:
    """Properties in their thousands, or hundreds before a large payload: paho alone takes 10 s over either."""
    await device.client.publish(replace(good(), properties={f"{number:x}": "" for number in range(20_000)}))
    large = replace(good(), payload=b"\0" * 20_000_000, properties={f"{number:x}": "" for number in range(800)})
    async with asyncio.timeout(5):
        assert (await device.message_to(large)).properties[mqtt_messages.STATUS] == "payload_too_large"
        assert (await device.ask(good())).answer is not None


async def test_device_ignores_unrequested_answers(device: MqttDevice, running: Line) -> None:
    own = Topics(DEVICE).response
    answer = await device.message_to(good())
    for publication in (
        Publication(own, b""),
        Publication(own, b"\xff" * 100, {mqtt_messages.STATUS: "ok"}, correlation_data=b"\xff"),
        Publication(own, answer.payload, answer.properties, correlation_data=new_request_id().encode()),
        Publication(own, b"{}", {mqtt_messages.STATUS: "no such status"}, correlation_data=b"x" * 6_000),
        Publication(own, b"{}", qos=0, retain=True),
        Publication(own, b"", retain=True),
    ):
        await device.client.publish(publication)
    async with AsyncClient(running.agent.url) as client:
        response = await client.infer("digits", {"image": grey()}, route="cloud")
    assert response.answer.tier == "cloud"
