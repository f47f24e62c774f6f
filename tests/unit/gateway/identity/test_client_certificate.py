"""A proxy's word about a certificate: from whom it counts, in which forms, and what it has to be."""

import base64
from datetime import timedelta
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID

from firstline_core.errors import UnauthorizedError
from firstline_gateway.identity import ca, client_certificate
from firstline_gateway.identity.authorities import Authorities
from firstline_gateway.identity.client_certificate import ClientCertificate, proxied_certificate

NOW_S = 1_800_000_000.0
AUTHORITY = ca.create_authority(ca.new_key(), NOW_S)
BELIEVED = Authorities(AUTHORITY)
CERTIFICATE = ca.issue_device(AUTHORITY, "press-7", ca.new_key().public_key(), NOW_S, 90)


DER = CERTIFICATE.public_bytes(Encoding.DER)
VERSION_3 = bytes.fromhex("a003020102")


def rfc_9440(der: bytes) -> str:
    return f":{base64.b64encode(der).decode()}:"


def escaped(certificate: x509.Certificate) -> str:
    return quote(ca.pem_of(certificate))


@pytest.mark.parametrize("value", [escaped(CERTIFICATE), rfc_9440(DER)])
def test_both_forms_are_read(value: str) -> None:
    found = proxied_certificate([value], BELIEVED)
    assert (found.device, found.serial) == ("press-7", ca.serial_of(CERTIFICATE))


def test_no_value_is_a_client_without_certificate() -> None:
    assert proxied_certificate([], BELIEVED) is None
    assert proxied_certificate([""], BELIEVED) is None


@pytest.mark.parametrize(
    "value",
    [
        "press-7",
        "::",
        ":AAAA:",
        quote("-----BEGIN CERTIFICATE-----"),
        "x" * 20_000,
        ":%:",
        pytest.param(rfc_9440(DER.replace(VERSION_3, VERSION_3[:-1] + b"\x05")), id="of X.509 version 6"),
    ],
)
def test_an_invalid_certificate_is_refused(value: str) -> None:
    with pytest.raises(UnauthorizedError, match="no certificate that can be read"):
        proxied_certificate([value], BELIEVED)


def test_a_certificate_of_another_authority_is_refused() -> None:
    foreign = ca.create_authority(ca.new_key(), NOW_S)
    named_alike = ca.Authority(AUTHORITY.certificate, foreign.key)
    for authority in (foreign, named_alike):
        forged = ca.issue_device(authority, "press-7", ca.new_key().public_key(), NOW_S, 90)
        with pytest.raises(UnauthorizedError, match="not issued by this gateway's authority"):
            proxied_certificate([escaped(forged)], BELIEVED)


def test_a_certificate_with_names_of_unknown_kinds_identifies_no_device() -> None:
    names = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes.fromhex("3004a3023000"))  # X.400
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    subject, key, start = AUTHORITY.certificate.subject, ca.new_key(), AUTHORITY.certificate.not_valid_before_utc
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1, start, start + timedelta(1))
    signed = builder.add_extension(names, critical=False).add_extension(usage, critical=False).sign(key, SHA256())
    assert ClientCertificate.read(signed.public_bytes(Encoding.DER)).device is None


def test_an_unreadable_certificate_identifies_no_device() -> None:
    assert ClientCertificate.read(DER.replace(VERSION_3, VERSION_3[:-1] + b"\x05")).device is None
    assert ClientCertificate.read(b"nonsense").device is None


def test_a_header_that_is_there_twice_is_refused() -> None:
    """A proxy that adds its header to the client's would let the client choose."""
    with pytest.raises(UnauthorizedError, match="appears twice"):
        proxied_certificate([escaped(CERTIFICATE), escaped(CERTIFICATE)], BELIEVED)


@pytest.mark.parametrize(
    ("address", "trusted"),
    [("10.0.0.7", True), ("::ffff:10.0.0.7", True), ("10.0.1.7", False), ("::1", True), ("", False), ("proxy", False)],
)
def test_only_configured_addresses_are_trusted(address: str, trusted: bool) -> None:
    assert client_certificate.is_trusted(address, client_certificate.networks(["10.0.0.0/24", "::1"])) is trusted


def test_a_certificate_is_parsed_once_while_its_authority_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    parse = client_certificate._parsed

    def counted(text: str) -> x509.Certificate:
        read.append(text)
        return parse(text)

    monkeypatch.setattr(client_certificate, "_parsed", counted)
    client_certificate._verified.cache_clear()
    value = escaped(CERTIFICATE)
    assert proxied_certificate([value], BELIEVED) == proxied_certificate([value], BELIEVED)
    assert len(read) == 1
    following = Authorities(ca.create_authority(ca.new_key(), NOW_S))
    for _ in range(2):  # neither refusals nor certificates of another authority are cached
        with pytest.raises(UnauthorizedError, match="not issued by this gateway's authority"):
            proxied_certificate([value], following)
    assert len(read) == 3
    assert client_certificate._verified.cache_info().currsize == 1
    assert client_certificate._verified.cache_info().maxsize == 4096
