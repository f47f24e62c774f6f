"""Fleet-wide alarms with real agents and a real gateway: pooled audits, and the alarm on each device."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.agent import edge_settings
from support.broker import Broker
from support.databases import sqlite_store
from support.escalations import response
from support.gateway import serving_gateway
from support.keys import create_key
from support.waiting import until

from bench.support.bundles import model, with_certificate, write_manifest
from bench.support.onnx_models import linear
from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.ids import new_request_id
from firstline_core.processing.steps import InputSpec, Softmax
from firstline_core.types import InferRequest, InferResponse, Privacy, Reason, Status, Tensor
from firstline_edge.app import EdgeAgent
from firstline_edge.outbox.outbox import OutboxItem
from firstline_gateway.contracts.devices import DeviceAlarms

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
    """A gateway and its devices, which reach it by either transport.

    Args:
        folder: of all their files.
        broker: MQTT's; None for HTTP.
        devices: how many.
        delta: of the gateway's own alarm.
        auditing: other settings of the devices.
    """

    def __init__(
        self,
        folder: Path,
        broker: Broker | None = None,
        devices: int = DEVICES,
        delta: float = 0.05,
        **auditing: object,
    ) -> None:
        self._folder, self._broker = folder, broker
        self._devices, self._delta, self._auditing = devices, delta, AUDITING | auditing
        self._bundle = bundle(folder / "bundle")
        self._random = np.random.default_rng(1)

    async def __aenter__(self) -> Fleet:
        async with AsyncExitStack() as stack:
            self.gateway, self.url = await stack.enter_async_context(
                serving_gateway(
                    self._folder,
                    broker=self._broker,
                    models__directory=str(self._bundle),
                    contracts__escalations_per_hour=100.0 * DEVICES,
                    contracts__delta=self._delta,
                )
            )
            self.agents = [
                await stack.enter_async_context(self.agent(name, name))
                for name in (f"cam{number}" for number in range(self._devices))
            ]
            self._running = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()

    def agent(self, name: str, state: str) -> EdgeAgent:
        """A device, with what it keeps in a folder of that name."""
        settings = edge_settings(
            self._folder / state,
            agent__device_id=name,
            models__directories=[str(self._bundle)],
            links=[self._link(name)],
            **self._auditing,
        )
        return EdgeAgent(settings)

    def _link(self, name: str) -> dict[str, Any]:
        if self._broker is not None:
            return {"kind": "mqtt", "host": self._broker.host, "port": self._broker.port}
        return {"kind": "http", "url": self.url, "token_file": str(self.token(name, "device"))}

    def token(self, name: str, kind: Any) -> Path:
        file = self._folder / f"{name}.token"
        if not file.exists():
            file.write_text(create_key(sqlite_store(self._folder), name, kind))
        return file

    async def ask(self, agent: EdgeAgent, *, agreeing: bool) -> InferResponse:
        """One request whose answer the device is sure of."""
        first = self._random.uniform(0.5, 1.0)
        row = np.array([[first, first if agreeing else -first]], np.float32)
        return await agent.data_plane.infer(InferRequest("small", (Tensor("x", row),), new_request_id()))

    async def escalate(self, agent: EdgeAgent) -> InferResponse:
        """One request whose answer the device is not sure of, and that it never asked before."""
        first = self._random.uniform(0.0, 0.05)
        return await agent.data_plane.infer(
            InferRequest("small", (Tensor("x", np.array([[first, 1]], np.float32)),), new_request_id())
        )

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[httpx.AsyncClient]:
        headers = {"Authorization": f"Bearer {self.token('anna', 'operator').read_text()}"}
        async with httpx.AsyncClient(base_url=self.url, headers=headers) as client:
            yield client

    def contract(self, agent: EdgeAgent) -> dict[str, Any]:
        (described,) = agent.operations.status()["models"]
        return described["contract"]


def status(url: str, token: str) -> str:
    """What an operator's terminal shows."""
    command = [sys.executable, "-m", "firstline_gateway", "status", url]
    environment = {**os.environ, "FIRSTLINE_TOKEN": token}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


