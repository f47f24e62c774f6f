"""Fleet-wide alarms with real agents and a real gateway: pooled audits, and the alarm on each device."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.agent import edge_settings
from support.audits import EVERY_ANSWER
from support.broker import Broker
from support.commands import gateway_status
from support.escalations import response
from support.gateway import client_of, http_link, mqtt_link, serving_gateway
from support.keys import create_keys
from support.waiting import until

from bench.support.bundles import model, with_certificate, write_manifest
from bench.support.onnx_models import linear
from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.fleet.selector import parse_selector
from firstline_core.ids import new_request_id
from firstline_core.processing.steps import InputSpec, Softmax
from firstline_core.types import InferRequest, InferResponse, Privacy, Reason, Status, Tensor
from firstline_edge.app import EdgeAgent
from firstline_edge.outbox.outbox import OutboxItem
from firstline_gateway import audit_log
from firstline_gateway.contracts import monitor
from firstline_gateway.fleet import alarms
from firstline_gateway.fleet.devices import Filter

DEVICES = 4
# A device alone would need 400 times the evidence that the fleet needs.
AUDITING = EVERY_ANSWER | {"audit__fleet_devices": 10_000}


def bundle(folder: Path) -> Path:
    """The edge model goes by the first number, the full model by the second: they agree where both have one sign."""
    folder.mkdir()
    first, second = np.array([[9, -9], [0, 0]], np.float32), np.array([[0, 0], [9, -9]], np.float32)
    edge = model(linear(folder / "edge.onnx", first), folder, postprocess=(Softmax(),))
    full = model(linear(folder / "full.onnx", second), folder, postprocess=(Softmax(),))
    spec = InputSpec("x", "FP32", (-1, 2))
    manifest = write_manifest(folder, [edge], ["plus", "minus"], full=full, inputs=(spec,)).manifest
    write_manifest(folder, [with_certificate(edge, manifest, 0.9)], ["plus", "minus"], full=full, inputs=(spec,))
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
            if self._broker is not None:
                create_keys(self.gateway.settings.store, (f"cam{number}" for number in range(self._devices)), "device")
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
            return mqtt_link(self._broker)
        return http_link(self.gateway.settings.store, self.url, name, self._folder)

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
        async with client_of(self.gateway, self.url, "anna", "operator") as client:
            yield client

    def contract(self, agent: EdgeAgent) -> dict[str, Any]:
        (described,) = agent.operations.status()["models"]
        return described["contract"]

    def waiting_audits(self, agent: EdgeAgent) -> int:
        """The audits that were drawn and have not ended."""
        audits = self.contract(agent)["audits"]
        return int(audits["drawn"] - audits["agreed"] - audits["disagreed"] - audits["lost"])


async def alarmed_fleet(fleet: Fleet) -> None:
    """Everything disagrees, until every device has heard that the fleet alarms.

    One audit at a time: what it brings back may be that alarm, which more audits of a device's own would forestall.
    """

    def settled() -> bool:
        audits = [fleet.contract(agent)["audits"] for agent in fleet.agents]
        answered = sum(one["agreed"] + one["disagreed"] for one in audits)
        counted = sum(pool.state.audits for pool in fleet.gateway.contracts.pools())
        return answered == counted and not any(map(fleet.waiting_audits, fleet.agents))

    async def all_heard() -> bool:
        for agent in fleet.agents:
            if not fleet.contract(agent)["alarm"] and settled():
                await fleet.ask(agent, agreeing=False)
        return all(fleet.contract(agent)["alarm"] for agent in fleet.agents)

    await until(all_heard)


async def test_an_alarm_of_the_fleet_reaches_its_devices(tmp_path: Path, broker: Broker | None) -> None:
    async with Fleet(tmp_path, broker) as fleet:
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

        async with fleet.operator() as client:
            (shown,) = (await client.get("/firstline/v1/contracts/small")).json()["contracts"]
        assert shown["alarmed_since"] is not None
        assert {one["device"] for one in shown["contributions"]} == {f"cam{number}" for number in range(DEVICES)}
        assert shown["escalations_per_hour"] == 100
        # An alarmed device stays alarmed, whatever becomes of the gateway's audits.
        assert (
            fleet.gateway.contracts.end(fleet.gateway.repository.resolve("small", "").key, "application:ops").result()
            == 1
        )
        await fleet.ask(fleet.agents[0], agreeing=False)
        assert fleet.contract(fleet.agents[0])["alarm"]


async def test_an_alarm_of_the_fleet_is_no_alarm_of_its_devices(tmp_path: Path) -> None:
    async with Fleet(tmp_path, fleet__enabled=True, fleet__telemetry_s=0.1) as fleet, fleet.operator() as operator:
        await alarmed_fleet(fleet)
        devices = fleet.gateway.fleet

        async def all_alarmed() -> bool:
            found = (await devices.page("", 10, Filter(parse_selector("")))).devices
            latest = [(await devices.device(one.name)).latest for one in found]
            return len(found) == DEVICES and all(
                one is not None and any(model.alarm for model in one.models) for one in latest
            )

        await until(all_alarmed)
        for agent in fleet.agents:
            await fleet.escalate(agent)
        await fleet.gateway.contracts.refreshed()
        assert await device_alarms(operator) == []
        with fleet.gateway.store.database.reading() as connection:
            assert audit_log.page(connection, audit_log.EntryFilter(action=alarms.DEVICE_ALARM), 10) == []


class IndependentDevices(Fleet):
    """Two devices that go by their own audits: the gateway's alarm is out of reach."""

    def __init__(self, folder: Path, broker: Broker | None = None) -> None:
        super().__init__(folder, broker, devices=2, delta=1e-300, audit__fleet_devices=1)


