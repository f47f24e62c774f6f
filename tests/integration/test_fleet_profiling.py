"""A device measures a bundle on request, received over HTTP or MQTT, and uploads the profile."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import Result
from msgspec.structs import replace
from support.agent import edge_settings
from support.broker import Broker
from support.commands import firstline
from support.fleet_gateway import device_with
from support.forks import ForkedProcess
from support.gateway import http_link, mqtt_link, serving_gateway
from support.keys import bearer, create_key
from support.profiles import profile
from support.sample_bundles import variant_bundle
from support.waiting import until

from firstline_core.fleet.profiles import (
    BODY_BYTES,
    NewProfileRequest,
    ProfileEntry,
    ProfileRequest,
    own_profile_path,
    profile_path,
)
from firstline_core.fleet.twin import ProfilingState
from firstline_core.profile.profile import Profile, decode, encode
from firstline_edge.app import EdgeAgent
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StatePaths
from firstline_gateway.app import Gateway
from firstline_gateway.profiles.profiles import read_uploaded
from firstline_gateway.profiles.records import Place

ASKED = NewProfileRequest("two", quick=True)
MEASURING_S = 240.0
"""It gives way to whatever else runs here."""

pytestmark = pytest.mark.timeout(600)


class Site:
    """A gateway, its operator, and the settings of the one device that it knows."""

    def __init__(self, gateway: Gateway, url: str, settings: EdgeSettings, bundle: Path) -> None:
        self.gateway = gateway
        self.url = url
        self.settings = settings
        self.bundle = bundle
        self.operator = create_key(gateway.settings.store, "ops", "operator")

    def agent(self, **fleet: Any) -> EdgeAgent:
        return EdgeAgent(msgspec.structs.replace(self.settings, fleet=replace(self.settings.fleet, **fleet)))

    async def ask(self, request: NewProfileRequest = ASKED) -> ProfileRequest:
        return await self.gateway.profiles.request("device-1", request, "application:ops")

    async def wait_for(self, state: ProfilingState) -> ProfileRequest:
        """Waits until the only request has this state."""
        found: list[ProfileRequest] = []

        async def reached() -> bool:
            found[:] = (await self.gateway.profiles.requests_of("device-1")).requests
            return found[0].state is state

        await until(reached, MEASURING_S)
        return found[0]

    async def fulfilled(self) -> Profile:
        """Waits until no request is left, and returns the stored profile."""

        async def stored() -> bool:
            return not (await self.gateway.profiles.requests_of("device-1")).requests

        await until(stored, MEASURING_S)
        return decode((await self.gateway.profiles.get(("two", 1, "device-1")))[1], "what is kept")


@asynccontextmanager
async def site_at(folder: Path, broker: Broker | None = None, *, bytes_by_http: bool = True) -> AsyncIterator[Site]:
    async with serving_gateway(folder, broker=broker) as (gateway, url):
        http = http_link(gateway.settings.store, url, "device-1", folder)
        links = [mqtt_link(broker)] if broker is not None else []
        if bytes_by_http:
            links.append(http)
        bundle = variant_bundle(folder / "bundle", "small", name="two")
        settings = edge_settings(
            folder / "state",
            links=links,
            models__directories=[str(bundle.path)],
            fleet__enabled=True,
            fleet__poll_s=0.1,
            fleet__telemetry_s=60,
        )
        yield Site(gateway, url, settings, bundle.path)


def with_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Lets a profile measure each model with one thread, and with this many threads, if they are more."""
    monkeypatch.setattr("firstline_core.hardware.survey.usable_cores", lambda _: (float(count), False))


