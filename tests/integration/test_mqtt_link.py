"""The device's MQTT link, a real Mosquitto between it and a small gateway."""

import asyncio
import json
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
from support.broker import Broker
from support.escalations import request, response
from support.mqtt_device import hearing
from support.proxy import ChaosProxy
from support.waiting import until

from firstline_core import errors
from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.protocol import mqtt_messages
from firstline_core.protocol.mqtt import MqttClient
from firstline_core.protocol.mqtt_messages import Message, MqttSettings, Topics, parse_request, shared_requests
from firstline_core.protocol.oip import Origin
from firstline_core.types import InferRequest, InferResponse, Tensor
from firstline_edge.cloud.breaker import CircuitBreaker
from firstline_edge.cloud.chain import LinkChain
from firstline_edge.cloud.mqtt_link import MqttLink
from firstline_edge.settings.settings import BreakerSection
from firstline_edge.telemetry.link_traffic import counting_traffic

pytestmark = pytest.mark.mosquitto

TOPICS = Topics("cam-1")
Answering = Callable[[InferRequest], Awaitable[InferResponse]]


def settings(broker: Broker, client_id: str = "") -> MqttSettings:
    return MqttSettings(broker.host, broker.port, client_id=client_id, reconnect_max_s=0.2)


async def answer_well(infer_request: InferRequest) -> InferResponse:
    return response(infer_request)


@asynccontextmanager
async def gateway(broker: Broker, answering: Answering = answer_well) -> AsyncIterator[MqttClient]:
    client = MqttClient(settings(broker, "gateway"))

    async def answer(message: Message) -> None:
        device, model = parse_request(message.topic)
        topic = Topics(device).response
        try:
            infer_request = mqtt_messages.read_request(message, model, Origin(now_s=time.monotonic(), principal=device))
            reply = mqtt_messages.response_publication(
                infer_request, await answering(infer_request), topic=topic, correlation_data=message.correlation_data
            )
        except errors.FirstlineError as error:
            reply = mqtt_messages.error_publication(error, topic=topic, correlation_data=message.correlation_data)
        await client.publish(reply)

    await client.subscribe(shared_requests("gateway"), answer)
    await client.connect(5)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def link(mosquitto: Broker) -> AsyncIterator[MqttLink]:
    mqtt_link = MqttLink(settings(mosquitto, "cam-1"), TOPICS, birth=lambda: {"models": ["digits"]})
    await mqtt_link.start()
    await mqtt_link.probe(5)
    yield mqtt_link
    assert not mqtt_link._pending
    await mqtt_link.close()


async def test_early_request_waits_for_the_connection(mosquitto: Broker) -> None:
    async with gateway(mosquitto):
        link = MqttLink(settings(mosquitto, "cam-1"), TOPICS)
        await link.start()
        assert not link.connected
        assert (await link.infer(request(), 5)).answer is not None
        await link.close()


async def test_absent_broker_fails_after_one_attempt(mosquitto: Broker) -> None:
    mosquitto.stop()
    link = MqttLink(settings(mosquitto, "cam-1"), TOPICS)
    await link.start()
    with pytest.raises(errors.LinkDownError):
        await link.infer(request(), 30)
    await link.close()


async def test_traffic_is_counted(mosquitto: Broker, link: MqttLink) -> None:
    infer_request = request(1)
    async with gateway(mosquitto):
        with counting_traffic() as traffic:
            answer = await link.infer(infer_request, 5.0)
    sent, received = (sum(crossed[at] for crossed in traffic.crossed) for at in (1, 2))
    assert {name for name, _, _ in traffic.crossed} == {"mqtt"}
    assert infer_request.size_bytes < sent < infer_request.size_bytes + 1500
    assert answer.output("probabilities").nbytes < received < answer.output("probabilities").nbytes + 1500


async def test_the_broker_keeps_the_birth_message(mosquitto: Broker) -> None:
    link = MqttLink(settings(mosquitto, "cam-1"), TOPICS, birth=lambda: {"models": ["digits"]})
    await link.start()
    await link.probe(5)
    async with hearing(mosquitto, TOPICS.birth) as late:
        await until(lambda: bool(late))
    (birth,) = late
    assert birth.retain and json.loads(birth.payload) == {"session_id": link.session_id, "models": ["digits"]}
    await link.close()


