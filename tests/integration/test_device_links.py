"""A device that has joined: both links by its certificate, renewed under load, and cut off once it is revoked."""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from support.agent import serving_agent
from support.broker import free_port
from support.forks import run_forked
from support.gateway import DIGITS
from support.http_answers import answering
from support.images import noise
from support.tls_site import TlsSite, tls_site
from support.waiting import until

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import UnauthorizedError
from firstline_core.protocol.enrolment import parse_join_token
from firstline_core.types import Answer
from firstline_edge.app import EdgeAgent
from firstline_edge.cli.doctor_device import identity_findings
from firstline_edge.cli.doctor_links import link_findings
from firstline_edge.cli.doctor_models import bundles_in_use
from firstline_edge.cli.findings import Severity
from firstline_edge.cloud.link import LinkStatus
from firstline_edge.identity.credentials import DeviceIdentity
from firstline_edge.identity.enrolment import join_gateway
from firstline_edge.identity.files import IdentityFiles
from firstline_edge.settings.load import load
from firstline_edge.state import StateDirectory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.mosquitto]

# What docs/how-to/enrol-devices.md promises: twice `auth.refresh_s`, and two seconds for the broker; thrice on a
# busy machine.
SILENT_WITHIN_S = 3 * (2 * 0.2 + 2.0)
_IMAGES = map(noise, itertools.count())  # no cache has seen them


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TlsSite]:
    async with tls_site(tmp_path_factory.mktemp("site"), mosquitto=True) as found:
        yield found


@asynccontextmanager
async def joined(gateway: TlsSite, folder: Path, name: str, kind: str = "") -> AsyncIterator[EdgeAgent]:
    """An agent that has joined as `name`, with both links, or the one of a kind."""
    state_dir = folder / name
    token = parse_join_token((await gateway.token_file(name)).read_text())
    await join_gateway(gateway.url, token, IdentityFiles(state_dir))
    overrides = {"agent.state_dir": str(state_dir), "models.directories": [str(DIGITS)], "audit.per_hour": 0.0}
    settings = load(None, environ={}, overrides=overrides)
    if kind:
        chosen = [
            {"kind": "http", "url": link.url}
            if link.kind == "http"
            else {"kind": "mqtt", "host": link.host, "port": link.port}
            for link in settings.links
            if link.kind == kind
        ]
        settings = load(None, environ={}, overrides={**overrides, "links": chosen})
    async with EdgeAgent(settings) as agent:
        if agent.links.mqtt:
            async with asyncio.timeout(10):
                await agent.links.wait_connected()
        yield agent


async def answered(agent: EdgeAgent) -> Answer:
    """The answer where the gateway was asked for."""
    return (await agent.data_plane.infer_file("digits", next(_IMAGES), route="cloud", timeout="5000000")).answer


async def asked(agent: EdgeAgent) -> str:
    """The tier that answered where the gateway was asked for."""
    return (await answered(agent)).tier


@pytest.mark.parametrize("kind", ["http", "mqtt"])
async def test_both_links_work_with_only_the_certificate(gateway: TlsSite, tmp_path: Path, kind: str) -> None:
    async with joined(gateway, tmp_path, f"works-{kind}", kind) as agent:
        assert await asked(agent) == "cloud"
        assert agent.operations.status()["links"][kind]["state"] is LinkStatus.UP
        assert agent.operations.status()["identity"]["device"] == f"works-{kind}"
        assert agent.operations.status()["problems"] == []


@pytest.mark.parametrize("kind", ["http", "mqtt"])
async def test_a_renewal_under_load_loses_no_request(gateway: TlsSite, tmp_path: Path, kind: str) -> None:
    async with joined(gateway, tmp_path, f"renews-{kind}", kind) as agent:
        credentials, renewal = agent.identity.credentials, agent.renewal
        assert credentials is not None
        assert renewal is not None
        answers, stop = 0, asyncio.Event()
        assert await asked(agent) == "cloud"  # until a model has run, few requests with a deadline may wait for it

        async def keep_asking() -> None:
            nonlocal answers
            while not stop.is_set():
                answer = await answered(agent)
                assert answer.tier == "cloud", answer
                answers += 1

        askers = [asyncio.create_task(keep_asking()) for _ in range(4)]
        keys = set()
        for _ in range(3):
            keys.add(credentials.files.device.read_text())
            before = answers
            await renewal.renew()
            async with asyncio.timeout(30):
                while answers < before + 8:
                    for asker in askers:
                        if asker.done():
                            asker.result()  # raises
                    await asyncio.sleep(0.01)
        stop.set()
        await asyncio.gather(*askers)  # raises where one was not answered by the gateway
        assert len(keys) == 3  # each time another key and another certificate
        assert agent.operations.status()["problems"] == []


async def test_the_old_certificate_is_not_needed_after_a_renewal(gateway: TlsSite, tmp_path: Path) -> None:
    """Every connection shows the new one: the old one is revoked, and nothing happens."""
    async with joined(gateway, tmp_path, "swaps") as agent:
        credentials, renewal = agent.identity.credentials, agent.renewal
        assert credentials is not None
        assert await asked(agent) == "cloud"
        old = {
            serial
            for serial, one in gateway.gateway.identity.gatekeeper.credentials._certificates.items()
            if one.device == "swaps"
        }
        await renewal.renew()
        assert await asked(agent) == "cloud"
        assert gateway.gateway.identity.gatekeeper.connections.abort(old) == 0  # no connection with it is left
        assert await asked(agent) == "cloud"


