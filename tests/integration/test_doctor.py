"""Doctor on a device with a running agent: what it finds of the links, and that the agent does not notice."""

import asyncio
import contextlib
import json
import shutil
import socket
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace
from support.agent import DIGITS, edge_settings, serving_agent
from support.broker import Broker
from support.gateway import serving_gateway
from support.images import noise
from support.mqtt_device import hearing
from support.profiles import profile
from support.silent_address import NAME, silent_ipv6
from support.streams import serving_streams
from support.tls_site import tls_site
from support.waiting import until

from firstline_core.bundle.store import open_bundle
from firstline_core.errors import CapacityError
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.survey import describe_device
from firstline_core.profile.profile import encode
from firstline_core.types import Tier
from firstline_edge.app import EdgeAgent
from firstline_edge.cli.doctor_device import outbox_findings
from firstline_edge.cli.doctor_links import link_findings, served_findings
from firstline_edge.cli.doctor_models import bundles_in_use, model_findings
from firstline_edge.cli.findings import Severity
from firstline_edge.fleet.updates.installed import Installed
from firstline_edge.fleet.updates.model_store import ModelStore
from firstline_edge.state import StatePaths

ACL = Path(__file__).parents[2] / "cloud_gateway" / "mosquitto" / "acl"


@pytest.mark.mosquitto
async def test_doctor_does_not_disconnect_the_agent(start_mosquitto: Callable[..., Broker], tmp_path: Path) -> None:
    broker = start_mosquitto(users={"device-1": "secret", "_gateway": "secret"}, acl=ACL.read_text())
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
    topics = ("firstline/v1/+/state", "firstline/v1/+/telemetry")
    async with (
        hearing(broker, *topics, username="_gateway", password="secret") as messages,
        EdgeAgent(settings) as agent,
    ):
        [mqtt] = agent.links.mqtt
        await asyncio.wait_for(mqtt.wait_connected(), 5)
        connection = mqtt._client._connection
        [finding], _ = await link_findings(settings)
        assert finding.severity is Severity.OK, finding
        assert "ms (p50)" in finding.detail
        assert mqtt._client._connection is connection
        assert mqtt.connected
        await until(lambda: any(message.topic.endswith("/telemetry") for message in messages))
        states = {json.loads(message.payload)["state"] for message in messages if message.topic.endswith("/state")}
        assert states == {"online"}
    assert "kicked" not in broker.log_path.read_text()


@pytest.mark.parametrize("kind", ["http", "mqtt"])
async def test_invalid_credentials_are_reported_without_a_server(tmp_path: Path, kind: str) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    link = {"kind": kind, "url": "http://127.0.0.1:9", "host": "127.0.0.1", "port": 9}
    link |= {"token_file": str(empty), "password_file": str(empty)}
    [finding], _ = await link_findings(edge_settings(tmp_path / "state", links=[link]))
    assert finding.severity is Severity.ERROR
    assert f"{empty} is empty" in finding.detail


@pytest.mark.parametrize(
    ("digest", "version", "detail"),
    [("", "1", ""), ("0" * 64, "1", "the gateway's full model is 000000000000"), ("", "2", "only in version 2")],
)
async def test_bundles_of_the_gateway_are_compared(digest: str, version: str, detail: str, tmp_path: Path) -> None:
    full_digest = open_bundle(DIGITS).manifest.full_digest
    served = {"models": [{"name": "digits", "version": version, "full_model_digest": digest or full_digest}]}

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=served if request.url.path == "/firstline/v1/models" else [])

    async with httpx.AsyncClient(base_url="http://gateway/", transport=httpx.MockTransport(answer)) as client:
        [finding] = await served_findings("links[0]", client, [open_bundle(DIGITS)])
    assert finding.subject == "links[0] model digits 1"
    assert finding.severity is (Severity.ERROR if detail else Severity.OK)
    assert detail in finding.detail
    assert bool(detail) == ("give both the same bundle" in finding.advice)


async def test_the_fleets_bundle_is_compared_instead_of_the_configured_one(tmp_path: Path) -> None:
    settings = edge_settings(tmp_path / "state", fleet__enabled=True)
    store = ModelStore(StatePaths(settings.state_dir).updates_path)
    slot = store.folder / "digits" / "a"
    shutil.copytree(DIGITS, slot)
    manifest = json.loads((slot / "manifest.json").read_text())
    (slot / "manifest.json").write_text(json.dumps(manifest | {"version": 4}))
    store.file("digits").write(Installed(running="a"))
    reason = "unloaded; POST /v2/repository/models/digits/load serves it again"
    index = [{"name": "digits", "version": "4", "state": "UNAVAILABLE", "reason": reason}]

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=index if request.method == "POST" else {"models": []})

    bundles, _ = bundles_in_use(settings)
    async with httpx.AsyncClient(base_url="http://gateway/", transport=httpx.MockTransport(answer)) as client:
        [finding] = await served_findings("links[0]", client, bundles)
    assert finding.subject == "links[0] model digits 4"
    assert (finding.detail, finding.advice) == (f"the gateway does not serve it: {reason}", "")
    assert "digits 4" in next(model_findings(settings, bundles)).subject