@pytest.fixture(autouse=True)
def few_short_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a point tells does not matter here."""
    with_cores(monkeypatch, 1)
    for name, value in {"QUICK_S": 0.5, "_SHORTEST_S": 0.01, "QUICK_BATCHES": (1,)}.items():
        monkeypatch.setattr(f"firstline_core.profile.measure.{name}", value)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with site_at(tmp_path) as found:
        yield found


@pytest.fixture
async def either(broker: Broker | None, tmp_path: Path) -> AsyncIterator[Site]:
    async with site_at(tmp_path, broker) as found:
        yield found


async def test_an_offline_device_measures_and_uploads_a_requested_profile(either: Site) -> None:
    async with either.agent():
        await device_with(either.gateway)
    request = await either.ask()
    assert request.new and request.state is ProfilingState.SENT
    assert not (await either.ask()).new
    async with either.agent() as agent:
        stored = await either.fulfilled()
        await until(lambda: not agent.operations.status()["fleet"]["profiles"])
        again = await either.ask()
        assert again.new and again.desired.id != request.desired.id  # a finished profile is requested again
    entry, _ = await either.gateway.profiles.get(("two", 1, "device-1"))
    assert entry.by == "device:device-1"
    assert {point.key.variant for point in stored.points} == {"small", "full"}
    here = decode(StatePaths(either.settings.state_dir).device_profile_path("two").read_bytes(), "what the device has")
    assert stored.points == here.points


async def test_a_restart_continues_the_measurement(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with_cores(monkeypatch, 2)
    monkeypatch.setattr("firstline_core.profile.measure.QUICK_S", 8.0)  # so that it restarts in time
    path = StatePaths(site.settings.state_dir).device_profile_path("two")
    async with site.agent():
        await device_with(site.gateway)
        await site.ask()

        await until(lambda: path.exists() and len(decode(path.read_bytes(), "it").points) >= 2, MEASURING_S)
    before = decode(path.read_bytes(), "it").points
    assert 2 <= len(before) < 4
    assert not _measuring()
    monkeypatch.setattr("firstline_core.profile.measure.QUICK_S", 0.5)
    async with site.agent():
        points = (await site.fulfilled()).points
    assert len(points) == 4 and points[: len(before)] == before


async def test_cancelling_a_request_ends_the_process(site: Site) -> None:
    async with site.agent() as agent:
        await device_with(site.gateway)
        await site.ask(replace(ASKED, quick=False))
        await site.wait_for(ProfilingState.MEASURING)
        await site.gateway.profiles.cancel_request("device-1", "two", "application:ops")

        await until(lambda: not agent.operations.status()["fleet"]["profiles"] and not _measuring())


@pytest.mark.parametrize(
    ("profile_request", "fleet", "message"),
    [
        (NewProfileRequest("three"), {}, "does not have the bundle three; it has: two 1."),
        (NewProfileRequest("two", 7), {}, "does not have the bundle two version 7"),
        (ASKED, {"profiling": False}, "fleet.profiling = false"),
    ],
    ids=["bundle", "version", "setting"],
)
async def test_a_device_reports_why_it_does_not_measure(
    site: Site, profile_request: NewProfileRequest, fleet: dict[str, Any], message: str
) -> None:
    async with site.agent(**fleet):
        await device_with(site.gateway)
        await site.ask(profile_request)
        found = await site.wait_for(ProfilingState.REFUSED)
    assert message in found.message, found


async def test_nothing_is_measured_on_a_nearly_full_disk(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstline_edge.profiling.profiler.SPARE_BYTES", 1 << 62)
    async with site.agent():
        await device_with(site.gateway)
        await site.ask()
        found = await site.wait_for(ProfilingState.REFUSED)
    assert "make room, then ask again" in found.message


@pytest.mark.mosquitto
async def test_a_device_without_an_http_link_reports_it(mosquitto: Broker, tmp_path: Path) -> None:
    async with site_at(tmp_path, mosquitto, bytes_by_http=False) as site, site.agent():
        await device_with(site.gateway)
        await site.ask()
        found = await site.wait_for(ProfilingState.REFUSED)
    assert "has no HTTP link" in found.message


async def test_a_device_uploads_only_requested_profiles_of_itself(site: Site) -> None:
    key = create_key(site.gateway.settings.store, "cam", "device")
    async with httpx.AsyncClient(base_url=site.url, headers=bearer(key), timeout=20) as cam:
        await cam.get("/fleet/v1/twin")
        mine = encode(profile(1.0, machine="cam"))
        refused = await cam.put(own_profile_path("digits", 1), content=mine)
        assert refused.status_code == 409 and "cam is not asked for" in refused.json()["detail"]
        await site.gateway.profiles.request("cam", NewProfileRequest("digits", 1), "application:ops")
        other = encode(profile(1.0, machine="press"))
        assert (await cam.put(own_profile_path("digits", 1), content=other)).status_code == 400
        assert (await cam.put(own_profile_path("digits", 1), content=mine)).status_code == 200
        later = encode(profile(1.0, machine="cam", version=2))
        assert (await cam.put(own_profile_path("digits", 2), content=later)).status_code == 409


async def test_an_unrequested_profile_is_refused_before_the_body(site: Site) -> None:
    key = create_key(site.gateway.settings.store, "cam", "device")
    where = httpx.URL(site.url)
    reader, writer = await asyncio.open_connection(where.host, where.port)
    head = f"PUT {own_profile_path('digits', 1)} HTTP/1.1\r\nHost: a\r\nAuthorization: {bearer(key)['Authorization']}"
    writer.write(f"{head}\r\nContent-Length: {BODY_BYTES}\r\n\r\n".encode())
    async with asyncio.timeout(20):
        assert b" 409 " in await reader.readuntil(b"\r\n")
    writer.close()


async def test_an_upload_is_parsed_outside_the_event_loop(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def noted(content: bytes, place: Place) -> ProfileEntry:
        threads.append(threading.current_thread())
        return read_uploaded(content, place)

    monkeypatch.setattr("firstline_gateway.api.fleet.profiles.read_uploaded", noted)
    async with httpx.AsyncClient(base_url=site.url, headers=bearer(site.operator), timeout=20) as keeper:
        sent = await keeper.put(profile_path("digits", 1, "bench"), content=encode(profile(1.0)))
    assert sent.status_code == 200
    assert threads and threading.main_thread() not in threads


async def profile_command(site: Site, *arguments: object, code: int = 0) -> Result:
    return await firstline(site.url, site.operator, "profile", "create", *arguments, code=code)


async def test_the_command_requests_follows_and_prints(site: Site) -> None:
    few = ("--on", "device-1", "--quick")
    manifest = site.bundle / "manifest.json"
    document = json.loads(manifest.read_text())
    for model in (*document["edge"], document["full"]):
        model["measured"] = {"accuracy": 0.9}
    manifest.write_text(json.dumps(document))
    assert "is unknown here" in (await profile_command(site, "two", *few, code=1)).output
    async with site.agent():
        await device_with(site.gateway)
        table = await profile_command(site, site.bundle, *few)
        named = await profile_command(site, "two", *few)
    assert "90.00 % +" in named.stdout  # as the device's own bundle says
    assert "two version 1 on device-1" in table.stdout
    assert "90.00 % +" in table.stdout
    assert "firstline profile get two 1 device-1" in table.stdout
    stands = (await profile_command(site, "two", *few, "--no-wait")).stdout
    assert "--on device-1 --quick` follows it" in stands
    cancel = "profile", "cancel", "two", "--on", "device-1"
    assert "no longer measures two" in (await firstline(site.url, site.operator, *cancel)).stdout
    assert "is asked for no profile" in (await firstline(site.url, site.operator, *cancel, code=1)).output
    threads = await profile_command(site, "two", *few, "--threads", "1", code=2)
    assert "--threads is for this machine" in threads.output
    assert "--alone is for this machine" in (await profile_command(site, "two", *few, "--alone", code=2)).output
    assert "name the device with --on" in (await profile_command(site, site.bundle, "--no-wait", code=2)).output


async def test_an_interrupted_command_leaves_the_request(site: Site) -> None:
    """In a process of its own, so that it receives Ctrl-C as in a shell."""
    async with site.agent():
        await device_with(site.gateway)
    environ = {**os.environ, "FIRSTLINE_GATEWAY": site.url, "FIRSTLINE_TOKEN": site.operator}
    command = ("profile", "create", "two", "--on", "device-1", "--quick")
    process = ForkedProcess("firstline", *command, environ=environ)
    async with asyncio.timeout(60):
        while "device-1 has not received it yet" not in (line := await asyncio.to_thread(process.stderr.readline)):
            assert line, "it ended"
        process.send_signal(signal.SIGINT)
        stdout, stderr = await asyncio.to_thread(process.communicate)
    assert process.returncode == 130
    assert stdout == "" and "Traceback" not in stderr
    assert "The request stays valid. `firstline profile create two --on device-1 --quick` follows it" in stderr
    (found,) = (await site.gateway.profiles.requests_of("device-1")).requests
    assert found.state is ProfilingState.SENT


async def test_a_refusal_ends_the_command_with_the_reason(site: Site) -> None:
    async with site.agent(profiling=False):
        await device_with(site.gateway)
        refused = await profile_command(site, "two", "--on", "device-1", code=1)
    assert "device-1: This device measures nothing for the fleet" in refused.output


def _measuring() -> list[int]:
    """Processes of ours that measure."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if b"firstline_core.profile.measure_point" in command and parent == os.getpid():
                found.append(int(entry.name))
    return found