async def break_one(fleet: Fleet) -> EdgeAgent:
    """The first device sees what the certificate never saw, until its own audits say so.

    One audit at a time: an audit that is sent after the alarm would carry it to the gateway later.
    """
    dirty = fleet.agents[0]

    async def broken() -> bool:
        if not fleet.contract(dirty)["alarm"] and not fleet.waiting_audits(dirty):
            await fleet.ask(dirty, agreeing=False)
        return bool(fleet.contract(dirty)["alarm"])

    await until(broken)
    assert "audits on this device disagreed" in fleet.contract(dirty)["cause"]
    return dirty


async def device_alarms(operator: httpx.AsyncClient) -> list[dict[str, Any]]:
    return (await operator.get("/firstline/v1/contracts/small")).json()["device_alarms"]


def forget_alarms(fleet: Fleet) -> None:
    with fleet.gateway.store.database.begin() as connection:
        alarms.delete_device(connection, "cam0")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway notes whatever a device says, and not only every 5 s."""
    monkeypatch.setattr(monitor, "_RETRY_S", 0.0)


@pytest.mark.usefixtures("at_once")
async def test_a_devices_own_alarm_reaches_the_gateway(tmp_path: Path, broker: Broker | None) -> None:
    async with IndependentDevices(tmp_path, broker) as fleet:
        dirty, clean = await break_one(fleet), fleet.agents[1]
        async with fleet.operator() as operator:
            await fleet.escalate(clean)
            await fleet.escalate(dirty)
            (alarm,) = await device_alarms(operator)
            assert (alarm["device"], alarm["bundle"], alarm["variant"]) == ("cam0", "small", "edge")
            assert alarm["ended"] is None
            metric = 'firstline_gateway_contract_device_alarms{model="small",version="1"} 1.0'
            assert metric in (await operator.get("/metrics")).text
            await fleet.escalate(dirty)
            (again,) = await device_alarms(operator)
            assert again["since"] == alarm["since"]
            assert not fleet.contract(clean)["alarm"]

        # What waited in the outbox says it too.
        forget_alarms(fleet)
        await fleet.gateway.contracts.refreshed()
        digest = dirty.models.find("small", "").manifest.full_digest
        row = Tensor("x", np.array([[0.01, 1]], np.float32))

        async def shown() -> bool:
            waited = InferRequest("small", (row,), new_request_id(), version="1", full_model_digest=digest)
            provisional = response(waited, Status.PROVISIONAL, classes=2)
            await dirty.outbox.put(OutboxItem(waited, (0,), provisional, SYSTEM_CLOCK.wall_s()))
            await until(lambda: not dirty.outbox.depth)
            await fleet.gateway.contracts.refreshed()
            return [alarm.device for alarm in fleet.gateway.contracts.device_alarms()] == ["cam0"]

        await until(shown)


@pytest.mark.usefixtures("at_once")
async def test_a_device_that_lost_its_state_ends_its_alarm(tmp_path: Path) -> None:
    async with IndependentDevices(tmp_path) as fleet, fleet.operator() as operator:
        await fleet.escalate(await break_one(fleet))
        token = operator.headers["Authorization"].removeprefix("Bearer ")
        alarm = "device alarm: small version 1 edge: cam0, by its own audits, since "
        assert alarm in await gateway_status(fleet.url, token)
        async with fleet.agent("cam0", "emptied") as emptied:

            async def ended() -> bool:
                await fleet.escalate(emptied)
                return (await device_alarms(operator))[0]["ended"] is not None

            await until(ended)
            assert len(await device_alarms(operator)) == 1
        assert "device alarm" not in await gateway_status(fleet.url, token)


@pytest.mark.usefixtures("at_once")
async def test_local_only_requests_carry_no_alarm(tmp_path: Path) -> None:
    async with IndependentDevices(tmp_path) as fleet:
        dirty = await break_one(fleet)
        await asyncio.wrap_future(fleet.gateway.contracts.refresh())
        forget_alarms(fleet)
        await fleet.gateway.contracts.refreshed()
        row = np.array([[0.01, 1]], np.float32)
        infer_request = InferRequest("small", (Tensor("x", row),), new_request_id(), privacy=Privacy.LOCAL_ONLY)
        answer = (await dirty.data_plane.infer(infer_request)).answer
        assert answer.reason is Reason.LOCAL_ONLY
        await fleet.gateway.contracts.refreshed()
        assert fleet.gateway.contracts.device_alarms() == []


async def test_devices_divide_delta_by_the_number_of_auditing_devices(tmp_path: Path) -> None:
    async with Fleet(tmp_path, audit__fleet_devices=1) as fleet:
        alone = fleet.contract(fleet.agents[0])["alarm_at"]

        async def all_counted() -> bool:
            for agent in fleet.agents:
                await fleet.ask(agent, agreeing=True)
            return all(fleet.contract(agent)["alarm_at"] == pytest.approx(DEVICES * alone) for agent in fleet.agents)

        await until(all_counted)