async def test_request_is_answered(mosquitto: Broker, link: MqttLink) -> None:
    seen: list[InferRequest] = []

    async def answering(infer_request: InferRequest) -> InferResponse:
        seen.append(infer_request)
        return response(infer_request, value=0.25)

    infer_request = request(3, full_model_digest="ab" * 32)
    async with gateway(mosquitto, answering):
        answer = await link.infer(infer_request, 50.0)
    assert answer.answer == response(infer_request).answer
    assert np.all(answer.output("probabilities") == 0.25)
    [received] = seen
    assert (received.request_id, received.model, received.version) == (infer_request.request_id, "digits", "1")
    assert (received.principal, received.full_model_digest, received.rows) == ("cam-1", "ab" * 32, 3)
    assert 40 < received.deadline_s - time.monotonic() <= 50


async def test_concurrent_requests_get_their_own_answers(mosquitto: Broker, link: MqttLink) -> None:
    async with gateway(mosquitto):
        requests = [request() for _ in range(100)]
        answers = await asyncio.gather(*(link.infer(one, 10.0) for one in requests))
    assert [found.answer.request_id for found in answers if found.answer] == [one.request_id for one in requests]


async def test_swapped_answers_are_not_accepted(mosquitto: Broker, link: MqttLink) -> None:
    """Each request gets the genuine answer to the one before."""
    earlier: list[InferResponse] = []

    async def swap(infer_request: InferRequest) -> InferResponse:
        earlier.append(response(infer_request))
        return earlier[max(0, len(earlier) - 2)]

    breaker = CircuitBreaker(SYSTEM_CLOCK, random.Random(0), BreakerSection(failure_threshold=1000))
    chain = LinkChain([link], [breaker], SYSTEM_CLOCK)
    async with gateway(mosquitto, swap):
        await chain.infer(request(), None, [])
        found = await asyncio.gather(*(chain.infer(request(), None, []) for _ in range(5)), return_exceptions=True)
    assert [type(error) for error in found] == [errors.ProtocolError] * 5


async def test_error_of_the_gateway_is_raised(mosquitto: Broker, link: MqttLink) -> None:
    async def refuse(_request: InferRequest) -> InferResponse:
        raise errors.QueueFullError("later", retry_after_s=3.0)

    async with gateway(mosquitto, refuse):
        with pytest.raises(errors.QueueFullError, match="later") as raised:
            await link.infer(request(), 5.0)
    assert raised.value.retry_after_s == 3.0


async def test_a_late_answer_is_ignored_and_leaves_nothing_behind(mosquitto: Broker, link: MqttLink) -> None:
    release = asyncio.Event()
    answered = asyncio.Event()

    async def late(infer_request: InferRequest) -> InferResponse:
        if not release.is_set():
            await release.wait()
            answered.set()
        return response(infer_request)

    async with gateway(mosquitto, late):
        with pytest.raises(errors.RemoteTimeoutError, match=r"within 0\.1 s"):
            await link.infer(request(), 0.1)
        assert not link._pending
        release.set()
        await answered.wait()
        infer_request = request()
        answer = await link.infer(infer_request, 5.0)  # after the late one, on the same topic
    assert answer.answer.request_id == infer_request.request_id


async def test_missing_gateway_fails_immediately(link: MqttLink) -> None:
    started_s, infer_request = time.perf_counter(), request()
    with counting_traffic() as traffic, pytest.raises(errors.LinkDownError, match="No gateway"):
        await link.infer(infer_request, 60.0)
    assert time.perf_counter() - started_s < 10
    assert sum(sent for _, sent, _ in traffic.crossed) > infer_request.size_bytes  # sent in vain is sent, too


