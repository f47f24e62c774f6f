"""Enrolment: the device's key, its signing request, and the exchange with the gateway for a certificate.

The only module of the agent that needs `cryptography`, 15 MB of memory: it is imported while a device joins or renews
its certificate. `protocol/enrolment.py` describes the protocol.
"""

from __future__ import annotations

import ssl
from http import HTTPStatus

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from firstline_core.errors import LinkDownError, LinkError, ProtocolError, UnauthorizedError
from firstline_core.protocol.enrolment import (
    CA_PATH,
    ENROL_PATH,
    RENEW_PATH,
    EnrolAnswer,
    EnrolRequest,
    JoinToken,
    RenewRequest,
    public_key_hash,
)
from firstline_core.protocol.http import JSON_TYPE, error_from
from firstline_core.protocol.http_client import HTTP_FAILURES, ClientSettings, HttpClient, connection_fault
from firstline_core.telemetry.wording import time_text
from firstline_edge.identity.files import IdentityFiles
from firstline_edge.identity.tls import device_context, unverified_context
from firstline_edge.settings.identity import IdentityDocument

_TIMEOUT_S = 15.0
_LIMIT_BYTES = 1 << 20
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


async def join_gateway(url: str, token: JoinToken, files: IdentityFiles, *, proxy: str = "") -> IdentityDocument:
    """Gets the first certificate and stores it; an interrupted attempt continues with its key.

    Raises:
        FirstlineError: see `fetch_authority` and `enrol`.
        CapacityError: the disk refuses.
    """
    authority_pem = await fetch_authority(url, token, proxy=proxy)
    key = files.joining_key()
    if key is None or not is_key(key):
        key = new_key()
        files.save_joining_key(key)
    answer = await enrol(url, token, signing_request(key), authority_pem, proxy=proxy)
    identity = identity_from(answer, key, token.ca_hash, gateway=url, proxy=proxy)
    files.save(identity, answer.ca, key, answer.certificate)
    return identity


async def fetch_authority(url: str, token: JoinToken, *, proxy: str = "") -> str:
    """Fetches the authority's certificate that the token names, from a server that is not verified yet.

    Sends no secret.

    Raises:
        LinkDownError: no answer.
        ProtocolError: the server is not a gateway.
        UnauthorizedError: it is another gateway than the token's.
    """
    body = await _request(_server(url, unverified_context(), proxy), "GET", CA_PATH)
    try:
        authority = authority_with(body.decode(), token.ca_hash)
    except ValueError as error:
        raise ProtocolError(f"{url} does not answer as a Firstline gateway: {error}.") from error
    if authority is None:
        raise UnauthorizedError(
            f"{url} is not the gateway that the join token is from: its authority's key has another hash. Check the "
            "URL. If it is right, another server answers in the gateway's place. The token was not sent."
        )
    return authority


async def enrol(url: str, token: JoinToken, csr: str, authority_pem: str, *, proxy: str = "") -> EnrolAnswer:
    """Requests the first certificate, from a gateway that the authority verifies.

    Raises:
        UnauthorizedError: the token is used, expired or unknown.
        LinkDownError: no answer, or from a server that the authority does not verify.
        ProtocolError: a malformed answer.
        FirstlineError: the gateway's error.
    """
    times: list[tuple[float, float]] = []

    def accept_any_time(begins_s: float, ends_s: float) -> str:
        times.append((begins_s, ends_s))  # only the gateway's answer says what time it is
        return ""

    context = device_context(accept_any_time)
    context.load_verify_locations(cadata=authority_pem)
    request = EnrolRequest(token.secret, csr)
    answer = _decoded(url, await _request(_server(url, context, proxy), "POST", ENROL_PATH, request))
    if any(answer.now_s > ends_s for _, ends_s in times):
        raise LinkDownError(
            f"{url} shows a certificate that ended at {time_text(times[0][1])}; the gateway needs another."
        )
    return answer


async def renew(url: str, csr: str, context: ssl.SSLContext, *, proxy: str = "") -> EnrolAnswer:
    """Requests the next certificate; `context` presents the current one.

    Raises:
        UnauthorizedError: the current one is revoked, or expired too long ago.
        LinkDownError, ProtocolError, FirstlineError: see `enrol`.
    """
    return _decoded(url, await _request(_server(url, context, proxy), "POST", RENEW_PATH, RenewRequest(csr)))


def _server(url: str, context: ssl.SSLContext, proxy: str) -> ClientSettings:
    return ClientSettings(url, headers={"User-Agent": "firstline-edge"}, tls=context, proxy=proxy)


