"""What the authority signs and what it does not, and its files through every exchange."""

import errno
import os
import ssl
import stat
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from support.identities import csr

from firstline_core.errors import ConfigError, RequestError
from firstline_core.protocol.enrolment import public_key_hash
from firstline_core.units import DAY_S
from firstline_gateway.identity import authorities, ca
from firstline_gateway.identity.authorities import open_authorities
from firstline_gateway.identity.client_certificate import ClientCertificate
from firstline_gateway.identity.identity import check_files
from firstline_gateway.settings.settings import Settings, TlsSection

NOW_S = 1_800_000_000.0


@pytest.fixture(scope="module")
def authority() -> ca.Authority:
    return ca.create_authority(ca.new_key(), NOW_S)


def test_the_authority_signs_no_other_authority(authority: ca.Authority) -> None:
    constraints = authority.certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    assert authority.certificate.not_valid_after_utc.timestamp() > NOW_S + 9 * 365 * DAY_S


def test_a_devices_certificate_is_for_clients_and_names_the_device(authority: ca.Authority) -> None:
    key = ca.new_key().public_key()
    certificate = ca.issue_device(authority, "press-7", key, NOW_S, 90)
    certificate.verify_directly_issued_by(authority.certificate)
    found = ClientCertificate.of(certificate)
    assert (found.device, found.serial) == ("press-7", ca.serial_of(certificate))
    assert (found.not_before_s, found.not_after_s) == (NOW_S - DAY_S, NOW_S + 90 * DAY_S)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert certificate.public_key() == key


def test_only_the_authority_may_sign_certificates(authority: ca.Authority) -> None:
    unused = dict.fromkeys(
        ["content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"], False
    )
    signer = x509.KeyUsage(False, key_cert_sign=True, crl_sign=True, decipher_only=False, **unused)
    other = x509.KeyUsage(True, key_cert_sign=False, crl_sign=False, decipher_only=False, **unused)
    device = ca.issue_device(authority, "press-7", ca.new_key().public_key(), NOW_S, 90)
    server, _ = ca.issue_server(authority, ["gateway.example"], NOW_S)
    for certificate, expected in ((authority.certificate, signer), (device, other), (server, other)):
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        assert usage.value == expected
        assert constraints.value.ca is (certificate == authority.certificate)
        assert usage.critical and constraints.critical


def test_an_authority_needs_the_usage_of_one(authority: ca.Authority) -> None:
    extensions = authority.certificate.extensions
    usage = x509.KeyUsage(
        True, False, False, False, False, False, crl_sign=True, encipher_only=False, decipher_only=False
    )
    certificate = (
        x509.CertificateBuilder(authority.certificate.issuer, authority.certificate.subject)
        .public_key(authority.key.public_key())
        .serial_number(1)
        .not_valid_before(authority.certificate.not_valid_before_utc)
        .not_valid_after(authority.certificate.not_valid_after_utc)
        .add_extension(extensions.get_extension_for_class(x509.BasicConstraints).value, critical=True)
        .add_extension(usage, critical=True)
    ).sign(authority.key, hashes.SHA256())
    with pytest.raises(ConfigError, match="is no authority's"):
        ca.check_authority(certificate)


def test_no_certificate_outlives_its_authority(authority: ca.Authority) -> None:
    end_s = authority.certificate.not_valid_after_utc.timestamp()
    certificate = ca.issue_device(authority, "a", ca.new_key().public_key(), end_s - DAY_S / 2, 90)
    assert certificate.not_valid_after_utc.timestamp() == end_s


def test_openssl_takes_the_chain_and_the_list_of_revocations(authority: ca.Authority, tmp_path: Path) -> None:
    device_certificate = ca.issue_device(authority, "press-7", ca.new_key().public_key(), NOW_S, 90)
    server, _ = ca.issue_server(authority, ["gateway.example", "192.0.2.7", "::1"], NOW_S)
    (tmp_path / "ca.pem").write_text(authority.pem)

    def verified(certificate: x509.Certificate, *revoked: tuple[str, float], purpose: str) -> bool:
        (tmp_path / "one.pem").write_text(ca.pem_of(certificate))
        (tmp_path / "crl.pem").write_text(ca.revocation_list(authority, revoked, NOW_S))
        files = ["-CAfile", "ca.pem", "-CRLfile", "crl.pem", "-crl_check", "-x509_strict"]
        arguments = [*files, "-purpose", purpose, "-attime", str(int(NOW_S)), "one.pem"]
        return subprocess.run(["openssl", "verify", *arguments], cwd=tmp_path, capture_output=True).returncode == 0

    assert verified(device_certificate, purpose="sslclient")
    assert not verified(device_certificate, purpose="sslserver")
    assert verified(server, purpose="sslserver")
    assert not verified(server, purpose="sslclient")
    assert not verified(device_certificate, (ca.serial_of(device_certificate), NOW_S), purpose="sslclient")


