"""Both ends of TLS: a device with its key, and the certificates that only a test would make."""

import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from firstline_core.protocol import enrolment
from firstline_gateway.identity import ca
from firstline_gateway.identity.ca import Authority


def csr(key: ec.EllipticCurvePrivateKey, name: str = "whatever the device says") -> str:
    """A certificate signing request."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(Encoding.PEM).decode()


def certificate(
    authority: Authority,
    public_key: ec.EllipticCurvePublicKey,
    device: str = "press-7",
    *,
    start_s: float,
    end_s: float,
    server: bool = False,
    serial: int | None = None,
) -> str:
    """A device's certificate with times and usage as a test wants them."""
    usage = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
    issued = (
        x509.CertificateBuilder(
            authority.certificate.subject,
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, device)]),
            public_key,
            serial or x509.random_serial_number(),
            datetime.fromtimestamp(start_s, UTC),
            datetime.fromtimestamp(end_s, UTC),
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(enrolment.device_urn(device))]), critical=False
        )
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return ca.pem_of(issued)


def server_tls(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """TLS of a server at 127.0.0.1, and the file of the authority that signed its certificate."""
    authority = ca.create_authority(ca.new_key(), time.time())
    issued, key = ca.issue_server(authority, ["127.0.0.1"], time.time())
    chain, trusted = folder / "server.pem", folder / "authority.pem"
    chain.write_bytes(ca.pem_of(issued).encode() + ca.key_pem(key))
    trusted.write_text(ca.pem_of(authority.certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain)
    return context, trusted


@dataclass
class Device:
    """A device with a key and, once it has enrolled, a certificate; `folder` is its own."""

    folder: Path
    url: str
    ca_pem: str
    name: str = "press-7"

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.key = ca.new_key()

    def keep(self, certificate_pem: str, key: ec.EllipticCurvePrivateKey | None = None) -> None:
        """Has the device show this certificate from now on."""
        (self.folder / "device.pem").write_text(certificate_pem)
        (self.folder / "device.key").write_bytes(ca.key_pem(key or self.key))

    def context(self) -> ssl.SSLContext:
        """TLS that believes the gateway's authority alone, and shows the certificate where there is one."""
        context = ssl.create_default_context(cadata=self.ca_pem)
        if (self.folder / "device.pem").exists():
            context.load_cert_chain(self.folder / "device.pem", self.folder / "device.key")
        return context

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, verify=self.context())

    async def enrol(self, token: str) -> httpx.Response:
        """Redeems a join token, and keeps what it brings."""
        body = {"secret": enrolment.parse_join_token(token).secret, "csr": csr(self.key)}
        async with httpx.AsyncClient(
            base_url=self.url, verify=ssl.create_default_context(cadata=self.ca_pem)
        ) as client:
            reply = await client.post(enrolment.ENROL_PATH, json=body)
        if reply.is_success:
            self.keep(reply.json()["certificate"])
        return reply

    async def renew(self) -> httpx.Response:
        """Asks for the next certificate with a new key, and keeps both."""
        following = ca.new_key()
        async with self.client() as client:
            reply = await client.post(enrolment.RENEW_PATH, json={"csr": csr(following)})
        if reply.is_success:
            self.key = following
            self.keep(reply.json()["certificate"])
        return reply


async def invite(keeper: httpx.AsyncClient, *names: str, **fields: object) -> list[str]:
    """Join tokens for devices, requested by the fleet manager."""
    reply = await keeper.post(enrolment.DEVICES_PATH, json={"devices": names, **fields})
    assert reply.status_code == 200, reply.text
    return [one["token"] for one in reply.json()["invitations"]]
