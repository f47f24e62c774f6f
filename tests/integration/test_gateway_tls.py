"""HTTPS itself: versions, certificates exchanged while it serves, authorities that take over; what a proxy may say."""

import asyncio
import json
import shutil
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
import uvloop
from support.commands import gateway_status
from support.databases import PostgreSql, sqlite_store
from support.gateway import client_of, serving_gateway
from support.identities import Device, csr, invite
from support.keys import bearer, create_key
from support.logs import captured_lines
from support.tls_site import TlsSite, refusal, tls_site

from firstline.client.async_client import AsyncClient
from firstline_core.errors import ConfigError, LinkDownError
from firstline_core.protocol.enrolment import CA_PATH, DEVICES_PATH, ENROL_PATH, RENEW_PATH, parse_join_token
from firstline_core.protocol.http_server import ServerLimits
from firstline_core.units import DAY_S
from firstline_gateway.checks import check_files
from firstline_gateway.identity import authorities, ca
from firstline_gateway.settings.load import load


def shown_by(url: str, believed_pem: str, *, version: ssl.TLSVersion | None = None) -> tuple[bytes, str | None]:
    """The server's certificate (DER), and the version of TLS."""
    context = ssl.create_default_context(cadata=believed_pem)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    found = httpx.URL(url)
    with (
        socket.create_connection((found.host, found.port or 0), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=found.host) as tls,
    ):
        return tls.getpeercert(binary_form=True) or b"", tls.version()


async def test_tls_1_2_is_the_oldest_version(tmp_path: Path) -> None:
    async with tls_site(tmp_path) as at:
        for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
            _, spoken = await asyncio.to_thread(shown_by, at.url, at.authority.pem, version=version)
            assert spoken == name
        with pytest.warns(DeprecationWarning), pytest.raises(OSError):
            await asyncio.to_thread(shown_by, at.url, at.authority.pem, version=ssl.TLSVersion.TLSv1_1)