async def test_lost_connection_fails_requests_and_reconnects(mosquitto: Broker, link: MqttLink) -> None:
    received = asyncio.Event()

    async def never(_request: InferRequest) -> InferResponse:
        received.set()
        await asyncio.sleep(60)
        raise AssertionError

    async with gateway(mosquitto, never):
        asking = asyncio.create_task(link.infer(request(), 30.0))
        await received.wait()
        mosquitto.kill()
        with pytest.raises(errors.LinkDownError, match="lost"):
            await asyncio.wait_for(asking, 5)
    with pytest.raises(errors.LinkDownError, match="Not connected"):
        await link.infer(request(), 30.0)
    mosquitto.start()
    async with gateway(mosquitto):
        await link.probe(5)
        await link.infer(request(), 5.0)


async def test_a_connection_that_the_network_forgot_is_replaced(mosquitto: Broker) -> None:
    """The keepalive of a minute would take longer to tell."""
    async with gateway(mosquitto), ChaosProxy(mosquitto.port) as proxy, asyncio.timeout(10):
        link = MqttLink(replace(settings(mosquitto, "cam-1"), port=proxy.port), TOPICS)
        await link.start()
        await link.infer(request(), 5.0)
        proxy.half_open()
        with pytest.raises(errors.LinkError):
            await link.infer(request(), 0.1)
        with pytest.raises(errors.LinkError):
            await link.probe(0.1)
        await link.probe(5)
        await link.infer(request(), 5.0)
        await link.close()


async def test_an_oversized_birth_message_costs_no_connection(start_mosquitto: Callable[..., Broker]) -> None:
    broker = start_mosquitto(settings=["message_size_limit 1000"])
    async with gateway(broker), asyncio.timeout(10):
        link = MqttLink(settings(broker, "cam-1"), TOPICS, birth=lambda: {"models": "x" * 2000})
        await link.start()
        await link.infer(request(), 5.0)
        with pytest.raises(errors.PayloadTooLargeError):
            await link.infer(request(200), 5.0)
        await link.infer(request(), 5.0)
        assert link.connections == 1
        await link.close()


async def test_lost_connection_requests_a_probe(mosquitto: Broker) -> None:
    link = MqttLink(settings(mosquitto, "cam-2"), Topics("cam-2"))
    await link.start()
    await asyncio.wait_for(link.wait_connected(), 5)
    mosquitto.kill()
    await asyncio.wait_for(link.probe_wanted.wait(), 5)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(link.wait_connected(), 0.01)
    await link.close()


async def test_birth_and_state_are_retained_and_share_the_session(mosquitto: Broker, link: MqttLink) -> None:
    async with hearing(mosquitto, "firstline/v1/cam-1/+") as messages:

        def latest() -> dict[str, tuple[bool, dict[str, object]]]:
            return {message.topic: (message.retain, json.loads(message.payload)) for message in messages}

        await until(lambda: {TOPICS.birth, TOPICS.state} <= latest().keys())
        retained, birth = latest()[TOPICS.birth]
        assert retained
        assert birth["models"] == ["digits"]
        assert latest()[TOPICS.state] == (True, {"state": "online", "session_id": birth["session_id"]})

        connection = link._client._connection
        messages.clear()
        connection._client.socket().shutdown(socket.SHUT_RDWR)  # vanishes: the will speaks, then it is back
        await until(lambda: latest().get(TOPICS.state, (False, {}))[1].get("state") == "online")

        await link.close()
        await until(lambda: latest()[TOPICS.state][1]["state"] == "offline")
        assert latest()[TOPICS.state][1]["session_id"] == birth["session_id"]


async def test_corrections_are_published_and_not_retained(mosquitto: Broker, link: MqttLink) -> None:
    corrected = response(request(2))
    nan = InferResponse("digits", "1", (Tensor("x", np.array([np.nan], np.float32)),), answer=corrected.answer)
    async with hearing(mosquitto, TOPICS.results) as got:
        await link.publish_correction(corrected)
        await link.publish_correction(nan)
        await until(lambda: len(got) == 2)
    assert mqtt_messages.read_response(got[0]).answer == corrected.answer
    assert json.loads(got[0].payload)["outputs"][0]["name"] == "probabilities"
    assert np.isnan(mqtt_messages.read_response(got[1]).output("x")).all()
    assert not got[0].retain
    async with hearing(mosquitto, TOPICS.results) as late:
        await link.publish_correction(nan)
        await until(lambda: bool(late))
    assert [message.retain for message in late] == [False]  # the new one alone: the broker kept none
