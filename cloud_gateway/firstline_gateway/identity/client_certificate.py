"""A client's certificate, after TLS or a trusted proxy has verified that the client has its key.

A proxy forwards the certificate in a header. Only the configured header counts, and only from the configured
addresses. The certificate's signature is checked here once more.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self
from urllib.parse import unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID

from firstline_core.errors import ConfigError, UnauthorizedError
from firstline_core.protocol.enrolment import device_of_urn
from firstline_gateway.identity.authorities import Authorities
from firstline_gateway.identity.ca import serial_of

_HEADER_CHARACTERS = 16_384
# Certificates of as many devices: some kilobytes each.
_CACHED = 4096
_PEM_START = "-----BEGIN CERTIFICATE-----"

Networks = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A certificate that one of our authorities signed. Neither its times nor its revocation were checked.

    Args:
        device: the device's name; None if it names no device, or is not for TLS clients.
        serial: hexadecimal; "" if the certificate cannot be read.
        not_before_s: wall time from which it is valid.
        not_after_s: wall time until which it is valid.
    """

    device: str | None
    serial: str
    not_before_s: float
    not_after_s: float

    @classmethod
    def of(cls, certificate: x509.Certificate) -> Self:
        """Returns the fields of a certificate."""
        return cls(
            device=_device(certificate),
            serial=serial_of(certificate),
            not_before_s=certificate.not_valid_before_utc.timestamp(),
            not_after_s=certificate.not_valid_after_utc.timestamp(),
        )

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Reads DER or PEM; an unreadable certificate identifies no device."""
        load = x509.load_pem_x509_certificate if content.startswith(b"-----") else x509.load_der_x509_certificate
        try:
            return cls.of(load(content))
        except (ValueError, x509.InvalidVersion):
            return cls(None, "", 0.0, 0.0)


def _device(certificate: x509.Certificate) -> str | None:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        return None
    if ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
        return None
    devices = {device_of_urn(urn) for urn in names.get_values_for_type(x509.UniformResourceIdentifier)}
    return devices.pop() if len(devices) == 1 else None


def networks(addresses: Sequence[str]) -> Networks:
    """Returns the addresses and networks of `auth.trusted_proxies`.

    Raises:
        ConfigError: an entry is not a network.
    """
    found = []
    for address in addresses:
        try:
            found.append(ipaddress.ip_network(address))
        except ValueError as error:
            raise ConfigError(
                f"auth.trusted_proxies has {address!a}; use addresses such as 10.0.0.7, or networks such as "
                "10.0.0.0/24."
            ) from error
    return tuple(found)


def is_trusted(address: str, trusted: Networks) -> bool:
    """Returns whether a connection comes from one of the proxies."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return any(parsed in network for network in trusted)


def proxied_certificate(values: Sequence[str], authorities: Authorities) -> ClientCertificate | None:
    """Returns the certificate in a proxy's header: percent-encoded PEM (nginx, Envoy, HAProxy), or RFC 9440.

    Args:
        values: of each occurrence of the header; an empty value means a client without a certificate.
        authorities: the trusted authorities.

    Raises:
        UnauthorizedError: the header occurs twice, or its value is not a certificate of these authorities.
    """
    if len(values) > 1:
        raise UnauthorizedError(
            "The proxy's header with the client certificate appears twice; have it replace what clients send."
        )
    text = values[0].strip() if values else ""
    return _verified(text, authorities) if text else None


@lru_cache(_CACHED)
def _verified(text: str, authorities: Authorities) -> ClientCertificate:
    try:
        certificate = _parsed(text)
    except (ValueError, x509.InvalidVersion) as error:  # binascii.Error is a ValueError
        raise UnauthorizedError("The proxy's header holds no certificate that can be read.") from error
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority.certificate)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return ClientCertificate.of(certificate)
    raise UnauthorizedError("The client certificate that the proxy names was not issued by this gateway's authority.")


def _parsed(text: str) -> x509.Certificate:
    if len(text) > _HEADER_CHARACTERS:
        raise ValueError("too long")
    if text.startswith(":") and text.endswith(":"):
        return x509.load_der_x509_certificate(base64.b64decode(text.strip(":"), validate=True))
    pem = unquote(text)
    if not pem.startswith(_PEM_START):
        raise ValueError("no certificate")
    return x509.load_pem_x509_certificate(pem.encode())
