"""A real agent in a real gateway's fleet, over HTTP and Mosquitto: reports, desired state, and counts."""

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.agent import edge_settings
from support.broker import Broker
from support.desired import desire
from support.fleet_gateway import device_with
from support.gateway import http_link, mqtt_link, serving_gateway
from support.images import noise
from support.waiting import until

from firstline_core.fleet.twin import Brake, DesiredModel
from firstline_core.fleet.update import UpdateState
from firstline_core.types import Privacy, Reason, Status
from firstline_edge.app import EdgeAgent
from firstline_edge.cli.status import describe
from firstline_edge.fleet.updates.registry import HTTP_REQUIRED
from firstline_edge.settings.settings import EdgeSettings
from firstline_gateway.app import Gateway
from firstline_gateway.fleet import totals

CHECKOUT = Path(__file__).parents[2]
EVERYTHING = 2.0
"""A threshold that no score reaches: all is escalated."""


class Fleet:
    """A gateway, and the settings of the one device that knows it."""

    def __init__(self, gateway: Gateway, settings: EdgeSettings) -> None:
        self.gateway = gateway
        self.settings = settings

    async def has_rows(self, count: int) -> None:
        """Waits until the device has reported so many rows."""

        async def counted() -> bool:
            return await self.rows() == count

        await until(counted)

    async def rows(self) -> int:
        with self.gateway.store.database.reading() as connection:
            found = totals.totals_of(connection, ["device-1"]).get("device-1")
        return sum(model.rows for model in found.models) if found is not None else 0


