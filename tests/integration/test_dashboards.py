"""Debian's Prometheus with the shipped configuration, next to both tiers: panels show data, reports raise alerts."""

import asyncio
import json
import math
from pathlib import Path

import httpx
from msgspec.structs import replace
from support.agent import edge_settings
from support.digits import scans
from support.gateway import http_link, serving_gateway
from support.keys import create_key
from support.prometheus import MONITORING, alerts, prometheus
from support.waiting import until

from firstline_core.fleet.telemetry import DeviceHealth, Telemetry
from firstline_core.fleet.twin import Reported
from firstline_edge.app import EdgeAgent
from firstline_gateway.app import Gateway

WELL = DeviceHealth(disk_free_share=0.5, hottest_c=51.0)
ILL = DeviceHealth(
    outbox_oldest_s=4000.0,
    links_down=1,
    disk_free_share=0.01,
    hottest_c=95.0,
    throttled=True,
    certificate_ends_s=3 * 86_400,
)
ALERTS = {
    "FirstlineDeviceCertificateExpiry",
    "FirstlineDiskFull",
    "FirstlineHeat",
    "FirstlineLinkDown",
    "FirstlineOutboxOld",
}
PANELS = {
    f"{dashboard.stem}: {panel['title']}": target["expr"]
    for dashboard in sorted((MONITORING / "grafana" / "dashboards").glob("*.json"))
    for panel in json.loads(dashboard.read_text())["panels"]
    for target in panel["targets"]
}


async def report_of_another_device(gateway: Gateway, sequence: int, health: DeviceHealth) -> None:
    """What a device with sensors and a certificate reports, which this machine may lack."""
    ends_s = gateway.clock.wall_s() + (health.certificate_ends_s or 80 * 86_400)
    await gateway.fleet.report("cam", Reported("s", sequence, agent_version="0.1"))
    telemetry = Telemetry("s", sequence + 1, outbox_items=1, health=replace(health, certificate_ends_s=ends_s))
    assert await gateway.fleet.take_telemetry("cam", telemetry)
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


async def test_panels_show_real_traffic_and_reports_of_a_device_raise_alerts(tmp_path: Path) -> None:
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
        await report_of_another_device(gateway, 1, WELL)
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
            for sequence, health, expected in ((3, ILL, ALERTS), (5, WELL, set())):
                await report_of_another_device(gateway, sequence, health)

                async def seen(expected: set[str] = expected) -> bool:
                    return await alerts(client) == expected

                await until(seen, 30)