@pytest.mark.parametrize(
    ("changed", "detail", "advice"),
    [
        ({"adaptation__enabled": True}, "adaptation.enabled changes nothing: the bundle has one", "firstline compress"),
        (
            {"models__as_planned": True},
            "models.as_planned changes nothing: there is no profile",
            "profile create digits",
        ),
    ],
)
def test_settings_that_change_nothing_for_a_bundle_give_a_hint(
    changed: dict[str, bool], detail: str, advice: str, tmp_path: Path
) -> None:
    bundle = shutil.copytree(DIGITS, tmp_path / "digits")
    manifest = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(json.dumps(manifest | {"edge": manifest["edge"][:1]}))
    settings, bundles = {"models__directories": [str(bundle)]}, [open_bundle(bundle)]
    assert len(list(model_findings(edge_settings(tmp_path, **settings), bundles))) == 1
    [_, found] = model_findings(edge_settings(tmp_path, **settings, **changed), bundles)
    assert (found.subject, found.severity) == ("model digits 1", Severity.HINT)
    assert detail in found.detail
    assert advice in found.advice


def test_settings_that_a_bundle_uses_give_no_hint(tmp_path: Path) -> None:
    path = StatePaths(tmp_path).device_profile_path("digits")
    path.parent.mkdir()
    here = describe_device(Tree(Path("/")), tmp_path).fingerprint
    path.write_bytes(encode(replace(profile(1.0), fingerprint=here)))
    settings = edge_settings(tmp_path, adaptation__enabled=True, models__as_planned=True)
    assert not [found for found in model_findings(settings, [open_bundle(DIGITS)]) if "changes nothing" in found.detail]


async def test_an_unknown_authority_of_the_gateway_is_named_once(tmp_path: Path) -> None:
    async with tls_site(tmp_path / "site") as site:
        settings = edge_settings(tmp_path / "state", links=[{"kind": "http", "url": site.url}])
        [finding], _ = await link_findings(settings)
    assert finding.severity is Severity.ERROR
    assert finding.detail.startswith(f"The certificate of {site.url} is not trusted (")
    assert finding.detail.endswith("authorities.pem, in tls_ca_file of this link.")
    assert "_ssl.c" not in finding.detail


async def test_an_absurd_date_of_a_gateway_is_ignored(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                date = b"Fri, 31 Dec 2027 23:59:59 +9999999999999"
                writer.write(b'HTTP/1.1 200 OK\r\nDate: %b\r\nContent-Length: 13\r\n\r\n{"live":true}' % date)
        writer.close()

    async with serving_streams(serve) as port:
        link = {"kind": "http", "url": f"http://127.0.0.1:{port}"}
        findings, offset_s = await link_findings(edge_settings(tmp_path / "state", links=[link]))
    assert [finding.severity for finding in findings] == [Severity.OK] * 2 and offset_s is None


async def test_a_silent_gateway_is_reported_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        link = {"kind": "http", "url": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        [finding], _ = await link_findings(edge_settings(tmp_path / "state", links=[link]))
    assert finding.severity is Severity.ERROR
    assert "did not answer within 3 s" in finding.detail


async def test_a_silent_ipv6_address_hides_no_gateway(tmp_path: Path) -> None:
    async with serving_gateway(tmp_path, auth__mode="off") as (_, url):
        port = httpx.URL(url).port or 0
        link = {"kind": "http", "url": f"http://{NAME}:{port}", "plain_http": True}
        settings = edge_settings(tmp_path / "state", links=[link], audit__per_hour=0.0)
        with silent_ipv6(port):
            found, _ = await link_findings(settings, [open_bundle(DIGITS)])
            assert [finding.severity for finding in found] == [Severity.OK] * 3
            assert found[1].subject.endswith("token") and found[2].subject.endswith("model digits 1")
            async with EdgeAgent(settings) as agent:
                started_s = time.monotonic()
                answer = await agent.data_plane.infer_file("digits", noise(1), route="cloud", timeout="5000000")
                assert time.monotonic() - started_s < 1
                assert answer.answer is not None and answer.answer.tier is Tier.CLOUD
                assert agent.links.chain.available


async def test_doctor_reports_an_outbox_that_refuses(tmp_path: Path) -> None:
    settings = edge_settings(tmp_path / "state")
    assert list(outbox_findings(settings)) == []
    async with serving_agent(settings) as (agent, url):
        agent.state.publish_url(url)
        assert await asyncio.to_thread(list, outbox_findings(settings)) == []
        with contextlib.closing(sqlite3.connect(agent.state.outbox_path)) as connection, connection:
            connection.execute("ALTER TABLE answers RENAME TO elsewhere")  # as if its page could not be read
        with pytest.raises(CapacityError):
            await agent.outbox.delete_old_answers()
        [finding] = await asyncio.to_thread(list, outbox_findings(settings))
    assert finding.severity is Severity.WARNING
    assert "The outbox could not be written" in finding.detail
