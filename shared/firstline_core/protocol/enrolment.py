"""How a device becomes known to a gateway: its join token, what the two ask and answer, and the names in certificates.

A join token holds a secret that enrols one device, once, and the hash of the certificate authority's public key, so
that the device knows whom to believe before it has a certificate, a list of authorities or the time (as kubeadm's
`--discovery-token-ca-cert-hash` does). A device with a token:

1. `GET CA_PATH` without verifying the server: the authorities' certificates, PEM; it keeps the one with the hash,
2. `POST ENROL_PATH` verifying the server by that one: `EnrolRequest` -> `EnrolAnswer`,
3. from then on shows its certificate, and asks for the next one at `RENEW_PATH` (`RenewRequest` -> `EnrolAnswer`).

Tokens come from whoever keeps the fleet, with an API key of scope `fleet`: `POST DEVICES_PATH` (`InviteRequest` ->
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
    """What a join token says.

    Attributes:
        secret: 32 random bytes, base64url without padding; what `EnrolRequest` carries.
        ca_hash: SHA-256 of the authority's public key (SubjectPublicKeyInfo, DER), see `public_key_hash`.
    """

    secret: str
    ca_hash: bytes


class BrokerAddress(Struct, frozen=True):
    """Where the device finds its MQTT broker, which speaks TLS and shows a certificate of one of `EnrolAnswer.ca`."""

    host: str
    port: int
    prefix: str


class EnrolRequest(Struct, frozen=True):
    """What a device with a join token sends.

    Attributes:
        secret: the token's; it names the device, so the CSR's own subject counts for nothing.
        csr: PEM, signed with the device's key (EC P-256).
    """

    secret: Secret
    csr: Pem


class RenewRequest(Struct, frozen=True):
    """What a device sends over a connection that its present certificate opened; `csr` as in `EnrolRequest`."""

    csr: Pem


class EnrolAnswer(Struct, frozen=True):
    """What a device becomes.

    Attributes:
        device: the name that the gateway knows the device by.
        certificate: PEM; the device's.
        ca: PEM, one or several; the authorities that the device believes from now on, gateway's and broker's.
        broker: None where devices reach this gateway over HTTP alone.
        now_s: the gateway's wall time (seconds since 1970), for a device whose clock was never set.
    """

    device: Name
    certificate: Pem
    ca: Pem
    broker: BrokerAddress | None
    now_s: float


class InviteRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Who shall get join tokens.

    Attributes:
        devices: names; one that is enrolled already may enrol anew, which ends its older certificates. A new token
            ends those that the device has not used.
        valid_s: how long the tokens enrol (seconds).
    """

    devices: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=10_000)]
    valid_s: Annotated[float, Meta(ge=60, le=90 * 86_400)] = 7 * 86_400.0


class Invitation(Struct, frozen=True):
    """One device's join token, which is shown this once, and until when it enrols (seconds since 1970)."""

    device: Name
    token: str
    expires_s: float


class InviteAnswer(Struct, frozen=True):
    """One invitation for each device, in the request's order."""

    invitations: tuple[Invitation, ...]


class DeviceState(Struct, frozen=True):
    """What a gateway knows of a device; times are seconds since 1970.

    Attributes:
        device: its name.
        enrolled_s: when it enrolled last; None where it has only been invited.
        certificate_expires_s: of its newest certificate that is not revoked; None where there is none.
        revoked_s: since when it is refused; None where it is not.
        invited_until_s: until when its unused join token enrols; None where there is none.
    """

    device: Name
    enrolled_s: float | None
    certificate_expires_s: float | None
    revoked_s: float | None
    invited_until_s: float | None


class DeviceList(Struct, frozen=True):
    """Devices by name; `after` is what to ask for next (`?after=NAME`), None at the end."""

    devices: tuple[DeviceState, ...]
    after: str | None


def format_join_token(secret: str, ca_hash: bytes) -> str:
    """The token as people copy it."""
    return f"{JOIN_TOKEN_PREFIX}{secret}.{_base64url(ca_hash)}"


def parse_join_token(text: str) -> JoinToken:
    """A token as it was copied, spaces and line ends around it included.

    Raises:
        ConfigError: it is none, or not all of one; the message does not quote it.
    """
    found = text.strip()
    if not found.startswith(JOIN_TOKEN_PREFIX):
        raise ConfigError(
            f"This is no join token, which starts with '{JOIN_TOKEN_PREFIX}'; ask the gateway's operator."
        )
    secret, _, ca_hash = found.removeprefix(JOIN_TOKEN_PREFIX).partition(".")
    known = _bytes_of(ca_hash, _HASH_BYTES)
    if known is None or _bytes_of(secret, SECRET_BYTES) is None:
        raise ConfigError("The join token is damaged; copy all of it, from 'flj_' to its last letter.")
    return JoinToken(secret, known)


def format_secret(random_bytes: bytes) -> str:
    """`SECRET_BYTES` random bytes as a token has them."""
    return _base64url(random_bytes)


def public_key_hash(certificate_pem: str) -> bytes:
    """SHA-256 of a certificate's SubjectPublicKeyInfo in DER, as RFC 7469 pins keys.

    Raises:
        ValueError: it is no certificate, or one of a kind of key that nobody knows.
    """
    # Only who enrols, renews or issues needs it.
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    try:
        key = x509.load_pem_x509_certificate(certificate_pem.encode()).public_key()
    except (UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise ValueError(str(error)) from error
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()


def device_urn(device: str) -> str:
    """The certificate's subject alternative name (URI) of a device."""
    return _DEVICE_URN + device


def device_of_urn(urn: str) -> str | None:
    """The device that a subject alternative name stands for; None where it is another's."""
    return _named(urn, _DEVICE_URN)


def device_principal(device: str) -> str:
    """Who a device is in requests and logs."""
    return _DEVICE + device


def device_of_principal(principal: str) -> str | None:
    """The device that a principal stands for; None where it is no device."""
    return _named(principal, _DEVICE)


def application_principal(name: str) -> str:
    """Who an application with an API key is in requests and logs."""
    return _APPLICATION + name


def _named(text: str, prefix: str) -> str | None:
    name = text.removeprefix(prefix)
    return name if text.startswith(prefix) and re.match(NAME_PATTERN, name) else None


def _base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _bytes_of(text: str, size_bytes: int) -> bytes | None:
    """What `text` encodes, where it is the one spelling of so many bytes."""
    try:
        content = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    return content if len(content) == size_bytes and _base64url(content) == text else None
