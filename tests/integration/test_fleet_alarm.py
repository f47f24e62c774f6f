"""Real agents and a real gateway: what no device could know by itself, the fleet knows, and each device is told."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.agent import edge_settings, until
from support.broker import Broker
from support.bundles import model, with_certificate, write_manifest
from support.gateway import serving
from support.onnx_models import linear

from firstline_core.bundle.manifest import InputSpec
from firstline_core.bundle.steps import Softmax
from firstline_core.ids import new_request_id
from firstline_core.types import InferRequest, InferResponse, Reason, Tensor
from firstline_edge.agent import EdgeAgent
from firstline_gateway.gateway import open_gateway
from firstline_gateway.settings import load
from firstline_gateway.tokens import create_token

DEVICES = 4
# A device alone would need 400 times the evidence that the fleet needs.
AUDITING = {
    "audit__per_hour": 1e7,
    "audit__bytes_per_hour": 1e12,
    "audit__max_share": 1.0,
    "audit__fleet_devices": 10_000,
}


def bundle(folder: Path) -> Path:
    """The edge model goes by the first number, the full model by the second: they agree where both have one sign."""
    folder.mkdir()
    first, second = np.array([[9, -9], [0, 0]], np.float32), np.array([[0, 0], [9, -9]], np.float32)
    edge = model(linear(folder / "edge.onnx", first), folder, postprocess=(Softmax(),))
    full = model(linear(folder / "full.onnx", second), folder, postprocess=(Softmax(),))
    spec = InputSpec("x", "FP32", (-1, 2))
    manifest = write_manifest(folder, [edge], ["plus", "minus"], full=full, input=spec).manifest
    write_manifest(folder, [with_certificate(edge, manifest, 0.9)], ["plus", "minus"], full=full, input=spec)
    return folder


class Fleet:
    """A gateway and its devices, which reach it by either transport."""

    def __init__(self, folder: Path, broker: Broker | None = None) -> None:
        self._folder, self._broker = folder, broker
        self._bundle = bundle(folder / "bundle")
        self._random = np.random.default_rng(1)

    async def __aenter__(self) -> Fleet:
        async with AsyncExitStack() as stack:
            overrides: dict[str, object] = {
                "auth.tokens_file": str(self._folder / "tokens.json"),
                "models.directory": str(self._bundle),
                "store.url": f"sqlite:///{self._folder / 'gateway.db'}",
                "contracts.escalations_per_hour": 100.0 * DEVICES,
            }
            if self._broker is not None:
                overrides |= {"mqtt.enabled": True, "mqtt.port": self._broker.port}
            self.gateway = open_gateway(load(None, overrides=overrides))
            self.url = await stack.enter_async_context(serving(self.gateway))
            self.agents = [
                await stack.enter_async_context(
                    EdgeAgent(
                        edge_settings(
                            self._folder / name,
                            agent__device_id=name,
                            models__directories=[str(self._bundle)],
                            links=[self._link(name)],
                            **AUDITING,
                        )
                    )
                )
                for name in (f"cam{number}" for number in range(DEVICES))
            ]
            self._running = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()

    def _link(self, name: str) -> dict[str, Any]:
        if self._broker is not None:
            return {"kind": "mqtt", "host": self._broker.host, "port": self._broker.port}
        return {"kind": "http", "url": self.url, "token_file": str(self.token(name, "device"))}

    def token(self, name: str, kind: Any) -> Path:
        file = self._folder / f"{name}.token"
        file.write_text(create_token(self._folder / "tokens.json", name, kind, datetime.now(UTC)))
        return file

    async def ask(self, agent: EdgeAgent, *, agreeing: bool) -> InferResponse:
        """One request whose answer the device is sure of."""
        first = self._random.uniform(0.5, 1.0)
        row = np.array([[first, first if agreeing else -first]], np.float32)
        return await agent.infer(InferRequest("small", (Tensor("x", row),), new_request_id()))

    def contract(self, agent: EdgeAgent) -> dict[str, Any]:
        (described,) = agent.status()["models"]
        return described["contract"]


async def alarmed_fleet(fleet: Fleet) -> None:
    """Everything disagrees, until every device has heard that the fleet alarms."""

    async def all_heard() -> bool:
        for agent in fleet.agents:
            if not fleet.contract(agent)["alarm"]:
                await fleet.ask(agent, agreeing=False)
        return all(fleet.contract(agent)["alarm"] for agent in fleet.agents)

    await until(all_heard)


async def hears_and_heeds(fleet: Fleet) -> None:
    for agent in fleet.agents:
        answer = (await fleet.ask(agent, agreeing=True)).answer
        assert answer is not None
        assert (answer.reason, answer.certified) == (Reason.CONFIDENT, True)
    await alarmed_fleet(fleet)
    (pool,) = fleet.gateway.contracts.pools()
    assert pool.alarmed_s is not None
    assert fleet.gateway.contracts.devices([pool.key]) == {pool.key: DEVICES}
    for agent in fleet.agents:
        described = fleet.contract(agent)
        assert described["cause"] == "the audits of all devices together show that the promise is broken"
        assert described["e_value"] < described["alarm_at"]  # by its own audits it would not know yet
        answer = (await fleet.ask(agent, agreeing=False)).answer
        assert answer is not None
        assert answer.certified == (answer.tier == "cloud")


async def test_a_fleet_hears_of_its_alarm_over_http(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        await hears_and_heeds(fleet)
        operator = {"Authorization": f"Bearer {fleet.token('anna', 'operator').read_text()}"}
        async with httpx.AsyncClient(base_url=fleet.url, headers=operator) as client:
            (shown,) = (await client.get("/firstline/v1/contracts/small")).json()["contracts"]
        assert shown["alarmed_since"] is not None
        assert {one["device"] for one in shown["contributions"]} == {f"cam{number}" for number in range(DEVICES)}
        assert shown["escalations_per_hour"] == 100
        # A device that was told keeps to it, whatever becomes of the gateway's audits.
        assert fleet.gateway.contracts.end(fleet.gateway.repository.resolve("small", "").key).result() == 1
        await fleet.ask(fleet.agents[0], agreeing=False)
        assert fleet.contract(fleet.agents[0])["alarm"]


@pytest.mark.mosquitto
async def test_a_fleet_hears_of_its_alarm_over_mqtt(tmp_path: Path, mosquitto: Broker) -> None:
    async with Fleet(tmp_path, mosquitto) as fleet:
        await hears_and_heeds(fleet)
