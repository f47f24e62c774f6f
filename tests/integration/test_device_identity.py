"""Devices at a real gateway over real TLS: enrolled, served, renewed, revoked; and everybody who must not come in."""

import asyncio
import base64
import json
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from support.identities import Device, certificate, csr, invite
from support.images import grey, images
from support.inference import digits_request, post
from support.tls_site import REFRESH_S, TlsSite, refusal, tls_site

from firstline_core.ids import new_request_id
from firstline_core.protocol.enrolment import (
    CA_PATH,
    DEVICES_PATH,
    ENROL_PATH,
    RENEW_PATH,
    parse_join_token,
    public_key_hash,
)
from firstline_core.units import DAY_S
from firstline_gateway.identity import ca
from firstline_gateway.identity.ca import Authority


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[TlsSite]:
    async with tls_site(tmp_path) as found:
        yield found


async def test_a_device_enrols_with_nothing_but_its_token(at: TlsSite) -> None:
    (token,) = await invite(at.operator, "press-7")
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
    certificate = ca.load_certificate(answer["certificate"].encode())
    assert certificate.subject.rfc4514_string() == "CN=press-7", "the name is the token's, not the request's"
    assert certificate.public_key() == device.key.public_key()
    async with device.client() as client:
        assert (await client.get("/v2/models/digits")).status_code == 200
    (listed,) = (await at.operator.get(DEVICES_PATH)).json()["devices"]
    assert (listed["device"], listed["revoked_s"], listed["invited_until_s"]) == ("press-7", None, None)
    assert listed["certificate_expires_s"] == pytest.approx(time.time() + 90 * DAY_S, abs=60)


async def test_token_enrols_one_key_and_repeats_its_certificate(at: TlsSite) -> None:
    (token,) = await invite(at.operator, "press-7")
    device, thief = at.device(), at.device("thief")
    answers = await asyncio.gather(*(device.enrol(token) for _ in range(4)))
    assert {reply.status_code for reply in answers} == {200}
    assert len({reply.json()["certificate"] for reply in answers}) == 1
    refused = await thief.enrol(token)
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
    assert "it was used" in refused.json()["error"] and token not in refused.text


async def test_enrolling_a_name_again_ends_its_older_certificates(at: TlsSite) -> None:
    before = await at.enrolled()
    async with before.client() as client:
        assert (await client.get("/v2")).status_code == 200
        (token,) = await invite(at.operator, "press-7")
        assert (await client.get("/v2")).status_code == 200, "an invitation alone ends nothing"
        after = Device(at.folder / "reset", at.url, at.authority.pem)
        assert (await after.enrol(token)).status_code == 200
        assert "was revoked" in await refusal(client)
    async with after.client() as client:
        assert (await client.get("/v2")).status_code == 200


async def test_a_revocation_closes_open_connections_and_reaches_the_list(at: TlsSite) -> None:
    device, other = await at.enrolled(), await at.enrolled("press-8")
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(at.url).port, ssl=device.context())
    async with other.client() as unharmed:
        assert (await unharmed.get("/v2")).status_code == 200
        assert (await at.operator.post(f"{DEVICES_PATH}/press-7/revoke")).json() == {"revoked": "press-7"}
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
    assert at.gateway.identity.gatekeeper.credentials.is_revoked("press-7")
    assert (await at.operator.post(f"{DEVICES_PATH}/nobody/revoke")).status_code == 400
    entries = (await at.operator.get("/fleet/v1/audit", params={"subject": "device:press-7"})).json()["entries"]
    assert [entry["action"] for entry in entries] == ["device.invite", "device.enrol", "device.revoke"]
    assert entries[1]["actor"] == "device:press-7"
    assert all(entries[position]["actor"].startswith("application:") for position in (0, 2))


async def test_revocation_by_another_replica_closes_connections(tmp_path: Path) -> None:
    async with tls_site(tmp_path) as first, tls_site(tmp_path) as second:
        device = await first.enrolled()
        device.url = second.url  # which has not heard of it yet
        async with device.client() as client:
            assert (await client.get("/v2")).status_code == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(second.url).port, ssl=device.context())
        started_s = time.monotonic()
        assert (await first.operator.post(f"{DEVICES_PATH}/press-7/revoke")).status_code == 200
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        assert time.monotonic() - started_s < REFRESH_S + 4  # and what a busy machine takes
        writer.close()


async def test_expired_certificate_is_renewed_only_within_the_grace_period(at: TlsSite) -> None:
    device, now_s = at.device(), time.time()
    for days_ago, sentence in ((5, "; renew it."), (120, "; enrol the device with a new join token.")):
        ended = certificate(
            at.authority, device.key.public_key(), start_s=now_s - 200 * DAY_S, end_s=now_s - days_ago * DAY_S
        )
        at.record_certificate("press-7", ended)
        device.keep(ended)
        async with device.client() as client:
            detail = await refusal(client)
        assert "expired on 20" in detail and detail.endswith(sentence)
        if days_ago == 120:
            assert (await device.renew()).status_code == 401
        else:
            assert (await device.renew()).status_code == 200
            async with device.client() as client:
                assert (await client.get("/v2")).status_code == 200


async def test_certificate_from_the_future_is_refused(at: TlsSite) -> None:
    device, now_s = at.device(), time.time()
    early = certificate(at.authority, device.key.public_key(), start_s=now_s + DAY_S, end_s=now_s + 2 * DAY_S)
    at.record_certificate("press-7", early)
    device.keep(early)
    async with device.client() as client:
        assert "is the gateway's clock right?" in await refusal(client)
    assert (await device.renew()).status_code == 401


