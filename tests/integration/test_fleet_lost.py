"""Recovery of what a broker or a store lost, with a real agent, gateway and Mosquitto."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.agent import edge_settings
from support.broker import Broker
from support.fleet_gateway import all_published, device_with, fleet_gateway
from support.gateway import mqtt_link
from support.waiting import until

from firstline_core.fleet.twin import Brake
from firstline_edge.app import EdgeAgent
from firstline_edge.settings.settings import EdgeSettings
from firstline_gateway.app import Gateway
from firstline_gateway.fleet import devices

pytestmark = pytest.mark.mosquitto


def device_of(broker: Broker, folder: Path) -> EdgeSettings:
    links = [mqtt_link(broker)]
    return edge_settings(folder / "state", links=links, fleet__enabled=True, fleet__telemetry_s=60)


async def brake(gateway: Gateway, reason: str) -> None:
    await gateway.store.write(lambda on: devices.accept(on, "device-1", gateway.clock.wall_s()))
    await gateway.fleet.set_brake(Brake(0.0, reason), "application:ops")


async def hears(agent: EdgeAgent, reason: str) -> None:
    async def braked() -> bool:
        active_brake = agent.operations.status()["fleet"]["brake"]
        return active_brake is not None and active_brake["reason"] == reason

    await until(braked)


async def test_documents_lost_by_the_broker_are_republished(mosquitto: Broker, tmp_path: Path) -> None:
    async with fleet_gateway(mosquitto, tmp_path) as gateway:
        await brake(gateway, "moved")
        await all_published(gateway)
        mosquitto.kill()  # it kept nothing on a disk
        mosquitto.start()
        async with EdgeAgent(device_of(mosquitto, tmp_path)) as agent:
            await hears(agent, "moved")


async def test_devices_follow_a_gateway_with_a_restored_store(mosquitto: Broker, tmp_path: Path) -> None:
    store, backup = tmp_path / "gateway.db", tmp_path / "kept.db"
    async with EdgeAgent(device_of(mosquitto, tmp_path)) as agent:
        async with fleet_gateway(mosquitto, tmp_path) as gateway:
            await device_with(gateway)
            with closing(sqlite3.connect(store)) as original, closing(sqlite3.connect(backup)) as copy:
                original.backup(copy)
            for reason in ("one", "two", "three"):
                await brake(gateway, reason)
            await hears(agent, "three")
        with closing(sqlite3.connect(backup)) as copy, closing(sqlite3.connect(store)) as original:
            copy.backup(original)
        async with fleet_gateway(mosquitto, tmp_path) as gateway:
            await brake(gateway, "restored")  # a revision that the device knew long ago
            await hears(agent, "restored")
            assert (await gateway.fleet.device("device-1")).desired.revision > 3
