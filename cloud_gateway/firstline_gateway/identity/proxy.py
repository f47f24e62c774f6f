"""Certificates that a trusted proxy has seen: it verifies the client's key and forwards the certificate.

Only the configured header counts, and only from the configured addresses. The certificate's signature is checked here
once more; that the client has its key is the proxy's word.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from collections.abc import Sequence
from urllib.parse import unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from firstline_core.errors import ConfigError, UnauthorizedError
from firstline_gateway.identity.authorities import Authorities
from firstline_gateway.identity.client_certificate import Presented, presented_by

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
