"""Messages that are well formed and not honest: replay, sent in another's name, or with another's response topic."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from msgspec.structs import replace
from support.broker import HOST
from support.images import encode
from support.mqtt_device import MqttDevice
from support.tls_site import TlsSite, tls_site

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import FirstlineError
from firstline_core.ids import new_request_id
from firstline_core.protocol.enrolment import parse_join_token
from firstline_core.protocol.mqtt_messages import MqttSettings
from firstline_core.types import InferRequest, InferResponse, Tensor
from firstline_edge.identity.credentials import Credentials
from firstline_edge.identity.enrolment import join_gateway
from firstline_edge.identity.files import IdentityFiles

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.mosquitto]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TlsSite]:
    async with tls_site(tmp_path_factory.mktemp("site"), mosquitto=True) as found:
        yield found


async def hears_nothing(device: MqttDevice) -> bool:
    """But what it asks itself, twice in turn: whatever was on its way before would have come by then."""
    for shade in (1, 2):
        infer_request = request(shade)
        answer = (await device.ask(device.publication(infer_request))).answer
        if answer is None or answer.request_id != infer_request.request_id:
            return False
    return device.got.empty()


@asynccontextmanager
async def device(gateway: TlsSite, folder: Path, name: str) -> AsyncIterator[MqttDevice]:
    """A device that has joined, and sends what it likes."""
    files = IdentityFiles(folder / name)
    token = parse_join_token((await gateway.token_file(name)).read_text())
    identity = await join_gateway(gateway.url, token, files)
    tls = Credentials(files, identity, files.revision(), SYSTEM_CLOCK).context
    async with MqttDevice(name, MqttSettings(HOST, gateway.device_port, tls=tls)) as found:
        yield found


def request(shade: int, **changes: object) -> InferRequest:
    image = np.array([encode(np.full((8, 8), shade, np.uint8))], dtype=np.object_)
    infer_request = InferRequest("digits", (Tensor("image", image),), new_request_id(), binary_output=True)
    return replace(infer_request, **changes)  # type: ignore[arg-type]


def outputs(response: InferResponse) -> list[float]:
    return response.outputs[0].array.ravel().tolist()


async def test_other_devices_response_topic_gets_nothing(gateway: TlsSite, tmp_path: Path) -> None:
    async with device(gateway, tmp_path, "a1") as a, device(gateway, tmp_path, "b1") as b:
        await a.client.publish(a.publication(request(10), response_topic=b.topics.response))
        await a.client.publish(a.publication(request(11), response_topic=""))
        await a.client.publish(a.publication(request(12), response_topic="firstline/v1/+/res"))
        assert await hears_nothing(b)
        assert await hears_nothing(a)
        assert (await a.ask(a.publication(request(13)))).answer is not None


async def test_broker_refuses_requests_in_another_name(gateway: TlsSite, tmp_path: Path) -> None:
    async with device(gateway, tmp_path, "a2") as a, device(gateway, tmp_path, "b2") as b:
        forged = a.publication(request(20), topic=b.topics.request("digits"), response_topic=b.topics.response)
        with pytest.raises(FirstlineError, match="Not authorized"):
            await a.client.publish(forged)
        assert await hears_nothing(b)


async def test_replayed_requests_are_answered_to_their_sender(gateway: TlsSite, tmp_path: Path) -> None:
    async with device(gateway, tmp_path, "a3") as a, device(gateway, tmp_path, "b3") as b:
        infer_request = request(30)
        first = await a.ask(a.publication(infer_request))
        assert outputs(await a.ask(a.publication(infer_request))) == outputs(first)
        answered = await b.ask(b.publication(infer_request))
        assert answered.answer is not None
        assert await hears_nothing(a)


async def test_promises_are_private_to_a_device(gateway: TlsSite, tmp_path: Path) -> None:
    """A delivery's answer is kept under device and id: another device with that id gets its own content's."""
    async with device(gateway, tmp_path, "a4") as a, device(gateway, tmp_path, "b4") as b:
        promised, other = request(40, promised=True), request(200, promised=True)
        other = replace(other, request_id=promised.request_id)
        of_a = await a.ask(a.publication(promised))
        of_b = await b.ask(b.publication(other))
        assert outputs(of_b) != outputs(of_a)
        assert outputs(of_b) == outputs(await b.ask(b.publication(request(200))))
        assert outputs(await a.ask(a.publication(promised))) == outputs(of_a)
        with pytest.raises(FirstlineError):  # the same id for other content, by the same device
            await a.ask(a.publication(other))
