"""The fleet over a real Mosquitto: reports, retained desired documents, and late wills."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from msgspec.structs import replace
from support.broker import Broker
from support.desired import desire
from support.fleet_gateway import all_published, device_with, fleet_gateway
from support.logs import captured_lines
from support.mqtt_device import MqttDevice, device_at

from firstline_core.fleet.telemetry import ModelCounts, Telemetry
from firstline_core.fleet.twin import Desired, DesiredModel, Reported, RunningModel
from firstline_core.protocol.mqtt_messages import Message, Publication
from firstline_gateway.fleet.devices import DEVICES

pytestmark = pytest.mark.mosquitto

WANTED = DesiredModel("digits", 2, "0" * 64)


async def say(device: MqttDevice, topic: str, document: object, *, retain: bool = False) -> None:
    await device.client.publish(Publication(topic, msgspec.json.encode(document), retain=retain))


def state(word: str, session: str) -> dict[str, str]:
    return {"state": word, "session_id": session}


async def test_reports_and_desired_documents_travel_over_mqtt(mosquitto: Broker, tmp_path: Path) -> None:
    messages: asyncio.Queue[Message] = asyncio.Queue()
    async with fleet_gateway(mosquitto, tmp_path) as gateway, device_at(mosquitto, "cam") as cam:
        await cam.client.subscribe(cam.topics.desired, messages.put)
        reported = Reported("s1", 1, models=(RunningModel("digits", 1),))
        await say(cam, cam.topics.reported, reported, retain=True)
        await say(cam, cam.topics.telemetry, Telemetry("s1", 1, 60.0, (ModelCounts("digits", 1, rows=7),)))
        found = await device_with(gateway, "cam")
        assert found.reported == reported and found.online
        await desire(gateway, ["cam"], lambda _, before: replace(before, models=(WANTED,)))
        async with asyncio.timeout(10):
            while (desired := msgspec.json.decode((await messages.get()).payload, type=Desired)).revision < 1:
                pass
        assert desired == Desired(1, (WANTED,))


async def test_a_restarted_gateway_reads_retained_reports(mosquitto: Broker, tmp_path: Path) -> None:
    async with device_at(mosquitto, "cam2") as cam:
        await say(cam, cam.topics.reported, Reported("s1", 4, models=(RunningModel("digits", 3),)), retain=True)
        async with fleet_gateway(mosquitto, tmp_path) as gateway:
            found = await device_with(gateway, "cam2")
            assert found.reported.models[0].version == 3


async def test_desired_state_is_retained_for_an_offline_device(mosquitto: Broker, tmp_path: Path) -> None:
    messages: asyncio.Queue[Message] = asyncio.Queue()
    async with fleet_gateway(mosquitto, tmp_path) as gateway:
        await desire(gateway, ["cam3"], lambda _, before: replace(before, models=(WANTED,)))
        await all_published(gateway)
    async with device_at(mosquitto, "cam3") as cam:
        await cam.client.subscribe(cam.topics.desired, messages.put)
        async with asyncio.timeout(10):
            message = await messages.get()
        assert message.retain and msgspec.json.decode(message.payload, type=Desired).models == (WANTED,)


async def test_document_over_the_brokers_limit_delays_no_other_device(
    start_mosquitto: Callable[..., Broker], tmp_path: Path
) -> None:
    large = tuple(DesiredModel(f"model-{number}", 1, "0" * 64) for number in range(20))
    broker = start_mosquitto(settings=["max_packet_size 2000"])
    async with fleet_gateway(broker, tmp_path) as gateway:
        await desire(gateway, ["cam-a"], lambda _, before: replace(before, models=large))
        await desire(gateway, ["cam-b"], lambda _, before: replace(before, models=(WANTED,)))
        await all_published(gateway)


@pytest.mark.parametrize("refused_limit", [1000, 2], ids=["few", "many"])
async def test_topics_that_the_broker_refuses_delay_no_other_device(
    start_mosquitto: Callable[..., Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused_limit: int
) -> None:
    monkeypatch.setattr("firstline_gateway.fleet.broker._AT_ONCE", 1)
    monkeypatch.setattr("firstline_gateway.fleet.broker._REFUSED_LIMIT", refused_limit)
    acl = "".join(f"topic {access} firstline/v1/{name}\n" for access, name in [("read", "#"), ("write", "cam-3/#")])
    *refused, allowed = [f"cam-{number}" for number in range(4)]
    async with fleet_gateway(start_mosquitto(acl=acl), tmp_path) as gateway:
        with captured_lines() as lines:
            await desire(gateway, [*refused, allowed], lambda _, before: replace(before, models=(WANTED,)))
            await all_published(gateway, *refused)
        assert [line["device"] for line in lines if line["event"] == "desired state refused by the broker"] == refused
        assert gateway.metrics.registry.get_sample_value("firstline_gateway_fleet_mqtt_refused_total") >= len(refused)


async def test_late_will_does_not_mark_a_device_offline(mosquitto: Broker, tmp_path: Path) -> None:
    async with fleet_gateway(mosquitto, tmp_path) as gateway, device_at(mosquitto, "cam4") as cam:
        await say(cam, cam.topics.state, state("online", "before"), retain=True)
        await say(cam, cam.topics.state, state("online", "now"), retain=True)
        await say(cam, cam.topics.state, state("offline", "before"), retain=True)
        await say(cam, cam.topics.reported, Reported("now", 1))
        found = await device_with(gateway, "cam4")
        assert found.online
        await say(cam, cam.topics.state, state("offline", "now"), retain=True)
        await device_with(gateway, "cam4", lambda device: not device.online)


async def test_unreadable_messages_are_dropped(mosquitto: Broker, tmp_path: Path) -> None:
    async with fleet_gateway(mosquitto, tmp_path) as gateway, device_at(mosquitto, "cam5") as cam:
        for payload in (b"", b"\xff", b"[]", b'{"session": 3}', b" " * 40_000 + b"{}"):
            await cam.client.publish(Publication(cam.topics.reported, payload))
            await cam.client.publish(Publication(cam.topics.telemetry, payload))
            await cam.client.publish(Publication(cam.topics.state, payload))
        await say(cam, cam.topics.state, state("online", "s" * 65))
        await say(cam, cam.topics.reported, Reported("s", 1))
        assert (await device_with(gateway, "cam5")).online
        with gateway.store.database.reading() as connection:
            assert connection.execute(sa.select(DEVICES.c.earlier_sessions)).scalar_one() == []