async def alarmed_fleet(fleet: Fleet) -> None:
    """Everything disagrees, until every device has heard that the fleet alarms.

    One audit at a time: what it brings back may be that alarm, which more audits of a device's own would forestall.
    """

    def settled() -> bool:
        audits = [fleet.contract(agent)["audits"] for agent in fleet.agents]
        answered = sum(one["agreed"] + one["disagreed"] for one in audits)
        drawn = sum(one["drawn"] - one["lost"] for one in audits)
        return drawn == answered == sum(pool.state.audits for pool in fleet.gateway.contracts.pools())

    async def all_heard() -> bool:
        for agent in fleet.agents:
            if not fleet.contract(agent)["alarm"] and settled():
                await fleet.ask(agent, agreeing=False)
        return all(fleet.contract(agent)["alarm"] for agent in fleet.agents)

    await until(all_heard)


async def hears_and_heeds(fleet: Fleet) -> None:
    for agent in fleet.agents:
        answer = (await fleet.ask(agent, agreeing=True)).answer
        assert (answer.reason, answer.certified) == (Reason.CONFIDENT, True)
    await alarmed_fleet(fleet)
    (pool,) = fleet.gateway.contracts.pools()
    assert pool.alarmed_s is not None
    await asyncio.wrap_future(fleet.gateway.contracts.refresh())
    assert fleet.gateway.contracts.devices(pool.key) == DEVICES
    for agent in fleet.agents:
        described = fleet.contract(agent)
        assert described["cause"] == "the audits of all devices together show that the promise is broken"
        assert described["e_value"] < described["alarm_at"]  # by its own audits it would not know yet
        answer = (await fleet.ask(agent, agreeing=False)).answer
        assert answer.certified == (answer.tier == "cloud")