async def test_clients_trust_the_given_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with tls_site(tmp_path) as at:
        key = create_key(sqlite_store(tmp_path), "shop")
        bundle = tmp_path / "identity" / "authorities.pem"
        assert "model: digits version 1" in await gateway_status(at.url, key, "--ca", bundle)
        assert "is not trusted" in await gateway_status(at.url, key, code=1)
        async with AsyncClient(at.url, token=key, ca_file=bundle) as client:
            assert await client.ready()
        async with AsyncClient(at.url, token=key) as client:
            with pytest.raises(LinkDownError, match=r"is not trusted .*`ca_file`"):
                await client.ready()
        with pytest.raises(ConfigError, match=r"nowhere\.pem does not exist"):
            AsyncClient(at.url, ca_file="nowhere.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
        async with AsyncClient(at.url, token=key) as client:
            assert await client.ready()
            assert (await client.metadata("digits")).name == "digits"


async def test_unfinished_handshakes_delay_no_other_client(tmp_path: Path) -> None:
    async with tls_site(tmp_path, limits=ServerLimits(pending=16)) as at:  # fewer than come
        address = ("127.0.0.1", httpx.URL(at.url).port or 0)
        silent = [socket.create_connection(address) for _ in range(20)]
        silent[0].sendall(b"GET / HTTP/1.1\r\n\r\n")  # plain HTTP
        silent[1].sendall(bytes(range(256)) * 16)
        for _ in range(3):
            async with at.trusting(at.authority.pem) as newcomer:
                assert (await newcomer.get(DEVICES_PATH)).status_code == 200
        for one in silent:
            one.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_hello_that_arrives_with_the_connection_is_read(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tls_site(tmp_path) as at:
            shake = partial(asyncio.to_thread, shown_by, at.url, at.authority.pem)
            shaking = asyncio.gather(*(shake() for _ in range(30)))
            while not shaking.done():
                time.sleep(0.004)  # noqa: ASYNC251 (a busy loop: connection and hello come in one turn)
                await asyncio.sleep(0)
            assert len(await shaking) == 30

    run(scenario())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_handshake_times_out(run: Callable[..., None], tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tls_site(tmp_path, limits=ServerLimits(handshake_s=0.2)) as at:
            address = ("127.0.0.1", httpx.URL(at.url).port or 0)
            silent, begun = [await asyncio.open_connection(*address) for _ in range(2)]
            begun[1].write(b"\x16\x03\x01")  # the first bytes of a hello
            async with asyncio.timeout(5):
                assert await silent[0].read() == await begun[0].read() == b""
            for _, writer in (silent, begun):
                writer.close()
            async with at.trusting(at.authority.pem) as newcomer:
                assert (await newcomer.get(DEVICES_PATH)).status_code == 200
                body = "x" * 300_000  # in flight with the end of the handshake, and long after
                assert (await newcomer.post(DEVICES_PATH, content=body)).status_code == 400

    run(scenario())


async def test_operators_certificate_is_reloaded(tmp_path: Path) -> None:
    other = ca.create_authority(ca.new_key(), time.time())
    files = {"tls__certificate_file": tmp_path / "server.pem", "tls__key_file": tmp_path / "server.key"}

    def put() -> bytes:
        certificate, key = ca.issue_server(other, ["127.0.0.1"], time.time())
        authorities.write(files["tls__certificate_file"], ca.pem_of(certificate).encode())
        authorities.write(files["tls__key_file"], ca.key_pem(key), private=True)
        return ssl.PEM_cert_to_DER_cert(ca.pem_of(certificate))

    (tmp_path / "other.pem").write_text(other.pem)
    first = put()
    overrides = {name: str(file) for name, file in files.items()} | {"tls__ca_file": str(tmp_path / "other.pem")}
    async with tls_site(tmp_path, **overrides) as at:
        tls = at.gateway.identity.tls
        assert (await asyncio.to_thread(shown_by, at.url, other.pem))[0] == first
        assert not await tls.refresh()
        second = put()
        assert await tls.refresh()
        ends_s = at.gateway.metrics.registry.get_sample_value(
            "firstline_gateway_server_certificate_timestamp_seconds", {"bound": "end"}
        )
        assert (
            ends_s == ca.load_certificate(files["tls__certificate_file"].read_bytes()).not_valid_after_utc.timestamp()
        )
        assert (await asyncio.to_thread(shown_by, at.url, other.pem))[0] == second
        authorities.write(files["tls__key_file"], ca.key_pem(ca.new_key()), private=True)
        with pytest.raises(ConfigError, match=r"tls\.certificate_file .* cannot be used"):
            await tls.refresh()
        assert (await asyncio.to_thread(shown_by, at.url, other.pem))[0] == second, "a bad pair changes nothing"
        # Devices receive the CA certificate of the server, and certificates are the gateway's own authority's.
        at.operator = at.trusting(other.pem)
        (token,) = await invite(at.operator, "press-7")
        device = Device(tmp_path / "press-7", at.url, other.pem)
        answer = (await device.enrol(token)).json()
        assert answer["ca"] == other.pem + at.authority.pem
        async with device.client() as client:
            assert (await client.get("/v2")).status_code == 200
        await at.operator.aclose()


async def test_the_gateways_own_certificate_follows_its_authority(tmp_path: Path) -> None:
    """An authority takes over from another, and no device is shut out that renewed in between."""
    async with tls_site(tmp_path) as at:
        tls, directory = at.gateway.identity.tls, at.gateway.identity.folder.directory
        early, late = await at.enrolled("early"), await at.enrolled("late")
        following = ca.create_authority(ca.new_key(), time.time())
        authorities.prepare_next(directory, following, time.time())
        assert await tls.refresh()
        answer = (await early.renew()).json()
        assert answer["ca"] == at.authority.pem + following.pem
        early.ca_pem = answer["ca"]
        authorities.switch(directory)
        assert await tls.refresh()
        async with early.client() as client:
            assert (await client.get("/v2")).status_code == 200
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            async with late.client() as client:
                await client.get("/v2")
        late.ca_pem = answer["ca"]  # its certificate of before is believed still
        renewed = (await late.renew()).json()
        assert renewed["ca"] == following.pem + at.authority.pem
        certificate = ca.load_certificate(renewed["certificate"].encode())
        certificate.verify_directly_issued_by(following.certificate)
        async with late.client() as client:
            assert (await client.get("/v2")).status_code == 200


async def test_imported_authority_issues_device_certificates(tmp_path: Path) -> None:
    own = ca.create_authority(ca.new_key(), time.time())
    authorities.import_authority(tmp_path / "identity", own)
    async with tls_site(tmp_path) as at:
        assert at.authority.pem == own.pem
        device = await at.enrolled()
        async with device.client() as client:
            assert (await client.get("/v2")).status_code == 200


@asynccontextmanager
async def behind_a_proxy(folder: Path, *trusted: str) -> AsyncIterator[tuple[TlsSite, httpx.AsyncClient]]:
    """A gateway on plain HTTP, and a client that is, or is not, the proxy it believes."""
    believed = {"auth__proxy_certificate_header": "X-Client-Cert", "auth__trusted_proxies": list(trusted)}
    async with (
        serving_gateway(folder, **believed) as (gateway, url),
        client_of(gateway, url, "anna", "operator") as operator,
        httpx.AsyncClient(base_url=url) as client,
    ):
        yield TlsSite(gateway, url, folder, operator), client


async def by_proxy(at: TlsSite, client: httpx.AsyncClient) -> dict[str, str]:
    """The header that a proxy would set for a device that has just enrolled."""
    (token,) = await invite(at.operator, "press-7")
    body = {"secret": parse_join_token(token).secret, "csr": csr(ca.new_key())}
    reply = await client.post(ENROL_PATH, json=body)
    return {"X-Client-Cert": quote(reply.json()["certificate"])}


async def test_trusted_proxy_may_send_the_certificate(tmp_path: Path) -> None:
    async with behind_a_proxy(tmp_path, "127.0.0.0/8") as (at, client):
        headers = await by_proxy(at, client)
        assert (await client.get("/v2", headers=headers)).status_code == 200
        assert (await client.get(DEVICES_PATH, headers=headers)).status_code == 403
        assert (await client.post(RENEW_PATH, headers=headers, json={"csr": csr(ca.new_key())})).status_code == 200
        assert (await client.get("/v2", headers={"X-Client-Cert": ""})).status_code == 401
        twice = [("X-Client-Cert", headers["X-Client-Cert"])] * 2
        assert (await client.get("/v2", headers=twice)).status_code == 401
        assert (await at.operator.post(f"{DEVICES_PATH}/press-7/revoke")).status_code == 200
        assert (await client.get("/v2", headers=headers)).status_code == 401


@pytest.mark.parametrize("path", ["/v2/models/digits/infer", RENEW_PATH])
async def test_certificate_header_in_a_trailer_is_ignored(path: str, tmp_path: Path) -> None:
    """A proxy strips its header from what clients send, and may hand their trailers on."""
    async with behind_a_proxy(tmp_path, "127.0.0.0/8") as (at, client):
        certificate = (await by_proxy(at, client))["X-Client-Cert"]
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(f"{head}2\r\n{{}}\r\n0\r\nX-Client-Cert: {certificate}\r\n\r\n".encode())
        async with asyncio.timeout(10):
            reply = await reader.read()
        writer.close()
        assert reply.startswith(b"HTTP/1.1 401 "), reply


async def test_certificate_header_of_other_clients_is_ignored(tmp_path: Path) -> None:
    async with behind_a_proxy(tmp_path, "192.0.2.7") as (at, client):
        headers = await by_proxy(at, client)
        assert "needs an API key" in await refusal(client, headers=headers)
        assert (await client.post(RENEW_PATH, headers=headers, json={"csr": csr(ca.new_key())})).status_code == 401


async def test_attempts_to_enrol_are_counted_by_address(tmp_path: Path) -> None:
    async with tls_site(tmp_path, identity__attempts_per_minute=3) as at:
        device = at.device()
        for _ in range(5):  # what succeeds does not count
            (token,) = await invite(at.operator, "press-7")
            assert (await device.enrol(token)).status_code == 200
        (token,) = await invite(at.operator, "press-8")
        for _ in range(3):
            body = {"secret": "A" * 43, "csr": csr(device.key)}
            assert (await at.operator.post(ENROL_PATH, json=body)).status_code == 401
        refused = await device.enrol(token)
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert 1 <= int(refused.headers["Retry-After"]) <= 20


async def test_invalid_enrolments_are_refused(tmp_path: Path) -> None:
    bodies = [
        *(b"", b"{", b"[]", b"{}", b'{"secret": 1, "csr": ""}', b'{"secret": "\xff", "csr": ""}', b"[" * 15_000),
        *(b'{"secret": "a", "csr": "%s"}' % (b"x" * n) for n in (1, 100_000)),
        b'{"secret": "\\ud800\\udc00", "csr": ""}',
    ]
    async with behind_a_proxy(tmp_path, "192.0.2.7") as (at, client):
        assert at.gateway.settings.identity.attempts_per_minute > len(bodies)
        for body in bodies:
            for path in (ENROL_PATH, DEVICES_PATH):
                reply = await client.post(path, content=body)
                assert reply.status_code in (400, 401, 413), body
                assert reply.json()["error"].endswith(".")


async def test_neither_secrets_nor_keys_are_logged(tmp_path: Path) -> None:
    with captured_lines() as lines:
        async with tls_site(tmp_path) as at:
            (token,) = await invite(at.operator, "press-7")
            device = at.device()
            assert (await device.enrol(token)).status_code == 200
            assert (await at.device("thief").enrol(token)).status_code == 401
            assert (await device.renew()).status_code == 200
            assert (await at.operator.post(f"{DEVICES_PATH}/press-7/revoke")).status_code == 200
            secrets = (parse_join_token(token).secret, at.operator.headers["Authorization"].removeprefix("Bearer "))
    text = json.dumps([dict(line) for line in lines], default=str)
    for event in ("device invited", "device enrolled", "enrolment refused", "certificate renewed", "device revoked"):
        assert event in text
    assert not any(secret in text for secret in secrets)


def test_the_check_tries_a_certificate_before_it_is_served(tmp_path: Path) -> None:
    authority = ca.create_authority(ca.new_key(), time.time())
    certificate, key = ca.issue_server(authority, ["a.example"], time.time() - 100 * DAY_S)
    (tmp_path / "server.pem").write_text(ca.pem_of(certificate))
    (tmp_path / "server.key").write_bytes(ca.key_pem(key))
    files = {"tls.certificate_file": str(tmp_path / "server.pem"), "tls.key_file": str(tmp_path / "server.key")}
    found = load(None, overrides={"tls.enabled": True, **files})
    check_files(found)
    (tmp_path / "server.key").write_bytes(ca.key_pem(ca.new_key()))
    with pytest.raises(ConfigError, match="cannot be used: KEY_VALUES_MISMATCH"):
        check_files(found)
    (tmp_path / "server.key").unlink()
    with pytest.raises(ConfigError, match="cannot be used: there is no such file"):
        check_files(found)
    with pytest.raises(ConfigError, match="is no authority's"):
        check_files(load(None, overrides={"tls.ca_file": str(tmp_path / "server.pem")}))


async def test_store_outage_serves_known_callers_only(tmp_path: Path, postgresql: PostgreSql) -> None:
    async with tls_site(tmp_path, store__url=postgresql.new_database()) as at:
        device, late = await at.enrolled(), at.device("press-8")
        (token,) = await invite(at.operator, "press-8")
        postgresql.stop()
        try:
            async with device.client() as client:
                assert (await client.get("/v2")).status_code == 200
            assert (await at.operator.get("/v2")).status_code == 200
            stranger = await at.operator.get("/v2", headers=bearer("flk_x"))
            refused = await late.enrol(token)
            for reply in (stranger, refused):
                assert (reply.status_code, reply.json()["code"]) == (503, "store_unavailable"), reply.text
        finally:
            postgresql.start()
        async with asyncio.timeout(30):
            while (await late.enrol(token)).status_code != 200:  # noqa: ASYNC110 (it is the gateway that reconnects)
                await asyncio.sleep(0.1)
        assert (await at.operator.post(f"{DEVICES_PATH}/press-7/revoke")).status_code == 200
        async with device.client() as client:
            assert "was revoked" in await refusal(client)


async def test_unauthenticated_requests_create_no_authority(tmp_path: Path) -> None:
    async with behind_a_proxy(tmp_path, "127.0.0.0/8") as (at, client):
        shutil.rmtree(tmp_path / "identity")  # which the test's own site has made
        assert (await client.get(CA_PATH)).status_code == 400
        body = {"secret": "A" * 43, "csr": csr(ca.new_key())}
        assert (await client.post(ENROL_PATH, json=body)).status_code == 401
        assert "no certificate authority" in await refusal(client, headers={"X-Client-Cert": "x"})
        assert not (tmp_path / "identity").exists()
        (tmp_path / "identity").touch()
        refused = await at.operator.post(DEVICES_PATH, json={"devices": ["press-7"]})
        assert (refused.status_code, "its log says why" in refused.text) == (503, True)


async def test_open_connections_do_not_delay_the_shutdown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A client that reads nothing while it asks nothing, as httpx does, answers no TLS goodbye either."""
    async with AsyncExitStack() as clients:
        async with tls_site(tmp_path) as at:
            device = await clients.enter_async_context((await at.enrolled()).client())
            assert (await device.get("/v2")).status_code == 200
        assert [record.message for record in caplog.records if record.name == "uvicorn.error"] == []


async def test_enrolment_attempts_count_by_forwarded_address(tmp_path: Path) -> None:
    """One who guesses must not keep all others from enrolling; what he puts before the proxy's word counts nothing."""

    body = {"secret": "guess", "csr": csr(ca.new_key())}

    async def attempt(client: httpx.AsyncClient, *named: str) -> int:
        reply = await client.post(ENROL_PATH, json=body, headers=[("X-Forwarded-For", one) for one in named])
        return reply.status_code

    async def attempts_until_refused(client: httpx.AsyncClient, named: str) -> int:
        """Of which a slow machine is allowed some more, as time passes."""
        for number in range(10 * allowed):
            if (status := await attempt(client, named.format(number))) == 429:
                return number
            assert status == 401
        raise AssertionError("no attempt was refused")

    async with behind_a_proxy(tmp_path, "127.0.0.0/8") as (at, client):
        allowed = at.gateway.settings.identity.attempts_per_minute
        assert await attempts_until_refused(client, "198.51.100.{}, 192.0.2.1") >= allowed
        assert await attempt(client, "198.51.100.7", "192.0.2.2") == 401
        assert await attempt(client, "nonsense") == 401, "the proxy's own address"
    async with behind_a_proxy(tmp_path / "other", "192.0.2.0/24") as (_, client):
        await attempts_until_refused(client, "198.51.100.{}")  # no other client names an address