@pytest.fixture
async def fleet(broker: Broker | None, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with serving_gateway(tmp_path, broker=broker) as (gateway, url):
        store = gateway.settings.store
        link = http_link(store, url, "device-1", tmp_path)
        if broker is not None:
            link = mqtt_link(broker)
        settings = edge_settings(
            tmp_path / "state",
            links=[link],
            fleet__enabled=True,
            fleet__poll_s=0.1,
            fleet__telemetry_s=0.1,
            policy__min_threshold=EVERYTHING,
        )
        yield Fleet(gateway, settings)


async def test_a_device_reports_its_models_and_counts(fleet: Fleet) -> None:
    async with EdgeAgent(fleet.settings) as agent:
        installed = agent.models.find("digits")
        for privacy in (Privacy.ANY, Privacy.ANY, Privacy.LOCAL_ONLY):
            await agent.data_plane.infer_file("digits", noise(side=28), privacy=privacy.value)
        await fleet.has_rows(2)
        found = await device_with(fleet.gateway, holds=lambda device: device.reported.hardware is not None)
        assert found.online
        (model,) = found.reported.models
        assert (model.name, model.edge_digest) == ("digits", installed.edge.loaded.digest)
        assert model.full_digest == installed.manifest.full_digest and model.certified
        assert "onnx" in found.reported.capabilities["runtimes"]  # type: ignore[operator]
    assert await fleet.rows() == 2  # local_only is never reported
    with fleet.gateway.store.database.reading() as connection:
        (counts,) = totals.totals_of(connection, ["device-1"])["device-1"].models
    assert (counts.rows, counts.kept + counts.escalated, counts.errors) == (2, 2, 0)
    assert sum(counts.latency) == 2 and sum(counts.scores) == 2
    gauges = fleet.gateway.metrics.registry.get_sample_value

    await until(lambda: gauges("firstline_gateway_fleet_answers_total", {"outcome": "escalated"}) == 2)
    assert gauges("firstline_gateway_fleet_payload_bytes_total") > 0


async def test_a_braked_device_answers_alone_also_without_the_gateway(fleet: Fleet) -> None:
    async def brake_is(active: bool, agent: EdgeAgent) -> None:
        await until(lambda: (agent.operations.status()["fleet"]["brake"] is not None) is active)

    async with EdgeAgent(fleet.settings) as agent:
        await device_with(fleet.gateway)
        brake = Brake(0.0, "the gateway is being moved")
        await fleet.gateway.fleet.set_brake(brake, "application:ops")
        await brake_is(True, agent)
        shown = describe("http://device", agent.operations.status())
        assert "fleet   braked: 0 of 0 escalations of this hour used; the gateway is being moved" in shown
        answer = (await agent.data_plane.infer_file("digits", noise(side=28))).answer
        assert (answer.status, answer.reason, answer.certified) == (Status.FINAL, Reason.BUDGET, False)
        await device_with(fleet.gateway, holds=lambda device: device.reported.braked)
    # A restart without a gateway: the limiter holds from the first request on.
    alone = replace(fleet.settings, fleet=replace(fleet.settings.fleet, poll_s=86_400.0))
    async with EdgeAgent(alone) as agent:
        answer = (await agent.data_plane.infer_file("digits", noise(1, side=28))).answer
        assert answer.reason is Reason.BUDGET
    async with EdgeAgent(fleet.settings) as agent:
        await fleet.gateway.fleet.set_brake(None, "application:ops")
        await brake_is(False, agent)


async def test_a_device_follows_its_fleet_over_http_while_the_broker_is_away(mosquitto: Broker, tmp_path: Path) -> None:
    async with serving_gateway(tmp_path, broker=mosquitto) as (gateway, url):
        links = [mqtt_link(mosquitto), http_link(gateway.settings.store, url, "device-1", tmp_path)]
        settings = edge_settings(
            tmp_path / "state", links=links, fleet__enabled=True, fleet__poll_s=0.1, fleet__telemetry_s=0.1
        )
        fleet = Fleet(gateway, settings)
        async with EdgeAgent(settings) as agent:
            (link,) = agent.links.mqtt
            await until(lambda: link.connected)
            before = (await device_with(gateway)).reported.revision
            mosquitto.stop()
            await until(lambda: not link.connected)
            await gateway.fleet.set_brake(Brake(0.0, "the broker is being moved"), "application:ops")
            await until(lambda: agent.operations.status()["fleet"]["brake"] is not None)
            await device_with(gateway, holds=lambda device: device.reported.revision > before)
            await agent.data_plane.infer_file("digits", noise(side=28))
            await fleet.has_rows(1)
            mosquitto.start()
            await until(lambda: link.connected)
            await gateway.fleet.set_brake(None, "application:ops")
            await until(lambda: agent.operations.status()["fleet"]["brake"] is None)


async def test_status_says_that_no_report_arrives(tmp_path: Path) -> None:
    settings = edge_settings(tmp_path, links=[{"kind": "http", "url": "http://127.0.0.1:9"}], fleet__enabled=True)
    async with EdgeAgent(settings) as agent:
        await until(
            lambda: any(
                line.startswith("problem fleet: the latest report did not reach the gateway. ")
                for line in describe("http://device", agent.operations.status())
            )
        )


@pytest.mark.mosquitto
@pytest.mark.parametrize("broker", ["mqtt"], indirect=True)
async def test_a_device_with_only_mqtt_reports_the_missing_link(fleet: Fleet) -> None:
    async with EdgeAgent(fleet.settings):
        await device_with(fleet.gateway)
        new_model = DesiredModel("digits", 2, "0" * 64, "r1")
        await desire(fleet.gateway, ["device-1"], lambda _, before: replace(before, models=(new_model,)))
        waits = [(UpdateState.OFFERED, "link_down")]
        found = await device_with(
            fleet.gateway,
            holds=lambda device: [(update.state, update.reason) for update in device.reported.updates] == waits,
        )
        assert found.reported.updates[0].message == HTTP_REQUIRED
        assert [model.version for model in found.reported.models] == [1]


def test_an_agent_without_a_fleet_does_not_import_it(tmp_path: Path) -> None:
    script = f"""
import asyncio, sys
sys.path.insert(0, {str(CHECKOUT / "tests")!r})
from pathlib import Path
from support.agent import edge_settings
from firstline_edge.api.access import access_of
from firstline_edge.app import EdgeAgent
async def main():
    async with EdgeAgent(edge_settings(Path({str(tmp_path)!r}))) as agent:
        assert agent.operations.status()["fleet"] is None
        agent.start_reloading(lambda: agent.settings, access_of(agent.settings.api), asyncio.Event())
asyncio.run(main())
print([name for name in sys.modules if "fleet" in name or "updater" in name or name.split(".")[0] in ("tuf", "httpx")])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
