"""How urgent a request is, on its way to the gateway over both links: late work never runs, priorities go first."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from support.broker import Broker
from support.gateway import GatedExecutor, gated_gateway, serving
from support.waiting import until

from firstline_core.errors import DeadlineExceededError, RemoteTimeoutError
from firstline_core.ids import new_request_id
from firstline_core.protocol.mqtt_messages import MqttSettings, Topics
from firstline_core.types import InferRequest, Tensor
from firstline_edge.cloud.http_link import HttpLink
from firstline_edge.cloud.link import Link
from firstline_edge.cloud.mqtt_link import MqttLink
from firstline_edge.settings.settings import LinkSection
from firstline_gateway.app import Gateway

LATE = (DeadlineExceededError, RemoteTimeoutError)  # whichever side is the first to know


class House:
    """A gateway that is busy with one request until the test says so, and a link to it."""

    def __init__(self, link: Link, gateway: Gateway, executor: GatedExecutor) -> None:
        self.link, self.gateway, self.executor = link, gateway, executor

    @property
    def waiting(self) -> int:
        return self.gateway.plane.batcher.depth

    async def busy(self) -> asyncio.Task[object]:
        task = asyncio.create_task(self.link.infer(asked(), 20.0))
        await until(lambda: self.executor.held == 1)
        return task


@pytest.fixture
async def house(broker: Broker | None, tmp_path: Path) -> AsyncIterator[House]:
    # How many rows gain by being a batch is measured: without a limit, a busy machine may put all requests into one.
    gateway, executor = gated_gateway(tmp_path, broker=broker, execution__max_batch_rows=2)
    if broker is None:
        async with serving(gateway) as url:
            link = HttpLink(LinkSection(kind="http", url=url))
            await link.start()
            yield House(link, gateway, executor)
            await link.close()
        return
    await gateway.start()
    mqtt = MqttLink(MqttSettings(broker.host, broker.port, client_id="press-7"), Topics("press-7"))
    await mqtt.start()
    await mqtt.probe(10)
    await until(lambda: gateway._mqtt is not None and gateway._mqtt.connected)
    yield House(mqtt, gateway, executor)
    await mqtt.close()
    await gateway.close()


def asked(value: float = 3, priority: int = 0) -> InferRequest:
    pixels = Tensor("image", np.full((1, 1), value, np.float32))
    return InferRequest("digits", (pixels,), new_request_id(), binary_output=True, priority=priority)


async def test_expired_requests_in_the_queue_never_run(house: House) -> None:
    busy = await house.busy()
    with pytest.raises(LATE):
        await house.link.infer(asked(), 0.2)
    await until(lambda: house.waiting == 0)
    house.executor.release()
    await busy
    assert len(house.executor.batches) == 1


async def test_remaining_time_reaches_the_gateway(house: House) -> None:
    busy = await house.busy()
    waits = asyncio.create_task(house.link.infer(asked(), 75.0))
    await until(lambda: house.waiting == 1)
    (item,) = house.gateway.plane.batcher._queue
    assert 60 < item.request.deadline_s - time.monotonic() <= 75
    house.executor.release()
    await busy
    await until(lambda: house.executor.held == 1)
    house.executor.release()
    await waits


async def test_a_higher_priority_goes_first(house: House) -> None:
    first = await house.busy()
    house.executor.release()
    await first  # how long the model takes is known from here on
    busy = await house.busy()
    waits = []
    for waiting, (value, priority) in enumerate(((30, 3), (31, 3), (32, 3), (10, 1)), 1):
        waits.append(asyncio.create_task(house.link.infer(asked(value, priority), 20.0)))
        await until(lambda waiting=waiting: house.waiting == waiting)  # type: ignore[misc]
    house.executor.release()
    await busy
    while not all(wait.done() for wait in waits):
        await until(lambda: bool(house.executor.held) or all(wait.done() for wait in waits))
        if house.executor.held:
            house.executor.release()
    ran = {row: number for number, (_, batch) in enumerate(house.executor.batches) for rows in batch for row in rows}
    assert ran[10] < ran[31] <= ran[32]  # though it came last


async def test_cancelled_request_leaves_the_gateways_queue(tmp_path: Path) -> None:
    """Like an unneeded hedge. MQTT has no way to cancel it, so its deadline ends it."""
    gateway, executor = gated_gateway(tmp_path)
    async with serving(gateway) as url:
        link = HttpLink(LinkSection(kind="http", url=url))
        house = House(link, gateway, executor)
        busy = await house.busy()
        hedge = asyncio.create_task(link.infer(asked(), 20.0))
        await until(lambda: house.waiting == 1)
        hedge.cancel()
        await until(lambda: house.waiting == 0)
        executor.release()
        await busy
        assert len(executor.batches) == 1
        await link.close()


async def test_a_slow_upload_uses_up_the_deadline(tmp_path: Path) -> None:
    gateway, executor = gated_gateway(tmp_path)
    content = b"any ten bytes, and then some"

    async def slowly() -> AsyncIterator[bytes]:
        yield content[:10]
        await asyncio.sleep(0.2)
        yield content[10:]

    async with serving(gateway) as url, httpx.AsyncClient(base_url=url) as client:
        path = "/firstline/v1/models/digits/infer"
        late = await client.post(path, params={"timeout": "100000"}, content=slowly())
        assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")
    assert not executor.batches
