"""X.509: the authority itself, and what it signs. No files and no store here.

Keys are EC P-256. Certificates begin a day before they are made, for clocks that are behind. There are no name
constraints: devices are named by URNs, to which RFC 5280's constraints on URIs do not apply (section 4.2.1.10), and
the hosts of a gateway change more often than its authority.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from firstline_core.errors import ConfigError, RequestError
from firstline_core.protocol.enrolment import device_urn

_BACKDATED = timedelta(days=1)
_AUTHORITY_DAYS = 3653
SERVER_DAYS = 90


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority: its own certificate, and the key that signs."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> str:
        return pem_of(self.certificate)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def create_authority(key: ec.EllipticCurvePrivateKey, now_s: float) -> Authority:
    """Returns an authority that may sign for devices and servers, and for no other authority (path length 0)."""
    public = key.public_key()
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    # Two authorities of one name would be confused while chains are built.
    name = _name(f"Firstline gateway {identifier.digest.hex()[:16]}")
    builder = (
        x509.CertificateBuilder(name, name, public, x509.random_serial_number())
        .not_valid_before(_date(now_s) - _BACKDATED)
        .not_valid_after(_date(now_s) + timedelta(_AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
    )
    return Authority(builder.sign(key, hashes.SHA256()), key)


def load_authority(certificate_pem: bytes, key_pem: bytes) -> Authority:
    """Returns the authority with this certificate and key.

    Raises:
        ConfigError: they are no certificate and key, are damaged, do not belong together, or may not sign certificates.
    """
    certificate, key = load_certificate(certificate_pem), load_key(key_pem)
    if _public_bytes(certificate.public_key()) != _public_bytes(key.public_key()):
        raise ConfigError("The authority's certificate and key do not belong together.")
    check_authority(certificate)
    return Authority(certificate, key)


def check_authority(certificate: x509.Certificate) -> None:
    """Checks that a certificate is an authority's.

    Raises:
        ConfigError: it may not sign certificates.
    """
    try:
        is_authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        signs = certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except x509.ExtensionNotFound:
        is_authority = signs = False
    if not (is_authority and signs):
        raise ConfigError(
            f"The certificate of {certificate.subject.rfc4514_string()} is no authority's; it lacks the basic "
            "constraint CA, or the key usage keyCertSign."
        )


def load_certificate(pem: bytes) -> x509.Certificate:
    """Returns a certificate from PEM, all of whose parts can be read.

    Raises:
        ConfigError: the content is not valid.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise ConfigError("This is no certificate in PEM, which begins with '-----BEGIN CERTIFICATE-----'.") from error
    try:  # each of these is only parsed when it is read
        certificate.subject.public_bytes(), certificate.issuer.public_bytes(), certificate.public_key()
        certificate.not_valid_before_utc, certificate.not_valid_after_utc, certificate.extensions  # noqa: B018
    except Exception as error:  # the library has many classes for damaged content
        raise ConfigError(f"The certificate is damaged: {error}.") from error
    return certificate


def load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Returns an authority's private key from PEM.

    Raises:
        ConfigError: it is not on a NIST curve, or it is encrypted.
    """
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError("This is no private key in PEM, or one that is encrypted; give it without.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError("The authority's key must be EC (P-256, P-384 or P-521).")
    return key


def key_pem(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def pem_of(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def serial_of(certificate: x509.Certificate) -> str:
    """Returns the serial number as the store and logs have it."""
    return format(certificate.serial_number, "x")


def issue_device(
    authority: Authority, device: str, public_key: ec.EllipticCurvePublicKey, now_s: float, days: float
) -> x509.Certificate:
    """Returns a new certificate of a device: for TLS clients and nothing else."""
    return (
        _issued(authority, device, public_key, now_s, days)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(device_urn(device))]), critical=False
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(authority.key, hashes.SHA256())
    )


def issue_server(
    authority: Authority, hosts: Sequence[str], now_s: float
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Returns a new certificate of a server for host names and IP addresses, and its key."""
    key = new_key()
    certificate = (
        _issued(authority, hosts[0][:64], key.public_key(), now_s, SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName([general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return certificate, key


def general_name(host: str) -> x509.GeneralName:
    """Returns the name in a server's certificate of a host name or an address, which may be in brackets."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]").partition("%")[0]))  # it has no place for a zone
    except ValueError:
        return x509.DNSName(host)


def revocation_list(authority: Authority, revoked: Iterable[tuple[str, float]], now_s: float) -> str:
    """Returns the authority's CRL as PEM.

    Its next update is due when the authority ends: readers get this file from the gateway itself, and with an expired
    list Mosquitto would refuse every device.

    Args:
        authority: signs it.
        revoked: serial numbers, as `serial_of` has them, and when (seconds since 1970).
        now_s: the wall time.
    """
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(min(_date(now_s) - _BACKDATED, authority.certificate.not_valid_after_utc - _BACKDATED))
        .next_update(authority.certificate.not_valid_after_utc)
        .add_extension(_authority_identifier(authority), critical=False)
        .add_extension(x509.CRLNumber(int(now_s * 1000)), critical=False)
    )
    for serial, revoked_s in revoked:
        builder = builder.add_revoked_certificate(
            x509.RevokedCertificateBuilder(int(serial, 16), _date(revoked_s)).build()
        )
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def requested_key(csr_pem: str) -> ec.EllipticCurvePublicKey:
    """Returns the public key that a certificate signing request asks a certificate for.

    Raises:
        RequestError: the CSR cannot be read, has another kind of key, or was not signed with that key.
    """
    try:
        request = x509.load_pem_x509_csr(csr_pem.encode())
        key = request.public_key()
        signed = request.is_signature_valid
    except (ValueError, UnsupportedAlgorithm, InvalidSignature, x509.InvalidVersion) as error:
        raise RequestError("'csr' is not a certificate signing request in PEM; `edge-agent join` makes one.") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise RequestError("'csr' asks for a certificate of another kind of key; make one on the curve P-256.")
    if not signed:
        raise RequestError("'csr' was not signed with the key that it names.")
    return key


def key_hash(key: ec.EllipticCurvePublicKey) -> str:
    """Returns the hash by which the store knows a public key again."""
    return hashlib.sha256(_public_bytes(key)).hexdigest()


def _issued(
    authority: Authority, name: str, public_key: ec.EllipticCurvePublicKey, now_s: float, days: float
) -> x509.CertificateBuilder:
    """Returns a builder for certificates other than the authority's own; none outlives the authority."""
    end = min(_date(now_s) + timedelta(days), authority.certificate.not_valid_after_utc)
    start = max(min(_date(now_s), end) - _BACKDATED, authority.certificate.not_valid_before_utc)
    return (
        x509.CertificateBuilder(
            authority.certificate.subject, _name(name), public_key, x509.random_serial_number(), start, end
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(_authority_identifier(authority), critical=False)
    )


def _authority_identifier(authority: Authority) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _public_bytes(key: object) -> bytes:
    assert hasattr(key, "public_bytes")  # noqa: S101 (every public key of the library has it)
    encoded: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return encoded


def _date(wall_s: float) -> datetime:
    return datetime.fromtimestamp(wall_s, UTC).replace(microsecond=0)