async def test_an_alarm_of_the_fleet_reaches_devices_over_http(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        await hears_and_heeds(fleet)
        async with fleet.operator() as client:
            (shown,) = (await client.get("/firstline/v1/contracts/small")).json()["contracts"]
        assert shown["alarmed_since"] is not None
        assert {one["device"] for one in shown["contributions"]} == {f"cam{number}" for number in range(DEVICES)}
        assert shown["escalations_per_hour"] == 100
        # A device that was told keeps to it, whatever becomes of the gateway's audits.
        assert fleet.gateway.contracts.end(fleet.gateway.repository.resolve("small", "").key).result() == 1
        await fleet.ask(fleet.agents[0], agreeing=False)
        assert fleet.contract(fleet.agents[0])["alarm"]


@pytest.mark.mosquitto
async def test_an_alarm_of_the_fleet_reaches_devices_over_mqtt(tmp_path: Path, mosquitto: Broker) -> None:
    async with Fleet(tmp_path, mosquitto) as fleet:
        await hears_and_heeds(fleet)


class Lenses(Fleet):
    """Two devices that go by their own audits: the gateway's alarm is out of reach."""

    def __init__(self, folder: Path, broker: Broker | None = None) -> None:
        super().__init__(folder, broker, devices=2, delta=1e-300, audit__fleet_devices=1)


async def break_one(fleet: Fleet) -> EdgeAgent:
    """The first device sees what the certificate never saw, until its own audits say so."""
    dirty = fleet.agents[0]

    async def broken() -> bool:
        await fleet.ask(dirty, agreeing=False)
        return bool(fleet.contract(dirty)["alarm"])

    await until(broken)
    assert "audits on this device disagreed" in fleet.contract(dirty)["cause"]
    return dirty


async def device_alarms(operator: httpx.AsyncClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await operator.get("/firstline/v1/contracts/small")).json()["device_alarms"]
    return found


async def one_lens_is_dirty(fleet: Fleet) -> None:
    dirty, clean = await break_one(fleet), fleet.agents[1]
    async with fleet.operator() as operator:
        await fleet.escalate(clean)
        await fleet.escalate(dirty)
        (told,) = await device_alarms(operator)
        assert (told["device"], told["bundle"], told["variant"], told["ended"]) == ("cam0", "small", "edge", None)
        metric = 'firstline_gateway_contract_device_alarms{model="small",version="1"} 1.0'
        assert metric in (await operator.get("/metrics")).text
        await fleet.escalate(dirty)
        (again,) = await device_alarms(operator)
        assert again["since"] == told["since"]
        assert not fleet.contract(clean)["alarm"]

    # What waited in the outbox says it too.
    fleet.gateway.contracts._device_alarms = DeviceAlarms()
    held = dirty.models.find("small", "")
    assert held is not None
    row = Tensor("x", np.array([[0.01, 1]], np.float32))
    waited = InferRequest("small", (row,), new_request_id(), version="1", full_model_digest=held.manifest.full_digest)
    await dirty.outbox.current().put(
        OutboxItem(waited, (0,), response(waited, Status.PROVISIONAL), SYSTEM_CLOCK.wall_s())
    )

    await until(lambda: not dirty.outbox.depth)
    assert [alarm.device for alarm in fleet.gateway.contracts.device_alarms()] == ["cam0"]


async def test_a_devices_alarm_reaches_the_gateway_over_http(tmp_path: Path) -> None:
    async with Lenses(tmp_path) as fleet:
        await one_lens_is_dirty(fleet)
        shown = await asyncio.to_thread(status, fleet.url, fleet.token("anna", "operator").read_text())
        assert "device alarm: small version 1 edge: cam0, by its own audits, since " in shown
        async with fleet.agent("cam0", "emptied") as emptied, fleet.operator() as operator:  # it knows of none any more
            async with asyncio.timeout(20):
                while (await device_alarms(operator))[0]["ended"] is None:  # a busy gateway may not read the first
                    await fleet.escalate(emptied)
            assert len(await device_alarms(operator)) == 1
        shown = await asyncio.to_thread(status, fleet.url, fleet.token("anna", "operator").read_text())
        assert "device alarm" not in shown


@pytest.mark.mosquitto
async def test_a_devices_alarm_reaches_the_gateway_over_mqtt(tmp_path: Path, mosquitto: Broker) -> None:
    async with Lenses(tmp_path, mosquitto) as fleet:
        await one_lens_is_dirty(fleet)


async def test_local_only_requests_carry_no_alarm(tmp_path: Path) -> None:
    async with Lenses(tmp_path) as fleet:
        dirty = await break_one(fleet)
        await asyncio.wrap_future(fleet.gateway.contracts.refresh())
        fleet.gateway.contracts._device_alarms = DeviceAlarms()
        row = np.array([[0.01, 1]], np.float32)
        asked = InferRequest("small", (Tensor("x", row),), new_request_id(), privacy=Privacy.LOCAL_ONLY)
        answer = (await dirty.data_plane.infer(asked)).answer
        assert answer.reason is Reason.LOCAL_ONLY
        assert fleet.gateway.contracts.device_alarms() == []


async def quota_comes_and_goes(fleet: Fleet) -> None:
    path = "/firstline/v1/contracts/small/versions/1/quota"

    async def heard(agent: EdgeAgent) -> float | None:
        await fleet.escalate(agent)
        held = agent.models.find("small", "")
        watched = held and agent.certificates.find(held)
        return watched.record.escalations_per_hour

    async with fleet.operator() as operator:
        assert [await heard(agent) for agent in fleet.agents] == [None, None]
        assert (await operator.put(f"{path}?escalations_per_hour=60")).status_code == 200
        assert [await heard(agent) for agent in fleet.agents] == [30, 30]
        assert (await operator.delete(path)).status_code == 200
        assert [await heard(agent) for agent in fleet.agents] == [None, None]


async def test_a_quota_is_set_and_removed_over_http(tmp_path: Path) -> None:
    async with Lenses(tmp_path) as fleet:
        await quota_comes_and_goes(fleet)


@pytest.mark.mosquitto
async def test_a_quota_is_set_and_removed_over_mqtt(tmp_path: Path, mosquitto: Broker) -> None:
    async with Lenses(tmp_path, mosquitto) as fleet:
        await quota_comes_and_goes(fleet)


async def test_devices_divide_delta_by_the_number_of_auditing_devices(tmp_path: Path) -> None:
    async with Fleet(tmp_path, audit__fleet_devices=1) as fleet:
        alone = fleet.contract(fleet.agents[0])["alarm_at"]

        async def all_counted() -> bool:
            for agent in fleet.agents:
                await fleet.ask(agent, agreeing=True)
            return all(fleet.contract(agent)["alarm_at"] == pytest.approx(DEVICES * alone) for agent in fleet.agents)

        await until(all_counted)