@pytest.mark.parametrize("kind", ["http", "mqtt"])
async def test_a_revoked_device_is_disconnected_and_answers_alone(gateway: TlsSite, tmp_path: Path, kind: str) -> None:
    async with joined(gateway, tmp_path, f"thief-{kind}", kind) as agent:
        assert await asked(agent) == "cloud"
        await gateway.revoke(f"thief-{kind}")
        revoked_s = time.monotonic()
        while await asked(agent) == "cloud":
            assert time.monotonic() - revoked_s < SILENT_WITHIN_S
        async with asyncio.timeout(10):
            await until(lambda: not any(link.connected for link in agent.links.mqtt))
        assert await asked(agent) == "edge"
        # A request that fails only wakes the prober: its finding, a moment later, is what status tells.
        async with asyncio.timeout(10):
            await until(lambda: agent.operations.status()["links"][kind]["state"] is not LinkStatus.UP)


async def test_doctor_checks_the_identity_without_disturbing_the_agent(gateway: TlsSite, tmp_path: Path) -> None:
    async with joined(gateway, tmp_path, "patient") as agent:
        settings = agent.settings
    async with serving_agent(settings) as (agent, url):
        agent.state.publish_url(url)
        assert await asked(agent) == "cloud"
        (link,) = agent.links.mqtt
        await until(lambda: link.connections)
        connections = link.connections
        findings = {one.subject: one for one in identity_findings(DeviceIdentity(agent.settings, SYSTEM_CLOCK))}
        assert findings["identity"].severity is Severity.OK
        assert "patient at https://" in findings["identity"].detail
        credentials = DeviceIdentity(agent.settings, SYSTEM_CLOCK).credentials
        found, offset_s = await link_findings(agent.settings, bundles_in_use(agent.settings)[0], credentials)
        assert {one.severity for one in found} == {Severity.OK}, found
        assert offset_s is not None
        assert await asked(agent) == "cloud"
        assert link.connections == connections


async def test_doctor_reports_the_running_agents_own_link(gateway: TlsSite, tmp_path: Path) -> None:
    async with joined(gateway, tmp_path, "watched", "mqtt") as agent:
        settings, (link,) = agent.settings, agent.links.mqtt
    credentials = DeviceIdentity(settings, SYSTEM_CLOCK).credentials
    here, elsewhere = {"address": link.address, "problem": ""}, {"address": "elsewhere:8883", "problem": ""}
    cases: list[tuple[dict[str, dict[str, str]], Severity, str]] = [
        ({"mqtt": here | {"state": "up"}}, Severity.OK, "is up"),
        ({"mqtt": here | {"state": "unknown"}}, Severity.WARNING, "no answer over this link yet"),
        ({"mqtt": here | {"state": "down", "problem": "Unplugged."}}, Severity.ERROR, "is down: Unplugged."),
        ({"mqtt": elsewhere | {"state": "up"}}, Severity.ERROR, "does not use this link"),
        ({}, Severity.ERROR, "does not use this link"),
    ]
    with contextlib.closing(StateDirectory(settings.state_dir)) as state:  # as if an agent ran
        for links, severity, detail in cases:
            status = json.dumps({"links": links}).encode()
            with answering(lambda *_, status=status: (200, {}, status)) as url:
                state.publish_url(url)
                [finding], _ = await link_findings(settings, credentials=credentials)
            assert finding.severity is severity and detail in finding.detail, finding
        state.publish_url(f"http://127.0.0.1:{free_port()}")
        [finding], _ = await link_findings(settings, credentials=credentials)
    assert finding.severity is Severity.WARNING and "No agent answers at" in finding.detail


async def test_doctor_reports_a_revoked_device(gateway: TlsSite, tmp_path: Path) -> None:
    async with joined(gateway, tmp_path, "banned") as agent:
        await gateway.revoke("banned")
        credentials = DeviceIdentity(agent.settings, SYSTEM_CLOCK).credentials
        findings, _ = await link_findings(agent.settings, credentials=credentials)
        assert any(one.severity is Severity.ERROR and "was revoked" in one.detail for one in findings), findings


async def test_a_device_that_has_not_joined_is_refused(gateway: TlsSite, tmp_path: Path) -> None:
    async with joined(gateway, tmp_path, "stranger") as agent:
        settings = agent.settings
    alone = msgspec.structs.replace(settings.agent, use_identity=False)
    async with EdgeAgent(msgspec.structs.replace(settings, agent=alone)) as agent:
        assert await asked(agent) == "edge"
        assert not any(link.connected for link in agent.links.mqtt)


@pytest.mark.parametrize("kind", ["http", "mqtt"])
async def test_a_device_that_joins_again_works_after_a_restart(gateway: TlsSite, tmp_path: Path, kind: str) -> None:
    name = f"returns-{kind}"
    async with joined(gateway, tmp_path, name, kind) as agent:
        assert await asked(agent) == "cloud"
        await gateway.revoke(name)
        while await asked(agent) == "cloud":
            pass
        assert agent.renewal is not None
        with pytest.raises(UnauthorizedError):
            await agent.renewal.renew()
        command = ("firstline_edge", "join", gateway.url, "--force")
        where = ["--token-file", str(await gateway.token_file(name)), "--set", f"agent.state_dir={tmp_path / name}"]
        done = await asyncio.to_thread(run_forked, *command, *where)
        assert done.returncode == 0, done.stderr
        assert "start or restart the agent" in done.stdout
    async with EdgeAgent(agent.settings) as agent, asyncio.timeout(20):
        while await asked(agent) != "cloud":  # noqa: ASYNC110 (what is awaited is the answer)
            await asyncio.sleep(0.05)
        assert agent.operations.status()["problems"] == []
