"""What the join token and the names of certificates look like, and what is refused."""

import base64
import datetime
import hashlib

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from firstline_core.errors import ConfigError
from firstline_core.protocol import enrolment
from firstline_core.protocol.enrolment import JoinToken

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
TOKEN = JoinToken(enrolment.format_secret(bytes(range(32))), hashlib.sha256(b"key").digest())


def certificate(key: ec.EllipticCurvePrivateKey, days: int = 1) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
    end = START + datetime.timedelta(days)
    return x509.CertificateBuilder(name, name, key.public_key(), 5, START, end).sign(key, hashes.SHA256())


def test_a_token_is_read_as_it_was_written() -> None:
    text = enrolment.format_join_token(*TOKEN)
    assert text.startswith("flj_AAECAwQ")
    assert enrolment.parse_join_token(f" {text}\n") == TOKEN


@pytest.mark.parametrize(
    "text", ["", "flt_abc", "flj_", "flj_.", "flj_AAEC.AAEC", "flj_" + TOKEN.secret, "flj_ä.ö", "flj_" + "A" * 5000]
)
def test_an_incomplete_token_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ConfigError, match="join token") as refused:
        enrolment.parse_join_token(text)
    assert len(text) < 5 or text not in refused.value.message


def test_a_second_spelling_of_the_same_bytes_is_refused() -> None:
    # The last letter of 32 bytes in base64 has two bits that say nothing.
    assert TOKEN.secret.endswith("8")
    with pytest.raises(ConfigError, match="damaged"):
        enrolment.parse_join_token(enrolment.format_join_token(TOKEN.secret[:-1] + "9", TOKEN.ca_hash))


def test_the_hash_is_of_the_public_key_alone() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    found = {enrolment.public_key_hash(certificate(key, days).public_bytes(Encoding.PEM).decode()) for days in (1, 2)}
    encoded = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert found == {hashlib.sha256(encoded).digest()}
    with pytest.raises(ValueError):
        enrolment.public_key_hash("no certificate")


def test_names_go_into_certificates_and_principals_and_back() -> None:
    assert enrolment.device_urn("press-7") == "urn:firstline:device:press-7"
    assert enrolment.device_of_urn("urn:firstline:device:press-7") == "press-7"
    assert enrolment.device_principal("press-7") == "device:press-7"
    assert enrolment.device_of_principal("device:press-7") == "press-7"
    assert enrolment.application_principal("line") == "application:line"


@pytest.mark.parametrize("text", ["", "press-7", "urn:firstline:device:", "urn:firstline:device:a/b", "x:device:a"])
def test_no_other_text_names_a_device(text: str) -> None:
    assert enrolment.device_of_urn(text) is None
    assert enrolment.device_of_principal(text.removeprefix("urn:firstline:")) is None


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (bytes.fromhex("2a8648ce3d0201"), bytes.fromhex("2a8648ce3d0209")),  # an unknown kind of key
        (bytes.fromhex("2a8648ce3d030107"), bytes.fromhex("2a8648ce3d030103")),  # a curve
        (bytes.fromhex("a003020102"), bytes.fromhex("a003020142")),  # version 67
    ],
)
def test_an_unknown_key_type_has_no_hash(was: bytes, becomes: bytes) -> None:
    der = certificate(ec.generate_private_key(ec.SECP256R1())).public_bytes(Encoding.DER)
    assert was in der
    changed = base64.encodebytes(der.replace(was, becomes)).decode()
    with pytest.raises(ValueError, match=r"."):
        enrolment.public_key_hash(f"-----BEGIN CERTIFICATE-----\n{changed}-----END CERTIFICATE-----\n")