def test_a_request_is_for_a_key_on_p256_that_signed_it() -> None:
    key = ca.new_key()
    assert ca.requested_key(csr(key)) == key.public_key()
    name = x509.Name([])
    large = x509.CertificateSigningRequestBuilder().subject_name(name)
    for other in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())):
        with pytest.raises(RequestError, match="make one on the curve P-256"):
            ca.requested_key(large.sign(other, hashes.SHA256()).public_bytes(Encoding.PEM).decode())
    for wrong in ("", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", "\0"):
        with pytest.raises(RequestError, match="not a certificate signing request"):
            ca.requested_key(wrong)


def test_a_request_signed_with_another_key_is_refused() -> None:
    der = bytearray(x509.load_pem_x509_csr(csr(ca.new_key()).encode()).public_bytes(Encoding.DER))
    der[-1] ^= 1
    with pytest.raises(RequestError):
        ca.requested_key(x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM).decode())


def test_concurrent_processes_create_one_authority(tmp_path: Path) -> None:
    folder = tmp_path / "identity"
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: open_authorities(folder, NOW_S).pem, range(8)))
    assert len(set(found)) == 1
    assert stat.S_IMODE((folder / "ca.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / "authorities.pem").read_text() == found[0]


def test_a_lost_authority_key_is_an_error(tmp_path: Path) -> None:
    open_authorities(tmp_path, NOW_S)
    (tmp_path / "ca.key").rename(tmp_path / "backup")
    with pytest.raises(ConfigError, match="is gone; restore it from a backup"):
        open_authorities(tmp_path, NOW_S)
    (tmp_path / "backup").rename(tmp_path / "ca.key")
    open_authorities(tmp_path, NOW_S)
    (tmp_path / "ca.key").write_text("nonsense")
    with pytest.raises(
        ConfigError, match=r"ca\.key is no authority's key with its certificate: This is no certificate in PEM"
    ):
        open_authorities(tmp_path, NOW_S)


# A serial number whose first bit is flipped is negative, of which cryptography only warns.
@pytest.mark.filterwarnings("ignore:Parsed a serial number which wasn.t positive")
def test_flipped_bits_of_an_authority_are_refused_or_harmless(authority: ca.Authority) -> None:
    whole, refused = ca.key_pem(authority.key) + authority.pem.encode(), 0
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        try:
            read = ca.load_authority(bytes(damaged), bytes(damaged))
            ca.revocation_list(read, [("1a", NOW_S)], NOW_S)
        except ConfigError:
            refused += 1
    assert refused > len(whole) / 2


def test_an_authority_of_ones_own_is_imported_once(authority: ca.Authority, tmp_path: Path) -> None:
    authorities.import_authority(tmp_path, authority)
    assert open_authorities(tmp_path, NOW_S).active.certificate == authority.certificate
    with pytest.raises(ConfigError, match="There is an authority in"):
        authorities.import_authority(tmp_path, authority)


def test_a_certificate_that_is_not_an_authority_is_not_imported(authority: ca.Authority) -> None:
    key = ca.new_key()
    device = ca.issue_device(authority, "a", key.public_key(), NOW_S, 90)
    with pytest.raises(ConfigError, match="is no authority's"):
        ca.load_authority(ca.pem_of(device).encode(), ca.key_pem(key))
    with pytest.raises(ConfigError, match="do not belong together"):
        ca.load_authority(authority.pem.encode(), ca.key_pem(key))
    with pytest.raises(ConfigError, match="no private key in PEM"):
        ca.load_authority(authority.pem.encode(), b"nonsense")


def test_one_authority_takes_over_from_another(tmp_path: Path) -> None:
    first = open_authorities(tmp_path, NOW_S).active
    second = ca.create_authority(ca.new_key(), NOW_S)
    with pytest.raises(ConfigError, match="No authority is prepared"):
        authorities.switch(tmp_path)
    authorities.prepare_next(tmp_path, second, NOW_S)
    with pytest.raises(ConfigError, match="is there already"):
        authorities.prepare_next(tmp_path, second, NOW_S)
    assert [one.pem for one in open_authorities(tmp_path, NOW_S)] == [first.pem, second.pem]
    authorities.switch(tmp_path)
    assert [one.pem for one in open_authorities(tmp_path, NOW_S)] == [second.pem, first.pem]
    third = ca.create_authority(ca.new_key(), NOW_S)
    authorities.prepare_next(tmp_path, third, NOW_S)
    assert [one.pem for one in open_authorities(tmp_path, NOW_S)] == [second.pem, third.pem, first.pem]
    authorities.retire(tmp_path)
    assert [one.pem for one in open_authorities(tmp_path, NOW_S)] == [second.pem, third.pem]
    with pytest.raises(ConfigError, match="no previous authority"):
        authorities.retire(tmp_path)


def test_devices_have_renewed_only_since_the_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_authorities(tmp_path, NOW_S)
    authorities.prepare_next(tmp_path, ca.create_authority(ca.new_key(), NOW_S), NOW_S)
    os.utime(tmp_path / "ca.key", (1.0, 1.0))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", refuse)
        with pytest.raises(ConfigError, match=r"ca\.key cannot be written"):
            authorities.switch(tmp_path)
    assert (tmp_path / "ca.key").exists() and authorities.trusted_since_s(tmp_path, retiring=True) is None
    authorities.switch(tmp_path)
    assert (authorities.trusted_since_s(tmp_path, retiring=True) or 0.0) > time.time() - 60
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", refuse)
        with pytest.raises(ConfigError, match=r"previous\.key cannot be read"):
            authorities.trusted_since_s(tmp_path, retiring=True)


def test_a_switch_that_was_cut_short_is_ended(tmp_path: Path) -> None:
    first = open_authorities(tmp_path, NOW_S).active
    second = ca.create_authority(ca.new_key(), NOW_S)
    authorities.prepare_next(tmp_path, second, NOW_S)
    (tmp_path / "ca.key").rename(tmp_path / "previous.key")  # and then the power failed
    with pytest.raises(ConfigError, match="still trusted; `ca retire` ends that"):
        authorities.switch(tmp_path)
    assert [one.pem for one in open_authorities(tmp_path, NOW_S)] == [second.pem, first.pem]
    (tmp_path / "ca.key").rename(tmp_path / "next.key")
    authorities.retire(tmp_path)
    assert [one.pem for one in open_authorities(tmp_path, NOW_S)] == [second.pem]


def test_the_next_authority_has_a_list_of_revocations_before_it_signs(tmp_path: Path) -> None:
    """nginx and Mosquitto refuse everybody of an authority without one."""
    first = open_authorities(tmp_path, NOW_S)
    authorities.write_revocations(tmp_path, first, [("1a", NOW_S)], NOW_S)
    before = (tmp_path / "crl.pem").read_text()
    second = ca.create_authority(ca.new_key(), NOW_S)
    authorities.prepare_next(tmp_path, second, NOW_S)
    text = (tmp_path / "crl.pem").read_text()
    assert text.startswith(before)
    listed = x509.load_pem_x509_crl(text.removeprefix(before).encode())
    assert listed.is_signature_valid(second.key.public_key())
    assert list(listed) == []


def test_a_list_is_never_shortened(tmp_path: Path) -> None:
    first = open_authorities(tmp_path, NOW_S)
    authorities.write_revocations(tmp_path, first, [("1a", NOW_S)], NOW_S)
    authorities.write_revocations(tmp_path, first, [], NOW_S + 1)
    authorities.write_revocations(tmp_path, first, [("2b", NOW_S + 2)], NOW_S + 2)
    assert authorities.read_lists(tmp_path, first).revoked == {"1a": NOW_S, "2b": NOW_S + 2}


@pytest.mark.parametrize("damage", [b"", b"\xff" * 300, b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"])
def test_a_damaged_list_is_written_again(tmp_path: Path, damage: bytes) -> None:
    first = open_authorities(tmp_path, NOW_S)
    (tmp_path / "crl.pem").write_bytes(damage)
    authorities.write_revocations(tmp_path, first, [("1a", NOW_S)], NOW_S)
    assert authorities.read_lists(tmp_path, first).revoked == {"1a": NOW_S}


def test_a_list_of_another_authority_does_not_count(tmp_path: Path) -> None:
    first = open_authorities(tmp_path / "here", NOW_S)
    other = open_authorities(tmp_path / "there", NOW_S)
    authorities.write_revocations(tmp_path / "here", other, [("1a", NOW_S)], NOW_S)
    assert not authorities.read_lists(tmp_path / "here", first).revoked


def test_the_gateways_own_certificate_is_made_anew_when_it_has_to_be(tmp_path: Path) -> None:
    active = open_authorities(tmp_path, NOW_S).active

    def serial(*hosts: str, now_s: float = NOW_S, by: ca.Authority = active) -> int:
        file = authorities.server_certificate(tmp_path, by, hosts, now_s)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        return ca.load_certificate(file.read_bytes()).serial_number

    first = serial("gateway.example", "192.0.2.7")
    assert serial("gateway.example", "192.0.2.7", now_s=NOW_S + 59 * DAY_S) == first
    later = serial("gateway.example", "192.0.2.7", now_s=NOW_S + 61 * DAY_S)
    assert later != first
    other = serial("gateway.example", now_s=NOW_S + 61 * DAY_S)
    assert other != later
    assert serial("gateway.example", by=ca.create_authority(ca.new_key(), NOW_S), now_s=NOW_S + 61 * DAY_S) != other


@pytest.mark.parametrize(
    "host", ["2001:DB8::1", "[2001:db8:0::1]", "::ffff:192.0.2.7", "fe80::1%eth0", "Gateway.Example"]
)
def test_any_way_to_write_a_host_keeps_the_certificate(tmp_path: Path, host: str) -> None:
    active = open_authorities(tmp_path, NOW_S).active
    first = authorities.server_certificate(tmp_path, active, [host], NOW_S).read_bytes()
    assert authorities.server_certificate(tmp_path, active, [host], NOW_S).read_bytes() == first


@pytest.mark.filterwarnings("ignore:Parsed a serial number which wasn.t positive")
def test_flipped_bits_of_the_gateways_certificate_are_harmless(authority: ca.Authority) -> None:
    certificate, _ = ca.issue_server(authority, ["gateway.example"], NOW_S)
    der, outdated = certificate.public_bytes(Encoding.DER), 0
    for at in range(len(der)):
        damaged = bytearray(der)
        damaged[at] ^= 1 << at % 8
        pem = ssl.DER_cert_to_PEM_cert(bytes(damaged)).encode()
        outdated += not authorities.is_current(pem, authority, ["gateway.example"], NOW_S)
    assert outdated > len(der) / 10


def test_damaged_certificate_of_another_authority_is_named(authority: ca.Authority, tmp_path: Path) -> None:
    der = authority.certificate.public_bytes(Encoding.DER)
    constraints = bytes.fromhex("30060101ff020100")  # an authority, of path length 0
    assert constraints in der
    file = tmp_path / "ca.pem"
    file.write_text(ssl.DER_cert_to_PEM_cert(der.replace(constraints, bytes.fromhex("30060101aa020100"))))
    settings = Settings(tls=TlsSection(ca_file=str(file)))
    with pytest.raises(ConfigError, match=r"tls\.ca_file .*ca\.pem: The certificate is damaged"):
        check_files(settings)


def test_every_trusted_authority_lists_all_revocations(tmp_path: Path) -> None:
    open_authorities(tmp_path, NOW_S)
    authorities.prepare_next(tmp_path, ca.create_authority(ca.new_key(), NOW_S), NOW_S)
    both = open_authorities(tmp_path, NOW_S)
    authorities.write_revocations(tmp_path, both, [("1a", NOW_S)], NOW_S)
    text = (tmp_path / "crl.pem").read_text()
    parts = [f"{part}-----END X509 CRL-----\n" for part in text.split("-----END X509 CRL-----\n")[:-1]]
    for authority, part in zip(both, parts, strict=True):
        listed = x509.load_pem_x509_crl(part.encode())
        assert listed.is_signature_valid(authority.key.public_key())
        assert [entry.serial_number for entry in listed] == [0x1A]
        assert listed.next_update_utc == authority.certificate.not_valid_after_utc


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match=r"identity\.directory .* cannot be written"):
        open_authorities(tmp_path / "identity", NOW_S)


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "identity").touch()
    with pytest.raises(ConfigError, match=r"identity\.directory .* cannot be written"):
        open_authorities(tmp_path / "identity", NOW_S)


def test_the_hash_in_a_token_is_that_of_the_first_certificate(tmp_path: Path) -> None:
    found = open_authorities(tmp_path, NOW_S)
    authorities.prepare_next(tmp_path, ca.create_authority(ca.new_key(), NOW_S), NOW_S)
    assert public_key_hash(open_authorities(tmp_path, NOW_S).pem) == public_key_hash(found.active.pem)
