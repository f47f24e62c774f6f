"""Enrolment of a device at a gateway: join tokens, requests and answers, and the names in certificates.

A join token holds a secret that enrols one device, once, and the hash of the certificate authority's public key, so
that the device can verify the gateway before it has a certificate, a list of authorities or the time (like kubeadm's
`--discovery-token-ca-cert-hash`). A device with a token:

1. `GET CA_PATH` without verifying the server: the authorities' certificates, PEM; the device keeps the one with the
hash, 2. `POST ENROL_PATH` verifying the server by that one: `EnrolRequest` -> `EnrolAnswer`, 3. from then on shows its
certificate, and requests the next one at `RENEW_PATH` (`RenewRequest` -> `EnrolAnswer`).

The fleet manager creates tokens with an API key of scope `fleet`: `POST DEVICES_PATH` (`InviteRequest` ->
`InviteAnswer`); `GET DEVICES_PATH` is the `DeviceList`, and `POST DEVICES_PATH/{name}/revoke` ends a device's access.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from firstline_core.errors import ConfigError
from firstline_core.types import NAME_PATTERN, Name

CA_PATH = "/firstline/v1/ca"
ENROL_PATH = "/firstline/v1/enroll"
RENEW_PATH = "/firstline/v1/identity/renew"
DEVICES_PATH = "/firstline/v1/devices"

JOIN_TOKEN_PREFIX = "flj_"  # noqa: S105 (by it people and secret scanners know one)
SECRET_BYTES = 32

_HASH_BYTES = 32
_DEVICE_URN = "urn:firstline:device:"
_DEVICE = "device:"
_APPLICATION = "application:"

Pem = Annotated[str, Meta(max_length=65_536)]
Secret = Annotated[str, Meta(max_length=128)]


class JoinToken(NamedTuple):
    """The content of a join token.

    Attributes:
        secret: 32 random bytes, base64url without padding; what `EnrolRequest` carries.
        ca_hash: SHA-256 of the authority's public key (SubjectPublicKeyInfo, DER), see `public_key_hash`.
    """

    secret: str
    ca_hash: bytes


class BrokerAddress(Struct, frozen=True):
    """The address of the device's MQTT broker. It uses TLS with a certificate from an authority in `EnrolAnswer.ca`."""

    host: str
    port: int
    prefix: str


class EnrolRequest(Struct, frozen=True):
    """The request of a device with a join token.

    Attributes:
        secret: from the token; it identifies the device, so the subject of the CSR is ignored.
        csr: PEM, signed with the device's key (EC P-256).
    """

    secret: Secret
    csr: Pem


class RenewRequest(Struct, frozen=True):
    """The request for the next certificate, authenticated by the current one; `csr` as in `EnrolRequest`."""

    csr: Pem


class EnrolAnswer(Struct, frozen=True):
    """The identity that a device receives.

    Attributes:
        device: name of the device at the gateway.
        certificate: of the device, PEM.
        ca: certificates of the authorities that the device trusts from now on, for gateway and broker; PEM.
        broker: None if this gateway serves devices over HTTP only.
        now_s: the gateway's wall time (seconds since 1970), for a device whose clock was never set.
    """

    device: Name
    certificate: Pem
    ca: Pem
    broker: BrokerAddress | None
    now_s: float


class InviteRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A request for join tokens.

    Attributes:
        devices: names. An enrolled device may enrol again, which revokes its older certificates. A new token replaces
            unused tokens of the device.
        valid_s: lifetime of the tokens (seconds).
    """

    devices: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=10_000)]
    valid_s: Annotated[float, Meta(ge=60, le=90 * 86_400)] = 7 * 86_400.0


class Invitation(Struct, frozen=True):
    """The join token of one device, shown only once, and when it expires (seconds since 1970)."""

    device: Name
    token: str
    expires_s: float


class InviteAnswer(Struct, frozen=True):
    """One invitation per device, in the order of the request."""

    invitations: tuple[Invitation, ...]


class EnrolmentState(Struct, frozen=True):
    """The enrolment state of a device at the gateway; times are seconds since 1970.

    Attributes:
        device: its name.
        enrolled_s: time of the last enrolment; None for a device that was only invited.
        certificate_expires_s: of its newest valid certificate; None without one.
        revoked_s: time of the revocation; None for a device with access.
        invited_until_s: when its unused join token expires; None without one.
    """

    device: Name
    enrolled_s: float | None
    certificate_expires_s: float | None
    revoked_s: float | None
    invited_until_s: float | None


class DeviceList(Struct, frozen=True):
    """A page of devices, sorted by name; `after` is the cursor of the next page (`?after=NAME`), None at the end."""

    devices: tuple[EnrolmentState, ...]
    after: str | None


def format_join_token(secret: str, ca_hash: bytes) -> str:
    """Returns the token as text to copy."""
    return f"{JOIN_TOKEN_PREFIX}{secret}.{_base64url(ca_hash)}"


def parse_join_token(text: str) -> JoinToken:
    """Parses a copied token; surrounding spaces and line ends are ignored.

    Raises:
        ConfigError: the text is not a complete token; the message does not quote it.
    """
    token = text.strip()
    if not token.startswith(JOIN_TOKEN_PREFIX):
        raise ConfigError(
            f"This is not a join token, which starts with '{JOIN_TOKEN_PREFIX}'; ask the gateway's operator."
        )
    secret, _, ca_hash = token.removeprefix(JOIN_TOKEN_PREFIX).partition(".")
    hash_bytes = _bytes_of(ca_hash, _HASH_BYTES)
    if hash_bytes is None or _bytes_of(secret, SECRET_BYTES) is None:
        raise ConfigError("The join token is damaged; copy all of it, from 'flj_' to its last letter.")
    return JoinToken(secret, hash_bytes)


def format_secret(random_bytes: bytes) -> str:
    """Returns `SECRET_BYTES` random bytes in the form that tokens use."""
    return _base64url(random_bytes)


def public_key_hash(certificate_pem: str) -> bytes:
    """Returns the SHA-256 of a certificate's SubjectPublicKeyInfo in DER (the key pin of RFC 7469).

    Raises:
        ValueError: not a certificate, or one with an unknown type of key.
    """
    # Imported late: only enrolment, renewal and issuing need it.
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    try:
        key = x509.load_pem_x509_certificate(certificate_pem.encode()).public_key()
    except (UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise ValueError(str(error)) from error
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()


def device_urn(device: str) -> str:
    """Returns the subject alternative name (URI) in the certificate of a device."""
    return _DEVICE_URN + device


def device_of_urn(urn: str) -> str | None:
    """Returns the device in a subject alternative name; None for another name."""
    return _named(urn, _DEVICE_URN)


def device_principal(device: str) -> str:
    """Returns the principal of a device, for requests and logs."""
    return _DEVICE + device


def device_of_principal(principal: str) -> str | None:
    """Returns the device of a principal; None for another principal."""
    return _named(principal, _DEVICE)


def application_principal(name: str) -> str:
    """Returns the principal of an application with an API key, for requests and logs."""
    return _APPLICATION + name


def _named(text: str, prefix: str) -> str | None:
    name = text.removeprefix(prefix)
    return name if text.startswith(prefix) and re.match(NAME_PATTERN, name) else None


def _base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _bytes_of(text: str, size_bytes: int) -> bytes | None:
    """Decodes `text` if it is the canonical encoding of this number of bytes."""
    try:
        content = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    return content if len(content) == size_bytes and _base64url(content) == text else None
