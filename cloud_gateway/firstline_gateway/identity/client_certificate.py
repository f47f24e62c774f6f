"""A client's certificate, after TLS (or a trusted proxy) has verified that the client has its key."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from firstline_core.protocol.enrolment import device_of_urn
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
