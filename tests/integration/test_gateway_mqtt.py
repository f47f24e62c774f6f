"""The gateway behind a real Mosquitto: shared load, own response topics only, errors as envelopes, reconnection."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from support.broker import Broker
from support.gateway import GatedExecutor, digits_repository, gateway_of, gateway_settings, wait_for_gauge
from support.images import grey, images
from support.inference import digits_request
from support.keys import create_key
from support.logs import captured_lines
from support.memory import growth_below
from support.mqtt_device import device_at
from support.waiting import until

from firstline_core import errors
from firstline_core.protocol import mqtt_messages
from firstline_core.protocol.mqtt_messages import Publication
from firstline_core.telemetry.trace import received
from firstline_core.types import InferRequest, RequestedOutput, Tensor
from firstline_gateway.app import Gateway
from firstline_gateway.executors.local import LocalExecutor

pytestmark = pytest.mark.mosquitto

ACL = Path(__file__).parents[2] / "cloud_gateway" / "mosquitto" / "acl"


@asynccontextmanager
async def gateway_at(
    broker: Broker, folder: Path, executor: GatedExecutor | None = None, **overrides: object
) -> AsyncIterator[Gateway]:
    settings = gateway_settings(folder, broker=broker, **({"auth__mode": "off"} | overrides))
    models = {served.key: served.loaded for served in digits_repository()}
    local = LocalExecutor(models, sessions=1, max_batch_rows=8)
    gateway = gateway_of(settings, executor or local)
    await gateway.start()
    try:
        await wait_for_gauge(gateway, "firstline_gateway_mqtt_connected")
        yield gateway
    finally:
        local._models.clear()  # or their end would free those that the other tests share
        await gateway.close()


def counted(gateway: Gateway, metric: str) -> float:
    for line in gateway.metrics.render()[0].decode().splitlines():
        if line.startswith(metric + " "):
            return float(line.split()[-1])
    return 0.0


ANSWERED = 'firstline_gateway_requests_total{reason="requested",status="final",tier="cloud"}'


def request_of(**changes: object) -> InferRequest:
    return structs.replace(digits_request(images(grey())), **changes)


async def test_a_device_is_answered_under_its_own_request_id(mosquitto: Broker, tmp_path: Path) -> None:
    digest = digits_repository().resolve("digits", "").digest
    async with gateway_at(mosquitto, tmp_path), device_at(mosquitto, "press-7") as device:
        request = request_of(version="1", full_model_digest=digest, deadline_s=5.0)
        response = await device.ask(device.publication(request))
    assert response.answer.request_id == request.request_id
    assert response.answer.model_digest == digest
    assert response.output("probabilities").shape == (1, 10)


async def test_a_deadline_beyond_the_longest_expiry_is_answered(mosquitto: Broker, tmp_path: Path) -> None:
    async with gateway_at(mosquitto, tmp_path), device_at(mosquitto, "press-7") as device:
        publication = device.publication(request_of())
        far = replace(publication, properties=publication.properties | {mqtt_messages.DEADLINE_MS: "9" * 15})
        answer = await device.message_to(far)
    assert mqtt_messages.read_response(answer).answer is not None
    assert answer.expiry_s == mqtt_messages.EXPIRY_MAX_S


async def test_requested_classes_have_the_labels_of_the_model(mosquitto: Broker, tmp_path: Path) -> None:
    infer_request = request_of(outputs=(RequestedOutput("probabilities", classification=1),))
    async with gateway_at(mosquitto, tmp_path), device_at(mosquitto, "press-7") as device:
        answer = await device.message_to(device.publication(infer_request))
    (found,) = mqtt_messages.read_response(answer).output("probabilities").flat
    _, index, label = found.decode().split(":")
    assert digits_repository().resolve("digits", "").manifest.labels[int(index)] == label


async def test_a_retained_request_is_not_run_after_a_restart(mosquitto: Broker, tmp_path: Path) -> None:
    async with gateway_at(mosquitto, tmp_path), device_at(mosquitto, "press-7") as device:
        publication = device.publication(request_of(), retain=True)
        await device.ask(publication)
    try:
        async with gateway_at(mosquitto, tmp_path) as gateway, device_at(mosquitto, "press-7") as device:
            await device.infer(request_of())
            await until(lambda: counted(gateway, 'firstline_gateway_errors_total{code="invalid_request"}') == 1)
            assert counted(gateway, ANSWERED) == 1
            assert device.got.empty()
    finally:
        async with device_at(mosquitto, "press-7") as device:
            await device.client.publish(replace(publication, payload=b""))  # deletes it


@pytest.mark.parametrize("binary", [True, False])
async def test_long_json_is_decoded_in_a_thread(
    mosquitto: Broker, tmp_path: Path, binary: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, readers = mqtt_messages.read_request, []

    def reading(*arguments: Any, **options: Any) -> InferRequest:
        readers.append(threading.current_thread().name)
        return read(*arguments, **options)

    monkeypatch.setattr(mqtt_messages, "read_request", reading)
    async with gateway_at(mosquitto, tmp_path), device_at(mosquitto, "press-7") as device:
        short = device.publication(request_of())
        head = b'{"id":"' + b" " * 300_000 + b'"}'
        properties = {mqtt_messages.HEADER_LENGTH: str(len(head))} if binary else {}
        for publication in (short, replace(short, payload=head, properties=properties)):
            try:
                await device.ask(publication)
            except errors.FirstlineError as refused:
                assert publication.payload is head
                assert "id" in refused.message or "inputs" in refused.message
    assert readers[0] == threading.main_thread().name
    assert readers[1].startswith("decoding")


async def test_refusals_are_raised_as_their_classes(mosquitto: Broker, tmp_path: Path) -> None:
    no_image = Tensor("image", np.array([b"no image"], dtype=np.object_))
    changes: list[tuple[dict[str, object], type[errors.FirstlineError], int]] = [
        ({"model": "cats"}, errors.UnknownModelError, 1),
        ({"version": "7"}, errors.UnknownModelError, 2),
        ({"full_model_digest": "ab"}, errors.ModelMismatchError, 1),
        ({"inputs": (no_image,)}, errors.InvalidTensorError, 1),
    ]
    async with gateway_at(mosquitto, tmp_path) as gateway, device_at(mosquitto, "press-7") as device:
        for change, kind, count in changes:
            with pytest.raises(kind) as caught:
                await device.ask(device.publication(request_of(**change)))
            assert type(caught.value) is kind
            assert counted(gateway, f'firstline_gateway_errors_total{{code="{kind.code}"}}') == count


async def test_a_failed_request_is_freed_without_the_garbage_collector(mosquitto: Broker, tmp_path: Path) -> None:
    executor, wide = GatedExecutor(), Tensor("image", np.ones((1, 250_000), np.float32))
    async with gateway_at(mosquitto, tmp_path, executor) as gateway, device_at(mosquitto, "press-7") as device:
        with growth_below(4_000_000):
            for _ in range(10):
                await device.client.publish(device.publication(digits_request(wide)))
                await until(lambda: executor.held)
                executor.batches.clear()
                executor.release(error=errors.InferenceError("no kernel"))
                await device.got.get()
    assert counted(gateway, 'firstline_gateway_errors_total{code="inference_failed"}') == 10


async def test_a_failure_of_the_gateway_itself_is_answered(
    mosquitto: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> InferRequest:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(mqtt_messages, "read_request", failing)
    with captured_lines("error") as lines:
        async with gateway_at(mosquitto, tmp_path) as gateway, device_at(mosquitto, "press-7") as device:
            with pytest.raises(errors.FirstlineError, match="The gateway failed on this request") as failed:
                await device.ask(device.publication(request_of()))
    assert failed.value.code == "internal" and "secret" not in failed.value.message
    assert failed.value.request_id in failed.value.message
    assert any("a secret" in str(line) and failed.value.request_id in str(line) for line in lines)
    assert counted(gateway, 'firstline_gateway_errors_total{code="internal"}') == 1


async def test_refusal_keeps_its_trace_in_the_log_and_the_answer(mosquitto: Broker, tmp_path: Path) -> None:
    trace = received("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1")
    with captured_lines("info") as lines:
        async with gateway_at(mosquitto, tmp_path) as gateway, device_at(mosquitto, "press-7") as device:
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


async def test_expired_request_is_refused_and_not_run(mosquitto: Broker, tmp_path: Path) -> None:
    executor = GatedExecutor()
    async with gateway_at(mosquitto, tmp_path, executor), device_at(mosquitto, "press-7") as device:
        publication = device.publication(request_of())
        late = replace(publication, properties=publication.properties | {mqtt_messages.DEADLINE_MS: "0"})
        with pytest.raises(errors.DeadlineExceededError):
            await device.ask(late)
    assert not executor.batches


async def test_no_answer_goes_to_another_devices_topic(mosquitto: Broker, tmp_path: Path) -> None:
    async with (
        gateway_at(mosquitto, tmp_path) as gateway,
        device_at(mosquitto, "press-7") as device,
        device_at(mosquitto, "press-8") as other,
    ):
        for response_topic in (other.topics.response, "", "elsewhere"):
            await device.client.publish(replace(device.publication(request_of()), response_topic=response_topic))
        await until(lambda: counted(gateway, 'firstline_gateway_errors_total{code="invalid_request"}') == 3)
        await device.ask(device.publication(request_of()))  # it still answers who asks properly
        assert other.got.empty()
        assert counted(gateway, ANSWERED) == 1


async def test_device_that_the_store_does_not_know_gets_no_answer(mosquitto: Broker, tmp_path: Path) -> None:
    async with (
        gateway_at(mosquitto, tmp_path, auth__mode="tokens") as gateway,
        device_at(mosquitto, "press-7") as device,
        device_at(mosquitto, "stranger") as stranger,
    ):
        await stranger.client.publish(stranger.publication(request_of()))
        await until(lambda: counted(gateway, 'firstline_gateway_errors_total{code="unauthorized"}') == 1)
        create_key(gateway.settings.store, "press-7", "device")  # which the gateway looks up
        assert (await device.infer(request_of())).answer is not None
        assert stranger.got.empty()


async def test_replicas_share_requests_without_duplicates(mosquitto: Broker, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(gateway_at(mosquitto, tmp_path)) for _ in range(2)]
        device = await stack.enter_async_context(device_at(mosquitto, "press-7"))
        publications = [device.publication(request_of()) for _ in range(30)]
        await asyncio.gather(*map(device.client.publish, publications))
        async with asyncio.timeout(20):
            answers = [mqtt_messages.read_response(await device.got.get()) for _ in publications]
        shares = [counted(replica, ANSWERED) for replica in replicas]
        assert sum(shares) == 30
        assert min(shares) > 0
        assert device.got.empty()
    answered = sorted(answer.answer.request_id for answer in answers if answer.answer is not None)
    assert answered == sorted(publication.correlation_data.decode() for publication in publications)


async def test_an_answer_over_the_brokers_limit_fails(start_mosquitto: Callable[..., Broker], tmp_path: Path) -> None:
    broker = start_mosquitto(settings=["message_size_limit 500"])
    async with gateway_at(broker, tmp_path), device_at(broker, "press-7") as device, asyncio.timeout(5):
        publication = device.publication(request_of())
        assert len(publication.payload) < 500
        with pytest.raises(errors.PayloadTooLargeError, match="reason code 149"):
            await device.ask(publication)


async def test_a_request_is_acknowledged_once_it_is_answered(mosquitto: Broker, tmp_path: Path) -> None:
    """With room for one the broker hands over the second only when the first is acknowledged."""
    executor = GatedExecutor(slots=2)
    one = {"mqtt__concurrency": 1}
    async with gateway_at(mosquitto, tmp_path, executor, **one), device_at(mosquitto, "press-7") as device:
        rows = Tensor("image", np.ones((1, 1), np.float32))
        publications = [device.publication(request_of(inputs=(rows,))) for _ in range(2)]
        for publication in publications:
            await device.client.publish(publication)
        await until(lambda: executor.held == 1)
        # A round trip of the device's own: whatever the broker would have sent before it is under way.
        await device.client.publish(Publication(device.topics.response, b"echo"))
        assert (await device.got.get()).payload == b"echo"
        assert executor.held == 1
        executor.release()
        assert (await device.got.get()).correlation_data == publications[0].correlation_data
        await until(lambda: executor.held == 1)
        executor.release()
        assert (await device.got.get()).correlation_data == publications[1].correlation_data


async def test_a_draining_replica_leaves_new_requests_to_the_others(mosquitto: Broker, tmp_path: Path) -> None:
    executor = GatedExecutor()
    rows = Tensor("image", np.ones((1, 1), np.float32))
    async with (
        device_at(mosquitto, "press-7") as device,
        gateway_at(mosquitto, tmp_path, executor) as leaving,
        gateway_at(mosquitto, tmp_path) as staying,
    ):
        while not executor.held:  # the broker gives requests in turn
            await device.client.publish(device.publication(request_of(inputs=(rows,))))
            await until(lambda: executor.held == 1 or not device.got.empty())
            while not device.got.empty():
                device.got.get_nowait()
        draining = asyncio.create_task(leaving.drain(10))
        await until(lambda: not leaving.plane.ready())
        before = counted(staying, ANSWERED)
        publications = [device.publication(request_of()) for _ in range(20)]
        await asyncio.gather(*map(device.client.publish, publications))
        async with asyncio.timeout(20):
            answers = [mqtt_messages.read_response(await device.got.get()) for _ in publications]
        assert {answer.answer.request_id for answer in answers if answer.answer is not None} == {
            publication.correlation_data.decode() for publication in publications
        }
        assert counted(staying, ANSWERED) == before + 20
        assert not draining.done()
        executor.release()
        assert await draining
        assert mqtt_messages.read_response(await device.got.get()).answer is not None  # and what it had, it answered


async def test_drain_timeout_refuses_requests_in_flight(mosquitto: Broker, tmp_path: Path) -> None:
    executor = GatedExecutor()
    rows = Tensor("image", np.ones((1, 1), np.float32))
    async with gateway_at(mosquitto, tmp_path, executor) as gateway, device_at(mosquitto, "press-7") as device:
        asking = asyncio.create_task(device.ask(device.publication(request_of(inputs=(rows,)))))
        await until(lambda: executor.held == 1)
        assert not await gateway.drain(0.05)
        await gateway.abandon()
        with pytest.raises(errors.NotReadyError, match="send the request again"):
            await asking
        executor.release()


async def test_one_device_does_not_fill_the_room_for_bodies(mosquitto: Broker, tmp_path: Path) -> None:
    executor = GatedExecutor()
    limits = {"api.body_limit_bytes": 300_000, "api.bodies_limit_bytes": 600_000}
    large = Tensor("image", np.ones((1, 60_000), np.float32))
    async with gateway_at(mosquitto, tmp_path, executor, **limits), device_at(mosquitto, "press-7") as device:
        first, second = (device.publication(request_of(inputs=(large,))) for _ in range(2))
        await device.client.publish(first)
        await until(lambda: executor.held == 1)
        with pytest.raises(errors.QueueFullError, match=r"api\.bodies_limit_bytes"):
            await device.ask(second)
        executor.release()
        assert (await device.got.get()).correlation_data == first.correlation_data
        asking = asyncio.create_task(device.ask(second))
        await until(lambda: executor.held == 1)
        executor.release()
        assert (await asking).answer is not None


async def test_requests_received_during_a_drain_are_answered(mosquitto: Broker, tmp_path: Path) -> None:
    async with gateway_at(mosquitto, tmp_path) as gateway, device_at(mosquitto, "press-7") as device:
        publications = [device.publication(request_of()) for _ in range(20)]
        published = asyncio.gather(*map(device.client.publish, publications))
        await until(lambda: counted(gateway, ANSWERED) > 0)
        assert await gateway.drain(10)
        await published
        answered = int(counted(gateway, ANSWERED))
        async with asyncio.timeout(10):
            for _ in range(answered):
                assert mqtt_messages.read_response(await device.got.get()).answer is not None
        assert counted(gateway, 'firstline_gateway_errors_total{code="not_ready"}') == 0


async def test_gateway_reconnects_to_a_restarted_broker(mosquitto: Broker, tmp_path: Path) -> None:
    async with gateway_at(mosquitto, tmp_path) as gateway, device_at(mosquitto, "press-7") as device:
        mosquitto.stop()
        await until(lambda: counted(gateway, "firstline_gateway_mqtt_connected") == 0)
        mosquitto.start()
        await until(lambda: counted(gateway, "firstline_gateway_mqtt_connected") == 1 and device.client.connected)
        assert (await device.ask(device.publication(request_of()))).answer is not None


async def test_shipped_acl_permits_requests(start_mosquitto: Callable[..., Broker], tmp_path: Path) -> None:
    broker = start_mosquitto(users={"_gateway": "g", "press-7": "p"}, acl=ACL.read_text())
    password_file = tmp_path / "password"
    password_file.write_text("g\n")
    user = {"mqtt__username": "_gateway", "mqtt__password_file": str(password_file)}
    async with gateway_at(broker, tmp_path, **user), device_at(broker, "press-7", "p") as device:
        assert (await device.ask(device.publication(request_of()))).answer is not None
