"""Devices at a real gateway over real TLS: enrolled, served, renewed, revoked; and everybody who must not come in."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from sqlalchemy import insert
from support.databases import sqlite_store
from support.gateway import DIGITS, serving
from support.identities import DAY_S, Device, csr, invite
from support.keys import bearer, create_key

from firstline_core.protocol.enrolment import (
    CA_PATH,
    DEVICES_PATH,
    RENEW_PATH,
    parse_join_token,
    public_key_hash,
)
from firstline_gateway.gateway import Gateway, open_gateway
from firstline_gateway.identity import ca
from firstline_gateway.identity.enrolment import next_version
from firstline_gateway.identity.tables import CERTIFICATES
from firstline_gateway.settings import load

REFRESH_S = 0.2


class Site:
    """A gateway that serves HTTPS, and whoever keeps its fleet."""

    def __init__(self, gateway: Gateway, url: str, folder: Path, keeper: httpx.AsyncClient) -> None:
        self.gateway = gateway
        self.url = url
        self.folder = folder
        self.keeper = keeper
        self.authority = gateway.identity.folder.open().active

    def device(self, name: str = "press-7") -> Device:
        return Device(self.folder / name, self.url, self.authority.pem, name)

    async def enrolled(self, name: str = "press-7") -> Device:
        device = self.device(name)
        (token,) = await invite(self.keeper, name)
        assert (await device.enrol(token)).status_code == 200
        return device

    def issued(self, device: str, pem: str) -> None:
        """Has the store know a certificate that the test made."""
        found = ca.load_certificate(pem.encode())
        with self.gateway.database.begin() as on:
            version = next_version(on)
            on.execute(
                insert(CERTIFICATES).values(
                    serial=ca.serial_of(found),
                    device=device,
                    issued_s=found.not_valid_before_utc.timestamp(),
                    not_after_s=found.not_valid_after_utc.timestamp(),
                    changed=version,
                )
            )


@asynccontextmanager
async def site(folder: Path, **overrides: object) -> AsyncIterator[Site]:
    settings = load(
        None,
        overrides={
            "models.directory": str(DIGITS.parent),
            "store.url": sqlite_store(folder).url,
            "tls.enabled": True,
            "tls.hosts": ["127.0.0.1"],
            "identity.directory": str(folder / "identity"),
            "auth.refresh_s": REFRESH_S,
        }
        | overrides,
    )
    headers = bearer(create_key(settings.store, f"anna-{time.time_ns()}", "operator"))
    gateway = open_gateway(settings)
    believed = ssl.create_default_context(cadata=gateway.identity.folder.open().pem)
    async with (
        serving(gateway) as url,
        httpx.AsyncClient(base_url=url, verify=believed, headers=headers) as keeper,
    ):
        yield Site(gateway, url, folder, keeper)


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as found:
        yield found


async def refusal(client: httpx.AsyncClient, path: str = "/v2") -> str:
    """The sentence with which a request is refused for who asks."""
    reply = await client.get(path)
    assert (reply.status_code, reply.json()["code"]) == (401, "unauthorized"), reply.text
    sentence: str = reply.json()["error"]
    return sentence


async def test_a_device_enrols_with_nothing_but_its_token(at: Site) -> None:
    (token,) = await invite(at.keeper, "press-7")
    assert at.url.startswith("https://")
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    async with httpx.AsyncClient(base_url=at.url, verify=unverified) as stranger:
        pem = (await stranger.get(CA_PATH)).text
    assert public_key_hash(pem) == parse_join_token(token).ca_hash
    device = Device(at.folder / "device", at.url, pem)
    answer = (await device.enrol(token)).json()
    assert (answer["device"], answer["ca"], answer["broker"]) == ("press-7", pem, None)
    assert answer["now_s"] == pytest.approx(time.time(), abs=60)
    made = ca.load_certificate(answer["certificate"].encode())
    assert made.subject.rfc4514_string() == "CN=press-7", "the name is the token's, not the request's"
    assert made.public_key() == device.key.public_key()
    async with device.client() as client:
        assert (await client.get("/v2/models/digits")).status_code == 200
    (listed,) = (await at.keeper.get(DEVICES_PATH)).json()["devices"]
    assert (listed["device"], listed["revoked_s"], listed["invited_until_s"]) == ("press-7", None, None)
    assert listed["certificate_expires_s"] == pytest.approx(time.time() + 90 * DAY_S, abs=60)


async def test_without_certificate_and_key_only_health_is_open(at: Site) -> None:
    async with at.device().client() as client:
        assert (await client.get("/v2/health/ready")).status_code == 200
        assert "needs an API key, or a device's certificate" in await refusal(client)
        for method, path in (("POST", DEVICES_PATH), ("GET", DEVICES_PATH), ("POST", RENEW_PATH), ("GET", "/metrics")):
            assert (await client.request(method, path)).status_code == 401


async def test_a_device_may_infer_and_renew_and_nothing_else(at: Site) -> None:
    device = await at.enrolled()
    async with device.client() as client:
        for method, path in (
            ("GET", "/metrics"),
            ("GET", "/firstline/v1/contracts"),
            ("DELETE", "/firstline/v1/contracts/digits/versions/1"),
            ("POST", DEVICES_PATH),
            ("GET", DEVICES_PATH),
            ("POST", f"{DEVICES_PATH}/press-7/revoke"),
        ):
            reply = await client.request(method, path)
            assert (reply.status_code, reply.json()["code"]) == (403, "forbidden"), path
            assert "device:press-7 may not" in reply.json()["error"]
    assert (await device.renew()).status_code == 200
    async with device.client() as client:
        assert (await client.get("/v2")).status_code == 200


async def test_a_token_enrols_one_key_once_and_gives_that_key_its_answer_again(at: Site) -> None:
    (token,) = await invite(at.keeper, "press-7")
    device, thief = at.device(), at.device("thief")
    answers = await asyncio.gather(*(device.enrol(token) for _ in range(4)))
    assert {reply.status_code for reply in answers} == {200}
    assert len({reply.json()["certificate"] for reply in answers}) == 1
    refused = await thief.enrol(token)
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
    assert "it was used" in refused.json()["error"] and token not in refused.text


async def test_of_many_that_have_one_token_one_comes_in(at: Site) -> None:
    (token,) = await invite(at.keeper, "press-7")
    replies = await asyncio.gather(*(at.device(f"thief-{number}").enrol(token) for number in range(8)))
    assert sorted(reply.status_code for reply in replies) == [200] + [401] * 7


async def test_a_newer_invitation_ends_the_one_before(at: Site) -> None:
    (first,) = await invite(at.keeper, "press-7")
    (second,) = await invite(at.keeper, "press-7")
    assert (await at.device().enrol(first)).status_code == 401
    assert (await at.device().enrol(second)).status_code == 200


async def test_enrolling_a_name_again_ends_its_older_certificates(at: Site) -> None:
    before = await at.enrolled()
    async with before.client() as client:
        assert (await client.get("/v2")).status_code == 200
        (token,) = await invite(at.keeper, "press-7")
        assert (await client.get("/v2")).status_code == 200, "an invitation alone ends nothing"
        after = Device(at.folder / "reset", at.url, at.authority.pem)
        assert (await after.enrol(token)).status_code == 200
        assert "was revoked" in await refusal(client)
    async with after.client() as client:
        assert (await client.get("/v2")).status_code == 200


async def test_a_revocation_closes_open_connections_and_reaches_the_list(at: Site) -> None:
    device, other = await at.enrolled(), await at.enrolled("press-8")
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(at.url).port, ssl=device.context())
    async with other.client() as unharmed:
        assert (await unharmed.get("/v2")).status_code == 200
        assert (await at.keeper.post(f"{DEVICES_PATH}/press-7/revoke")).json() == {"revoked": "press-7"}
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        assert (await unharmed.get("/v2")).status_code == 200
    writer.close()
    async with device.client() as client:
        assert "was revoked on" in await refusal(client)
        assert (await client.post(RENEW_PATH, json={"csr": csr(device.key)})).status_code == 401
    listed = x509.load_pem_x509_crl((at.folder / "identity" / "crl.pem").read_bytes())
    shown = ca.load_certificate((device.folder / "device.pem").read_bytes())
    assert [entry.serial_number for entry in listed] == [shown.serial_number]
    assert listed.is_signature_valid(at.authority.key.public_key())
    assert at.gateway.identity.gatekeeper.known.is_revoked("press-7")
    assert (await at.keeper.post(f"{DEVICES_PATH}/nobody/revoke")).status_code == 400


async def test_a_revocation_by_another_replica_closes_connections_within_the_stated_time(tmp_path: Path) -> None:
    async with site(tmp_path) as first, site(tmp_path) as second:
        device = await first.enrolled()
        device.url = second.url  # which has not heard of it yet
        async with device.client() as client:
            assert (await client.get("/v2")).status_code == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(second.url).port, ssl=device.context())
        started_s = time.monotonic()
        assert (await first.keeper.post(f"{DEVICES_PATH}/press-7/revoke")).status_code == 200
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        assert time.monotonic() - started_s < REFRESH_S + 1  # and what a busy machine takes
        writer.close()