async def test_certificate_unknown_to_the_store_is_refused(at: TlsSite) -> None:
    """An attacker with a copy of the authority's key makes certificates that are wrong only in this."""
    device, now_s = at.device(), time.time()
    device.keep(certificate(at.authority, device.key.public_key(), start_s=now_s - DAY_S, end_s=now_s + DAY_S))
    async with device.client() as client:
        assert "has not issued the certificate" in await refusal(client)
    assert (await device.renew()).status_code == 401


async def test_one_devices_serial_number_under_another_name_is_refused(at: TlsSite) -> None:
    await at.enrolled()
    (serial,) = at.gateway.identity.gatekeeper.credentials._certificates
    other, now_s = at.device("press-8"), time.time()
    other.keep(
        certificate(
            at.authority,
            other.key.public_key(),
            "press-8",
            start_s=now_s - DAY_S,
            end_s=now_s + DAY_S,
            serial=int(serial, 16),
        )
    )
    async with other.client() as client:
        assert "has not issued" in await refusal(client)


async def fails_in_the_handshake(device: Device) -> None:
    """In TLS 1.3 a client hears of it with the first thing that it reads."""
    with pytest.raises(httpx.TransportError):
        async with device.client() as client:
            await client.get("/v2/health/live")


async def test_foreign_certificates_fail_the_handshake(at: TlsSite) -> None:
    device, now_s = at.device(), time.time()
    foreign = ca.create_authority(ca.new_key(), now_s)
    times = {"start_s": now_s - DAY_S, "end_s": now_s + DAY_S}
    device.keep(certificate(foreign, device.key.public_key(), **times))
    await fails_in_the_handshake(device)
    # One that bears our authority's name, and was signed with another key.
    device.keep(certificate(Authority(at.authority.certificate, foreign.key), device.key.public_key(), **times))
    await fails_in_the_handshake(device)
    # Ours, but for a server.
    device.keep(certificate(at.authority, device.key.public_key(), server=True, **times))
    await fails_in_the_handshake(device)


async def test_certificate_without_its_key_is_refused(at: TlsSite) -> None:
    """What a thief has who read it from a log; he signs the handshake with a key of his own."""
    device, thief = await at.enrolled(), at.device("thief")
    stolen = (device.folder / "device.pem").read_text()
    thief.keep(stolen)
    with pytest.raises(ssl.SSLError, match="KEY_VALUES_MISMATCH"):  # so far OpenSSL protects him from himself
        thief.context()
    (thief.folder / "device.key").write_bytes(disguised(thief.key, device.key.public_key()))
    await fails_in_the_handshake(thief)
    assert (await device.renew()).status_code == 200


def disguised(key: ec.EllipticCurvePrivateKey, public_key: ec.EllipticCurvePublicKey) -> bytes:
    """A private key's file with the public key of another: the two are only compared by what the file says."""
    encoded = key.private_bytes(Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    own, other = (
        found.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint) for found in (key.public_key(), public_key)
    )
    assert own in encoded
    text = base64.encodebytes(encoded.replace(own, other)).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{text}-----END EC PRIVATE KEY-----\n".encode()


async def test_a_device_without_a_clock_enrols_and_renews(at: TlsSite, tmp_path: Path) -> None:
    """Its TLS stack takes the time for 1970, when none of these certificates was valid."""
    faketime = ["-attime", "86400"]
    (token,) = await invite(at.operator, "press-7")
    device = at.device()
    body = json.dumps({"secret": parse_join_token(token).secret, "csr": csr(device.key)})
    (tmp_path / "ca.pem").write_text(at.authority.pem)
    assert "certificate is not yet valid" in await asked_by_openssl(at, tmp_path, faketime, ENROL_PATH, body)
    answered = await asked_by_openssl(at, tmp_path, ["-no_check_time"], ENROL_PATH, body)
    assert "200 OK" in answered
    device.keep(json.loads(answered[answered.index("{") :])["certificate"])
    shown = ["-cert", str(device.folder / "device.pem"), "-key", str(device.folder / "device.key")]
    renewal = json.dumps({"csr": csr(device.key)})
    assert "200 OK" in await asked_by_openssl(at, tmp_path, [*shown, "-no_check_time"], RENEW_PATH, renewal)


async def asked_by_openssl(at: TlsSite, folder: Path, arguments: list[str], path: str, body: str) -> str:
    """What `openssl s_client` prints when it sends a request, verifying the server as a device does."""
    url = httpx.URL(at.url)
    request = (
        f"POST {path} HTTP/1.1\r\nHost: {url.host}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
    )
    process = await asyncio.create_subprocess_exec(
        *("openssl", "s_client", "-connect", f"{url.host}:{url.port}", "-CAfile", str(folder / "ca.pem"), "-quiet"),
        *("-verify_return_error", "-ign_eof", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(request.encode()), 20)
    return output.decode()


async def test_device_cannot_read_another_devices_answers(at: TlsSite) -> None:
    """Request ids are kept per principal, which the certificate decides and no header."""
    first, second = await at.enrolled("press-7"), await at.enrolled("press-8")
    request_id = new_request_id()
    request = digits_request(images(grey()), request_id=request_id, binary_output=False)
    for device in (first, second):
        async with device.client() as client:
            reply = await post(client, request)
            assert (reply.status_code, reply.json()["parameters"]["request_id"]) == (200, request_id)
            spoofed = await client.get("/v2", headers={"X-Client-Cert": "x", "Authorization": "Bearer flk_x"})
            assert spoofed.status_code == 200, "a certificate goes before whatever a header says"
            assert (await client.get(f"/firstline/v1/answers/{request_id}")).status_code == 404
