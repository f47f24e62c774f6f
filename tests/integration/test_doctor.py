"""Doctor on a device whose agent runs beside it: what it finds of the links, and that the agent does not notice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.agent import edge_settings
from support.broker import Broker

from firstline_core.protocol.mqtt import Message, MqttClient, MqttSettings
from firstline_edge.agent import EdgeAgent
from firstline_edge.cli.findings import State
from firstline_edge.cli.link_checks import link_findings

ACL = Path(__file__).parents[2] / "cloud_gateway" / "mosquitto" / "acl"


@pytest.mark.mosquitto
async def test_the_agent_keeps_the_broker_while_doctor_looks(
    start_mosquitto: Callable[..., Broker], tmp_path: Path
) -> None:
    broker = start_mosquitto(users={"device-1": "secret", "gateway": "secret"}, acl=ACL.read_text())
    password = tmp_path / "password"
    password.write_text("secret\n")
    link = {
        "kind": "mqtt",
        "host": broker.host,
        "port": broker.port,
        "username": "device-1",
        "password_file": str(password),
    }
    settings = edge_settings(tmp_path / "state", links=[link])
    watcher = MqttClient(
        MqttSettings(broker.host, broker.port, client_id="watcher", username="gateway", password="secret")
    )
    seen: list[tuple[str, Any]] = []

    async def note(message: Message) -> None:
        seen.append((message.topic.rpartition("/")[2], json.loads(message.payload)))

    await watcher.subscribe("firstline/v1/+/state", note)
    await watcher.subscribe("firstline/v1/+/telemetry", note)
    await watcher.connect(5)
    async with EdgeAgent(settings) as agent:
        [mqtt] = agent.links.mqtt
        await asyncio.wait_for(mqtt.wait_connected(), 5)
        connection = mqtt._client._connection
        [finding], _ = await link_findings(settings)
        assert finding.state is State.OK, finding
        assert "ms (p50)" in finding.detail
        assert mqtt._client._connection is connection
        assert mqtt.connected
        async with asyncio.timeout(5):
            while not any(topic == "telemetry" for topic, _ in seen):  # noqa: ASYNC110 (over the broker)
                await asyncio.sleep(0.005)
        states = {told["state"] for topic, told in seen if topic == "state"}
        assert states == {"online"}
    await watcher.close()
    assert "kicked" not in broker.log_path.read_text()


@pytest.mark.parametrize("kind", ["http", "mqtt"])
async def test_what_run_would_refuse_is_said_though_nobody_answers(tmp_path: Path, kind: str) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    link = {"kind": kind, "url": "http://127.0.0.1:9", "host": "127.0.0.1", "port": 9}
    link |= {"token_file": str(empty), "password_file": str(empty)}
    [finding], _ = await link_findings(edge_settings(tmp_path / "state", links=[link]))
    assert finding.state is State.MISSING
    assert f"{empty} is empty" in finding.detail
