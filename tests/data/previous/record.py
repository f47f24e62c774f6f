"""Records what a version leaves on disk and sends: run it with that version's code (README.md says how).

One device with the digits bundle and one gateway: answers that are kept, cached, audited, escalated and corrected; then
the gateway ends, and corrections are promised that nobody could deliver yet. HTTP is recorded by a relay between the
two, MQTT by one before the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from support.agent import edge_settings
from support.audits import certified_digits
from support.broker import Broker
from support.gateway import serving

from firstline_core.ids import new_request_id
from firstline_core.types import Answer, InferRequest, Route, Tensor, Wait
from firstline_edge.agent import EdgeAgent
from firstline_gateway.gateway import Gateway
from firstline_gateway.opening import open_gateway
from firstline_gateway.settings.load import load
from firstline_gateway.tokens import create_token

CALLERS = {"cam": "device", "shop": "application", "anna": "operator"}
KEPT, PROMISED = 12, 3


class Relay:
    """Hands bytes on between a client and a server, and keeps what the client sent."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self.sent = bytearray()

    async def __aenter__(self) -> Relay:
        self._listener = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        with contextlib.suppress(OSError):
            await asyncio.gather(self._pump(reader, far_writer, self.sent), self._pump(far_reader, writer, None))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray | None) -> None:
        while chunk := await reader.read(65536):
            if kept is not None:
                kept += chunk
            writer.write(chunk)
            await writer.drain()
        writer.close()


def picture(seed: int) -> Tensor:
    return Tensor("image", np.random.default_rng(seed).integers(0, 17, (1, 8, 8, 1), np.uint8))


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event for it)
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def gateway_in(folder: Path, models: Path, **overrides: object) -> AsyncIterator[tuple[Gateway, int]]:
    settings = {
        "models.directory": str(models),
        "auth.tokens_file": str(folder / "tokens.json"),
        "contracts.state_file": str(folder / "contracts.db"),
    }
    gateway = open_gateway(load(None, overrides=settings | overrides))
    async with serving(gateway) as url:
        yield gateway, int(url.rsplit(":", 1)[1])


async def ask(agent: EdgeAgent, seed: int, **wishes: Any) -> Answer:
    request = InferRequest("digits", (picture(seed),), new_request_id(), principal="local", **wishes)
    answer = (await agent.infer(request)).answer
    assert answer is not None
    return answer


async def promises(agent: EdgeAgent, first_seed: int, count: int) -> list[str]:
    """Asks until so many answers were not sure, and corrections of them were promised."""
    found: list[str] = []
    seed = first_seed
    while len(found) < count:
        answer = await ask(agent, seed, wait=Wait.FIRST)
        if answer.durable:
            found.append(answer.request_id)
        seed += 1
    return found


async def record_http(folder: Path, models: Path, texts: dict[str, str]) -> tuple[bytes, dict[str, Any]]:
    (folder / "token").write_text(texts["cam"])
    agent_folder, gateway_folder = folder / "agent", folder / "gateway"
    async with contextlib.AsyncExitStack() as stack:
        serving_gateway = await stack.enter_async_context(contextlib.AsyncExitStack())
        gateway, port = await serving_gateway.enter_async_context(gateway_in(gateway_folder, models))
        relay = await stack.enter_async_context(Relay(port))
        link = {"kind": "http", "url": f"http://127.0.0.1:{relay.port}", "token_file": str(folder / "token")}
        settings = edge_settings(
            agent_folder,
            agent__device_id="cam",
            models__directories=[str(models)],
            links=[link],
            audit__max_share=1.0,
            audit__per_hour=3600.0,
            policy__min_threshold=0.0,
            budget__bytes_per_day=10_000_000,
            budget__bytes_per_hour=1_000_000,
        )
        agent = await stack.enter_async_context(EdgeAgent(settings))
        for seed in range(KEPT):
            await ask(agent, seed)
        await ask(agent, 100, route=Route.CLOUD)
        (corrected,) = await promises(agent, 101, 1)
        await until(lambda: agent.parts.outbox.depth == 0)
        await asyncio.wrap_future(gateway.contracts.settled())
        (pool,) = gateway.contracts.pools()
        gateway.contracts.set_quota(next(iter(gateway.repository)).key, 1000.0).result()
        await serving_gateway.aclose()
        await relay.__aexit__()
        promised = await promises(agent, 200, PROMISED)
        status = agent.status()
    expected = {
        "corrected": corrected,
        "promised": promised,
        "audits": pool.state.audits,
        "disagreements": pool.disagreements,
        "contract": status["models"][0]["contract"],
        "budgets": status["budgets"],
    }
    return bytes(relay.sent), expected


async def record_mqtt(folder: Path, models: Path, broker: Broker) -> bytes:
    mqtt = {"auth.mode": "off", "mqtt.enabled": True, "mqtt.port": broker.port}
    async with gateway_in(folder / "other", models, **mqtt), Relay(broker.port) as relay:
        link = {"kind": "mqtt", "host": "127.0.0.1", "port": relay.port}
        settings = edge_settings(
            folder / "mqtt", agent__device_id="cam", models__directories=[str(models)], links=[link]
        )
        async with EdgeAgent(settings) as agent:
            await until(lambda: agent.parts.links.available)
            await ask(agent, 300, route=Route.CLOUD)
            sent = bytes(relay.sent)  # before it says goodbye
    return sent


async def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = certified_digits(folder / "models")
        texts = {}
        for one in ("gateway", "other"):
            (folder / one).mkdir()
        for caller, kind in CALLERS.items():
            texts[caller] = create_token(folder / "gateway" / "tokens.json", caller, kind, datetime.now(UTC))
        http, expected = await record_http(folder, models, texts)
        with Broker(folder / "broker") as broker:
            mqtt = await record_mqtt(folder, models, broker)
        (target / "http.bin").write_bytes(http)
        (target / "mqtt.bin").write_bytes(mqtt)
        (target / "expected.json").write_text(json.dumps(expected | {"tokens": texts}, indent=1) + "\n")
        shutil.copy(models / "manifest.json", target / "manifest.json")
        with tarfile.open(target / "state.tar.gz", "w:gz") as archive:
            for part in ("agent", "gateway"):
                archive.add(folder / part, part, filter=lambda one: None if one.name.endswith(".lock") else one)


asyncio.run(main(Path(sys.argv[1])))
