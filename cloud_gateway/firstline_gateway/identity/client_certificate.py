"""A client's certificate, after TLS (or a trusted proxy) has verified that the client has its key."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID

from firstline_core.errors import ConfigError, UnauthorizedError
from firstline_core.protocol.enrolment import device_of_urn
from firstline_gateway.identity.authorities import Authorities
from firstline_gateway.identity.ca import serial_of


@dataclass(frozen=True, slots=True)
class Presented:
    """A certificate whose chain ends at one of our authorities. Neither its times nor its revocation were looked at.

    Args:
        device: whose; None where it names no device, or is not for TLS clients.
        serial: hexadecimal.
        not_before_s: wall time from which it is valid.
        not_after_s: wall time until which it is valid.
    """

    device: str | None
    serial: str
    not_before_s: float
    not_after_s: float


def read_presented(der: bytes) -> Presented:
    """Reads a certificate that one of our authorities signed; an unreadable certificate identifies no device."""
    try:
        return presented_by(x509.load_der_x509_certificate(der))
    except ValueError:
        return Presented(None, "", 0.0, 0.0)


def presented_by(certificate: x509.Certificate) -> Presented:
    """Returns the fields of a certificate."""
    return Presented(
        device=_device(certificate),
        serial=serial_of(certificate),
        not_before_s=certificate.not_valid_before_utc.timestamp(),
        not_after_s=certificate.not_valid_after_utc.timestamp(),
    )


def _device(certificate: x509.Certificate) -> str | None:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return None
    if ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
        return None
    devices = {device_of_urn(urn) for urn in names.get_values_for_type(x509.UniformResourceIdentifier)}
    return devices.pop() if len(devices) == 1 else None


_LIMIT_CHARACTERS = 16_384
# Certificates of as many devices: some hundred bytes each.
_REMEMBERED = 4096
_PEM_START = "-----BEGIN CERTIFICATE-----"

Networks = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]


def networks(addresses: Sequence[str]) -> Networks:
    """Addresses and networks as they are configured.

    Raises:
        ConfigError: an entry is not a network.
    """
    try:
        return tuple(ipaddress.ip_network(address) for address in addresses)
    except ValueError as error:
        raise ConfigError(f"auth.trusted_proxies: {error}; give addresses, or networks such as 10.0.0.0/24.") from error


def is_trusted(address: str, trusted: Networks) -> bool:
    """Whether a connection comes from one of the proxies."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found in network for network in trusted)


class ProxyCertificates:
    """Reads what trusted proxies name; a device sends the same with each request, and one is read once.

    Times and revocation are no part of it: the caller checks them each time.
    """

    def __init__(self) -> None:
        self._believed: Authorities | None = None
        self._read: dict[bytes, Presented] = {}

    def read(self, values: Sequence[str], authorities: Authorities) -> Presented | None:
        """The certificate in a proxy's header: PEM with percent signs (nginx, Envoy, HAProxy), or RFC 9440's form.

        Args:
            values: of each occurrence of the header; an empty value means a client without a certificate.
            authorities: the trusted authorities; certificates of others are dropped from the cache.

        Raises:
            UnauthorizedError: the header occurs twice, or its value is not a certificate of these authorities.
        """
        if len(values) > 1:
            raise UnauthorizedError(
                "The proxy's header with the client certificate is there twice; have it replace what clients send."
            )
        text = values[0].strip() if values else ""
        if not text:
            return None
        if authorities is not self._believed:
            self._believed = authorities
            self._read.clear()
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
        found = self._read.pop(digest, None) or _presented(text, authorities)
        self._read[digest] = found  # the newest last
        if len(self._read) > _REMEMBERED:
            del self._read[next(iter(self._read))]
        return found


def _presented(text: str, authorities: Authorities) -> Presented:
    try:
        certificate = _certificate(text)
    except (ValueError, x509.InvalidVersion) as error:  # binascii.Error is a ValueError
        raise UnauthorizedError("The proxy's header holds no certificate that can be read.") from error
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority.certificate)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return presented_by(certificate)
    raise UnauthorizedError("The client certificate that the proxy names was not issued by this gateway's authority.")


def _certificate(text: str) -> x509.Certificate:
    if len(text) > _LIMIT_CHARACTERS:
        raise ValueError("too long")
    if text.startswith(":") and text.endswith(":"):
        return x509.load_der_x509_certificate(base64.b64decode(text.strip(":"), validate=True))
    pem = unquote(text)
    if not pem.startswith(_PEM_START):
        raise ValueError("no certificate")
    return x509.load_pem_x509_certificate(pem.encode())
