"""The gateway behind a real Mosquitto: shared load, own response topics only, errors as envelopes, reconnection."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from PIL import Image
from support.broker import Broker
from support.gateway import DIGITS, GatedExecutor, gateway_of
from support.logs import captured_lines
from support.mqtt_device import device_at
from support.waiting import until

from firstline_core.errors import (
    DeadlineExceededError,
    FirstlineError,
    InvalidTensorError,
    ModelMismatchError,
    NotReadyError,
    UnknownModelError,
)
from firstline_core.ids import new_request_id
from firstline_core.protocol import mqtt_messages
from firstline_core.protocol.mqtt_messages import Publication
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.telemetry.trace import received
from firstline_core.types import InferRequest, Tensor
from firstline_gateway.app import Gateway
from firstline_gateway.executors.local import LocalExecutor
from firstline_gateway.models.folder import load_repository
from firstline_gateway.models.repository import Repository
from firstline_gateway.settings.load import load

pytestmark = pytest.mark.mosquitto

ACL = Path(__file__).parents[2] / "cloud_gateway" / "mosquitto" / "acl"


@pytest.fixture(scope="module")
def repository() -> Repository:
    return load_repository(DIGITS, RuntimeOptions())


@asynccontextmanager
async def gateway_at(
    broker: Broker, repository: Repository, executor: GatedExecutor | None = None, **overrides: object
) -> AsyncIterator[Gateway]:
    overrides = {"mqtt.enabled": True, "mqtt.port": broker.port, "auth.mode": "off"} | overrides
    engine = executor or LocalExecutor(
        {served.key: served.loaded for served in repository}, sessions=1, max_batch_rows=8
    )
    gateway = gateway_of(load(None, overrides=overrides), repository, engine)
    await gateway.start()
    try:
        await until(lambda: counted(gateway, "firstline_gateway_mqtt_connected") == 1)
        yield gateway
    finally:
        # Not `close`, which would free the models that the other tests share.
        assert gateway._mqtt is not None
        await gateway._mqtt.close()


def counted(gateway: Gateway, metric: str) -> float:
    for line in gateway.metrics.render()[0].decode().splitlines():
        if line.startswith(metric + " "):
            return float(line.split()[-1])
    return 0.0


ANSWERED = 'firstline_gateway_requests_total{reason="requested",status="final",tier="cloud"}'


def request_of(**changes: object) -> InferRequest:
    with io.BytesIO() as file:
        Image.new("L", (8, 8), 90).save(file, "PNG")
        image = np.array([file.getvalue()], dtype=np.object_)
    request = InferRequest(
        model="digits", inputs=(Tensor("image", image),), request_id=new_request_id(), binary_output=True
    )
    return structs.replace(request, **changes)  # type: ignore[arg-type]


async def test_a_device_is_answered_under_its_own_request_id(mosquitto: Broker, repository: Repository) -> None:
    digest = repository.resolve("digits", "").digest
    async with gateway_at(mosquitto, repository), device_at(mosquitto, "press-7") as device:
        request = request_of(version="1", full_model_digest=digest, deadline_s=5.0)
        response = await device.ask(device.publication(request))
    assert response.answer is not None
    assert response.answer.request_id == request.request_id
    assert response.answer.model_digest == digest
    assert response.output("probabilities").shape == (1, 10)


@pytest.mark.parametrize("binary", [True, False])
async def test_long_json_is_read_beside_the_event_loop(
    mosquitto: Broker, repository: Repository, binary: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, readers = mqtt_messages.read_request, []

    def reading(*arguments: Any, **options: Any) -> InferRequest:
        readers.append(threading.current_thread().name)
        return read(*arguments, **options)

    monkeypatch.setattr(mqtt_messages, "read_request", reading)
    async with gateway_at(mosquitto, repository), device_at(mosquitto, "press-7") as device:
        short = device.publication(request_of())
        head = b'{"id":"' + b" " * 300_000 + b'"}'
        said = {mqtt_messages.HEADER_LENGTH: str(len(head))} if binary else {}
        for publication in (short, replace(short, payload=head, properties=said)):
            try:
                await device.ask(publication)
            except FirstlineError as refused:
                assert publication.payload is head
                assert "id" in refused.message or "inputs" in refused.message
    assert readers[0] == threading.main_thread().name
    assert readers[1].startswith("decoding")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"model": "cats"}, UnknownModelError),
        ({"version": "7"}, UnknownModelError),
        ({"full_model_digest": "ab"}, ModelMismatchError),
        ({"inputs": (Tensor("image", np.array([b"no image"], dtype=np.object_)),)}, InvalidTensorError),
    ],
)
async def test_a_refusal_comes_back_as_the_error_it_is(
    mosquitto: Broker, repository: Repository, change: dict[str, object], kind: type[FirstlineError]
) -> None:
    async with gateway_at(mosquitto, repository) as gateway, device_at(mosquitto, "press-7") as device:
        with pytest.raises(kind) as caught:
            await device.ask(device.publication(request_of(**change)))
        assert type(caught.value) is kind
        assert counted(gateway, f'firstline_gateway_errors_total{{code="{kind.code}"}}') == 1


async def test_a_refusal_names_its_trace_in_its_line_and_on_its_way_back(
    mosquitto: Broker, repository: Repository
) -> None:
    trace = received("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1")
    assert trace is not None
    with captured_lines("info") as lines:
        async with gateway_at(mosquitto, repository) as gateway, device_at(mosquitto, "press-7") as device:
            for change in ({"payload": b"no request"}, {"topic": device.topics.request("cats")}):
                await device.client.publish(device.publication(request_of(trace=trace), **change))
                async with asyncio.timeout(10):
                    answer = await device.got.get()
                assert trace.trace_id in answer.properties["traceparent"]
                assert answer.properties["tracestate"] == "a=1"
            await device.client.publish(device.publication(request_of(trace=trace), response_topic="elsewhere"))
            await until(lambda: counted(gateway, 'firstline_gateway_errors_total{code="invalid_request"}') == 1)
    refused = [line for line in lines if line["event"] in ("refused", "mqtt request dropped")]
    assert [line.get("trace_id") for line in refused] == [trace.trace_id] * 3


async def test_an_expired_request_is_answered_so_and_not_run(mosquitto: Broker, repository: Repository) -> None:
    executor = GatedExecutor()
    async with gateway_at(mosquitto, repository, executor), device_at(mosquitto, "press-7") as device:
        publication = device.publication(request_of())
        late = replace(publication, properties=publication.properties | {mqtt_messages.DEADLINE_MS: "0"})
        with pytest.raises(DeadlineExceededError):
            await device.ask(late)
    assert not executor.batches


async def test_no_answer_goes_to_another_devices_topic(mosquitto: Broker, repository: Repository) -> None:
    async with (
        gateway_at(mosquitto, repository) as gateway,
        device_at(mosquitto, "press-7") as device,
        device_at(mosquitto, "press-8") as other,
    ):
        for response_topic in (other.topics.response, "", "elsewhere"):
            await device.client.publish(replace(device.publication(request_of()), response_topic=response_topic))
        await until(lambda: counted(gateway, 'firstline_gateway_errors_total{code="invalid_request"}') == 3)
        await device.ask(device.publication(request_of()))  # it still answers who asks properly
        assert other.got.empty()
        assert counted(gateway, ANSWERED) == 1


async def test_two_replicas_share_the_load_and_nothing_is_answered_twice(
    mosquitto: Broker, repository: Repository
) -> None:
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(gateway_at(mosquitto, repository)) for _ in range(2)]
        device = await stack.enter_async_context(device_at(mosquitto, "press-7"))
        asked = [device.publication(request_of()) for _ in range(30)]
        await asyncio.gather(*map(device.client.publish, asked))
        async with asyncio.timeout(20):
            answers = [mqtt_messages.read_response(await device.got.get()) for _ in asked]
        shares = [counted(replica, ANSWERED) for replica in replicas]
        assert sum(shares) == 30
        assert min(shares) > 0
        assert device.got.empty()
    answered = sorted(answer.answer.request_id for answer in answers if answer.answer is not None)
    assert answered == sorted(publication.correlation_data.decode() for publication in asked)


async def test_a_request_is_acknowledged_once_it_is_answered(mosquitto: Broker, repository: Repository) -> None:
    """With room for one the broker hands over the second only when the first is acknowledged."""
    executor = GatedExecutor(slots=2)
    one = {"mqtt.concurrency": 1}
    async with gateway_at(mosquitto, repository, executor, **one), device_at(mosquitto, "press-7") as device:
        rows = Tensor("image", np.ones((1, 1), np.float32))
        asked = [device.publication(request_of(inputs=(rows,))) for _ in range(2)]
        for publication in asked:
            await device.client.publish(publication)
        await until(lambda: executor.held == 1)
        # A round trip of the device's own: whatever the broker would have sent before it is under way.
        await device.client.publish(Publication(device.topics.response, b"echo"))
        assert (await device.got.get()).payload == b"echo"
        assert executor.held == 1
        executor.release()
        assert (await device.got.get()).correlation_data == asked[0].correlation_data
        await until(lambda: executor.held == 1)
        executor.release()
        assert (await device.got.get()).correlation_data == asked[1].correlation_data


async def test_a_drained_gateway_has_published_its_answers(mosquitto: Broker, repository: Repository) -> None:
    executor = GatedExecutor()
    rows = Tensor("image", np.ones((1, 1), np.float32))
    async with gateway_at(mosquitto, repository, executor) as gateway, device_at(mosquitto, "press-7") as device:
        asking = asyncio.create_task(device.ask(device.publication(request_of(inputs=(rows,)))))
        await until(lambda: executor.held == 1)
        draining = asyncio.create_task(gateway.drain(10))
        await until(lambda: not gateway.plane.ready())
        executor.release()
        assert await draining
        assert (await asking).answer is not None


async def test_a_draining_replica_leaves_new_requests_to_the_others(mosquitto: Broker, repository: Repository) -> None:
    executor = GatedExecutor()
    rows = Tensor("image", np.ones((1, 1), np.float32))
    async with (
        device_at(mosquitto, "press-7") as device,
        gateway_at(mosquitto, repository, executor) as leaving,
        gateway_at(mosquitto, repository) as staying,
    ):
        while not executor.held:  # the broker gives requests in turn
            await device.client.publish(device.publication(request_of(inputs=(rows,))))
            await until(lambda: executor.held == 1 or not device.got.empty())
            while not device.got.empty():
                device.got.get_nowait()
        draining = asyncio.create_task(leaving.drain(10))
        await until(lambda: not leaving.plane.ready())
        before = counted(staying, ANSWERED)
        asked = [device.publication(request_of()) for _ in range(20)]
        await asyncio.gather(*map(device.client.publish, asked))
        async with asyncio.timeout(20):
            answers = [mqtt_messages.read_response(await device.got.get()) for _ in asked]
        assert {answer.answer.request_id for answer in answers if answer.answer is not None} == {
            publication.correlation_data.decode() for publication in asked
        }
        assert counted(staying, ANSWERED) == before + 20
        assert not draining.done()
        executor.release()
        assert await draining
        assert mqtt_messages.read_response(await device.got.get()).answer is not None  # and what it had, it answered


async def test_a_request_that_a_drain_gives_up_is_answered_so(mosquitto: Broker, repository: Repository) -> None:
    executor = GatedExecutor()
    rows = Tensor("image", np.ones((1, 1), np.float32))
    async with gateway_at(mosquitto, repository, executor) as gateway, device_at(mosquitto, "press-7") as device:
        asking = asyncio.create_task(device.ask(device.publication(request_of(inputs=(rows,)))))
        await until(lambda: executor.held == 1)
        assert not await gateway.drain(0.05)
        await gateway.abandon()
        with pytest.raises(NotReadyError, match="send the request again"):
            await asking
        executor.release()


async def test_what_the_broker_gave_before_it_heard_of_the_drain_is_answered(
    mosquitto: Broker, repository: Repository
) -> None:
    async with gateway_at(mosquitto, repository) as gateway, device_at(mosquitto, "press-7") as device:
        asked = [device.publication(request_of()) for _ in range(20)]
        published = asyncio.gather(*map(device.client.publish, asked))
        await until(lambda: counted(gateway, ANSWERED) > 0)
        assert await gateway.drain(10)
        await published
        given = int(counted(gateway, ANSWERED))
        async with asyncio.timeout(10):
            for _ in range(given):
                assert mqtt_messages.read_response(await device.got.get()).answer is not None
        assert counted(gateway, 'firstline_gateway_errors_total{code="not_ready"}') == 0


async def test_it_comes_back_when_the_broker_does(mosquitto: Broker, repository: Repository) -> None:
    async with gateway_at(mosquitto, repository) as gateway, device_at(mosquitto, "press-7") as device:
        mosquitto.stop()
        await until(lambda: counted(gateway, "firstline_gateway_mqtt_connected") == 0)
        mosquitto.start()
        await until(lambda: counted(gateway, "firstline_gateway_mqtt_connected") == 1 and device.client.connected)
        assert (await device.ask(device.publication(request_of()))).answer is not None


async def test_the_rights_that_the_broker_grants_are_enough(
    start_mosquitto: Callable[..., Broker], repository: Repository, tmp_path: Path
) -> None:
    broker = start_mosquitto(users={"_gateway": "g", "press-7": "p"}, acl=ACL.read_text())
    password_file = tmp_path / "password"
    password_file.write_text("g\n")
    user = {"mqtt.username": "_gateway", "mqtt.password_file": str(password_file)}
    async with gateway_at(broker, repository, **user), device_at(broker, "press-7", "p") as device:
        assert (await device.ask(device.publication(request_of()))).answer is not None