async def _request(
    server: ClientSettings, method: str, path: str, request: EnrolRequest | RenewRequest | None = None
) -> bytes:
    """Returns the body of an answer with status 200, over a connection of its own."""
    url, client = server.url, HttpClient(server, limit_bytes=_LIMIT_BYTES, connect_s=_TIMEOUT_S)
    content = b"" if request is None else msgspec.json.encode(request)
    headers = {} if request is None else {"Content-Type": JSON_TYPE}
    try:
        reply = await client.exchange(method, path, headers, content, _TIMEOUT_S)
    except LinkError as error:
        if isinstance(error.__cause__, HTTP_FAILURES):
            fault = connection_fault(error.__cause__, url)
            raise LinkDownError(
                f"{url} cannot be reached: {fault}. Check the address, and that the gateway runs."
            ) from error
        raise type(error)(f"{url} does not answer as a Firstline gateway: {error.message}.") from error
    finally:
        await client.close()
    if reply.status != HTTPStatus.OK:
        refusal = error_from(reply.status, reply.body, reply.headers)
        raise type(refusal)(f"{url}: {refusal.message}", retry_after_s=refusal.retry_after_s)
    return reply.body


def _decoded(url: str, body: bytes) -> EnrolAnswer:
    try:
        return msgspec.json.decode(body, type=EnrolAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"{url} does not answer as a Firstline gateway: {error}.") from error


def new_key() -> str:
    """Returns a new EC P-256 key in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def is_key(pem: str) -> bool:
    """Returns whether a text is a complete key; a file that a power cut damaged is not."""
    try:
        return isinstance(load_pem_private_key(pem.encode(), None), ec.EllipticCurvePrivateKey)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def signing_request(key_pem: str) -> str:
    """Returns a signing request in PEM.

    It contains no name: the gateway identifies the device by the token or the certificate.
    """
    key = load_pem_private_key(key_pem.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # noqa: S101 (`new_key` made it)
    request = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(Encoding.PEM).decode()


def authority_with(pem: str, key_hash: bytes) -> str | None:
    """Returns the certificate whose public key has this SHA-256; None if there is none.

    Raises:
        ValueError: the text contains something else than certificates.
    """
    return next((certificate for certificate in _split(pem) if public_key_hash(certificate) == key_hash), None)


def identity_from(answer: EnrolAnswer, key_pem: str, authority: bytes, *, gateway: str, proxy: str) -> IdentityDocument:
    """Checks an answer, and returns the identity that it gives.

    Args:
        answer: of the gateway.
        key_pem: the key for which a certificate was requested.
        authority: SHA-256 of the public key of the authority that verified the gateway.
        gateway: URL.
        proxy: URL, "" for none.

    Raises:
        ProtocolError: the certificate is for another key or name, or from an unknown authority.
    """
    where = f"What {gateway} answered is no certificate for this device"
    try:
        certificate = x509.load_pem_x509_certificate(answer.certificate.encode())
        authorities = x509.load_pem_x509_certificates(answer.ca.encode())
        still_listed = authority_with(answer.ca, authority) is not None
        # The gateway may have changed to another authority.
        trusted = authority if still_listed else public_key_hash(answer.ca)
    except ValueError as error:
        raise ProtocolError(f"{where}: {error}.") from error
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    own_key = load_pem_private_key(key_pem.encode(), None).public_key().public_bytes(*form)
    if certificate.public_key().public_bytes(*form) != own_key:
        raise ProtocolError(f"{where}: it is for another key.")
    if [name.value for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] != [answer.device]:
        raise ProtocolError(f"{where}: it bears another name than '{answer.device}'.")
    if not any(_is_issued_by(certificate, issuer) for issuer in authorities):
        raise ProtocolError(f"{where}: none of the authorities signed it.")
    return IdentityDocument(
        device=answer.device,
        gateway=gateway,
        proxy=proxy,
        broker=answer.broker,
        not_before_s=certificate.not_valid_before_utc.timestamp(),
        not_after_s=certificate.not_valid_after_utc.timestamp(),
        authority=trusted.hex(),
        authority_ends_s=max(issuer.not_valid_after_utc.timestamp() for issuer in authorities),
    )


def _is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _split(pem: str) -> list[str]:
    """Returns each of several certificates."""
    return [f"{_BEGIN}{part.partition(_END)[0]}{_END}\n" for part in pem.split(_BEGIN)[1:]]
