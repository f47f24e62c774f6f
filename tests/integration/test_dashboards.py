"""Debian's Prometheus with the shipped configuration, next to both tiers: panels show data, and no alert fires."""

import asyncio
import json
import math
from pathlib import Path

import httpx
from support.agent import edge_settings
from support.digits import scans
from support.gateway import http_link, serving_gateway
from support.keys import create_key
from support.prometheus import MONITORING, alerts, prometheus
from support.waiting import until

from firstline_core.fleet.telemetry import DeviceHealth, Telemetry
from firstline_core.fleet.twin import Reported
from firstline_core.units import DAY_S
from firstline_edge.app import EdgeAgent
from firstline_gateway.app import Gateway

PANELS = {
    f"{dashboard.stem}: {panel['title']}": target["expr"]
    for dashboard in sorted((MONITORING / "grafana" / "dashboards").glob("*.json"))
    for panel in json.loads(dashboard.read_text())["panels"]
    for target in panel["targets"]
}


async def report_of_another_device(gateway: Gateway) -> None:
    """What a device with sensors and a certificate reports, which this machine may lack."""
    ends_s = gateway.clock.wall_s() + 80 * DAY_S
    await gateway.fleet.report("cam", Reported("s", 1, agent_version="0.1"))
    health = DeviceHealth(disk_free_share=0.5, hottest_c=51.0, certificate_ends_s=ends_s)
    assert await gateway.fleet.take_telemetry("cam", Telemetry("s", 2, outbox_items=1, health=health))
    await gateway.fleet_gauges.refresh()


async def empty_panels(client: httpx.AsyncClient) -> dict[str, object]:
    """The panels whose query returns nothing, or is refused."""
    found: dict[str, object] = {}
    for title, query in PANELS.items():
        try:
            answer = (await client.get("/api/v1/query", params={"query": query})).json()
        except (httpx.TransportError, ValueError) as error:  # it is starting, or answers so in plain text
            return {title: error}
        series = answer.get("data", {}).get("result", [])
        if not any(math.isfinite(float(each["value"][1])) for each in series):
            found[title] = answer
    return found


async def test_panels_show_real_traffic_which_raises_no_alert(tmp_path: Path) -> None:
    async with serving_gateway(tmp_path, registry__blobs=str(tmp_path / "blobs")) as (gateway, url):
        settings = edge_settings(
            tmp_path / "state",
            links=[http_link(gateway.settings.store, url, "device-1", tmp_path)],
            fleet__enabled=True,
            fleet__poll_s=0.2,
            fleet__telemetry_s=0.2,
            audit__per_hour=1e6,
            audit__max_share=1.0,
            audit__spacing_s=0.0,
        )
        key = create_key(gateway.settings.store, "prometheus", "application")
        await asyncio.to_thread(gateway.identity.folder.open)  # creates the devices' authority
        await gateway.registry.maintain()
        await report_of_another_device(gateway)
        async with EdgeAgent(settings) as agent, prometheus(tmp_path, url, key) as client:
            unseen = iter(scans(1000) * 10)
            empty: dict[str, object] = {}

            async def shown() -> bool:
                for content in (next(unseen), next(unseen)):
                    await agent.data_plane.infer_file("digits", content)
                await gateway.fleet_gauges.refresh()
                nonlocal empty
                empty = await empty_panels(client)
                return not empty

            try:
                await until(shown, 60)
            except (TimeoutError, AssertionError):
                raise AssertionError(f"{sorted(empty)}: {list(empty.values())[:2]}") from None

            assert await alerts(client) == set()
