"""What the previous version left on disk opens in this one, and this gateway serves the previous agent."""

from __future__ import annotations

import asyncio
import json
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from support.agent import edge_settings, until
from support.audits import certified_digits
from support.broker import Broker
from support.deliveries import picture
from support.gateway import serving
from support.keys import bearer

from firstline_core.bundle.manifest import parse_manifest
from firstline_core.ids import new_request_id
from firstline_core.protocol import envelope
from firstline_core.protocol.mqtt import Message, MqttClient, MqttSettings
from firstline_core.protocol.topics import Topics
from firstline_core.types import InferRequest, Status, Tier
from firstline_edge.agent import EdgeAgent
from firstline_gateway.executors.base import ModelKey
from firstline_gateway.gateway import Gateway
from firstline_gateway.opening import open_gateway
from firstline_gateway.settings.load import load

PREVIOUS = Path(__file__).parents[1] / "data" / "previous"
EXPECTED = json.loads((PREVIOUS / "expected.json").read_text())
_LONG_S = 1e10  # the recording grows older than a promise, an answer or a cached answer may


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state of the device and of the gateway, as they were left; and the bundle that both had."""
    with tarfile.open(PREVIOUS / "state.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    certified_digits(tmp_path / "models")
    return tmp_path


@asynccontextmanager
async def gateway_of(state: Path, **overrides: object) -> AsyncIterator[tuple[Gateway, str]]:
    folder = state / "gateway"
    found = {
        "models.directory": str(state / "models"),
        "auth.tokens_file": str(folder / "tokens.json"),
        "identity.directory": str(folder / "identity"),
        "contracts.state_file": str(folder / "contracts.db"),
        "store.url": f"sqlite:///{folder / 'gateway.db'}",
    }
    gateway = open_gateway(load(None, overrides=found | overrides))
    async with serving(gateway) as url:
        yield gateway, url


async def test_a_device_goes_on_where_the_previous_version_left_off(state: Path) -> None:
    (state / "token").write_text(EXPECTED["tokens"]["cam"])
    async with gateway_of(state) as (_, url):
        settings = edge_settings(
            state / "agent",
            agent__device_id="cam",
            models__directories=[str(state / "models" / "digits-1")],
            links=[{"kind": "http", "url": url, "token_file": str(state / "token")}],
            outbox__max_age_s=_LONG_S,
            outbox__answers_age_s=_LONG_S,
            cache__ttl_s=_LONG_S,
            budget__bytes_per_hour=1_000_000,
            budget__bytes_per_day=10_000_000,
        )
        async with EdgeAgent(settings) as agent:
            status = agent.status()
            assert status["problems"] == []
            contract = status["models"][0]["contract"]
            assert (contract["e_value"], contract["audits"]) == (
                EXPECTED["contract"]["e_value"],
                EXPECTED["contract"]["audits"],
            )
            assert [budget["budget"] for budget in status["budgets"]] == ["bytes/hour", "bytes/day"]
            kept = (await agent.answer(EXPECTED["corrected"])).answer
            assert kept is not None
            assert (kept.status, kept.tier) == (Status.FINAL, Tier.CLOUD)
            # Its cache has no checksums, so nothing of it is believed; what is computed anew is cached in its place.
            for tier in (Tier.CLOUD, Tier.CACHE):
                asked = InferRequest("digits", (picture(0),), new_request_id(), principal="local")
                answer = (await agent.infer(asked)).answer
                assert answer is not None
                assert answer.tier is tier
            for request_id in EXPECTED["promised"]:

                async def is_final(request_id: str = request_id) -> bool:
                    corrected = (await agent.answer(request_id)).answer
                    return corrected is not None and corrected.status is Status.FINAL

                await until(is_final)
            assert agent.parts.outbox.depth == 0


async def test_a_gateway_takes_tokens_and_contracts_over(state: Path) -> None:
    async with gateway_of(state) as (gateway, url), httpx.AsyncClient(base_url=url) as client:
        (pool,) = gateway.contracts.pools()
        assert (pool.state.audits, pool.disagreements) == (EXPECTED["audits"], EXPECTED["disagreements"])
        assert gateway.contracts.quotas() == {ModelKey("digits", 1): 1000.0}
        for caller, text in EXPECTED["tokens"].items():
            assert (await client.get("/v2/models/digits", headers=bearer(text))).status_code == 200
            shown = await client.get("/firstline/v1/contracts", headers=bearer(text))
            assert shown.status_code == (200 if caller == "anna" else 403)
        assert (await client.get("/v2/models/digits", headers=bearer("flt_other"))).status_code == 401


async def test_what_the_previous_agent_sends_over_http_is_answered(state: Path) -> None:
    sent = (PREVIOUS / "http.bin").read_bytes()
    requests = sent.count(b" HTTP/1.1\r\n")
    assert requests > 3
    async with gateway_of(state) as (gateway, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        writer.write(sent)
        statuses = []
        async with asyncio.timeout(20):
            for _ in range(requests):
                head = await reader.readuntil(b"\r\n\r\n")
                statuses.append(int(head.split()[1]))
                (length,) = (
                    int(line.split(b":")[1])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length")
                )
                await reader.readexactly(length)
        writer.close()
        await writer.wait_closed()
        assert statuses == [200] * requests
        await asyncio.wrap_future(gateway.contracts.refresh())
        (pool,) = gateway.contracts.pools()
        assert pool.state.audits == EXPECTED["audits"]  # the audits among them had been counted


@pytest.mark.mosquitto
async def test_what_the_previous_agent_sends_over_mqtt_is_answered(state: Path, mosquitto: Broker) -> None:
    got: asyncio.Queue[Message] = asyncio.Queue()
    mqtt = {"mqtt.enabled": True, "mqtt.port": mosquitto.port}
    async with gateway_of(state, **mqtt) as (gateway, _):
        listener = MqttClient(MqttSettings(mosquitto.host, mosquitto.port, client_id="listener"))
        await listener.subscribe(Topics("cam").response, got.put)
        await listener.connect(10)

        async def connected() -> bool:
            return gateway.metrics.registry.get_sample_value("firstline_gateway_mqtt_connected") == 1

        await until(connected)
        _, writer = await asyncio.open_connection(mosquitto.host, mosquitto.port)
        writer.write((PREVIOUS / "mqtt.bin").read_bytes())
        async with asyncio.timeout(20):
            answer = envelope.read_response(await got.get()).answer
        assert answer is not None
        assert answer.status is Status.FINAL
        writer.close()
        await writer.wait_closed()
        await listener.close()


def test_the_previous_manifest_is_read() -> None:
    manifest = parse_manifest((PREVIOUS / "manifest.json").read_bytes())
    assert (manifest.name, manifest.version) == ("digits", 1)
    assert manifest.edge[0].certificate is not None
