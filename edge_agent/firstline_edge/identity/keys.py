"""The device's key, its signing request, and the check of the certificate that comes back.

The only room of the agent that needs `cryptography`, 15 MB of memory: imported while it enrols or renews, and not
before.
"""

from __future__ import annotations

from firstline_core.errors import ProtocolError
from firstline_core.protocol.enrolment import EnrolAnswer, public_key_hash
from firstline_edge.settings.identity import Identity

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def new_key() -> str:
    """An EC P-256 key in PEM."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def is_key(pem: str) -> bool:
    """Whether it is a key of ours; a file that a power cut broke is not."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return isinstance(load_pem_private_key(pem.encode(), None), ec.EllipticCurvePrivateKey)
    except (ValueError, TypeError):
        return False


def signing_request(key_pem: str) -> str:
    """Returns a signing request in PEM.

    It contains no name: the gateway identifies the device by the token or the certificate.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

    key = load_pem_private_key(key_pem.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # noqa: S101 (`new_key` made it)
    request = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(Encoding.PEM).decode()


def authority_with(pem: str, key_hash: bytes) -> str | None:
    """Returns the certificate whose public key has this SHA-256; None if there is none.

    Raises:
        ValueError: something there is no certificate.
    """
    return next((found for found in _split(pem) if public_key_hash(found) == key_hash), None)


def accepted(answer: EnrolAnswer, key_pem: str, authority: bytes, *, gateway: str, proxy: str) -> Identity:
    """The identity that an answer gives.

    Args:
        answer: the gateway's.
        key_pem: for which a certificate was asked.
        authority: SHA-256 of the public key of the authority that vouched for the gateway that answered.
        gateway: URL.
        proxy: URL, "" for none.

    Raises:
        ProtocolError: the certificate is for another key or name, or from an unknown authority.
    """
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
    from cryptography.x509.oid import NameOID

    where = f"What {gateway} answered is no certificate for this device"
    try:
        certificate = x509.load_pem_x509_certificate(answer.certificate.encode())
        authorities = x509.load_pem_x509_certificates(answer.ca.encode())
        still_named = authority_with(answer.ca, authority) is not None
        first = authority if still_named else public_key_hash(answer.ca)
    except ValueError as error:
        raise ProtocolError(f"{where}: {error}.") from error
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    ours = load_pem_private_key(key_pem.encode(), None).public_key().public_bytes(*form)
    if certificate.public_key().public_bytes(*form) != ours:
        raise ProtocolError(f"{where}: it is for another key.")
    if [name.value for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] != [answer.device]:
        raise ProtocolError(f"{where}: it bears another name than '{answer.device}'.")
    for issuer in authorities:
        try:
            certificate.verify_directly_issued_by(issuer)
        except (ValueError, TypeError, InvalidSignature):
            continue
        break
    else:
        raise ProtocolError(f"{where}: none of the authorities signed it.")
    return Identity(
        device=answer.device,
        gateway=gateway,
        proxy=proxy,
        broker=answer.broker,
        not_before_s=certificate.not_valid_before_utc.timestamp(),
        not_after_s=certificate.not_valid_after_utc.timestamp(),
        authority=first.hex(),  # another one, once the gateway has changed over to it
        authority_ends_s=max(issuer.not_valid_after_utc.timestamp() for issuer in authorities),
    )


def _split(pem: str) -> list[str]:
    """Each certificate of several by itself."""
    return [f"{_BEGIN}{part.partition(_END)[0]}{_END}\n" for part in pem.split(_BEGIN)[1:]]
