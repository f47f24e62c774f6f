"""The files of the certificate authorities: create, import, replace and retire them; and the server's certificate.

    ca.key              the signing authority: key and certificate, readable only by the gateway's user
    next.key            the authority that signs after `ca switch`: devices learn of it when they renew
    previous.key        the authority that signed before: devices that have not renewed yet are still trusted
    authorities.pem     the certificates of all of them, for a broker or a proxy
    crl.pem             the certificates that they have revoked, likewise; only a gateway that has a store writes it
    server.pem          the gateway's own certificate, with its key

Every file is replaced atomically. An interrupted `switch` is completed when the folder is opened next.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError
from firstline_core.storage.files import give_to_owner_of, naming, sync_folder, system_reason, write_whole
from firstline_core.telemetry.logs import logger
from firstline_gateway.identity import ca
from firstline_gateway.identity.ca import Authority
from firstline_gateway.identity.credentials import RevokedCertificate
from firstline_gateway.settings import settings

CRL_FILE = "crl.pem"
BUNDLE_FILE = "authorities.pem"
SERVER_FILE = "server.pem"

_CRL_END = "-----END X509 CRL-----\n"
_ACTIVE, _NEXT, _PREVIOUS = "ca.key", "next.key", "previous.key"
# A certificate lives 90 days; a month is enough for an operator who has to find out why it was not renewed.
_RENEW_BEFORE_S = 30 * 86_400.0
# A certificate is valid for `identity.certificate_days` and can be renewed for `renew_grace_days`: 825 each at most.
_LISTED_S = 2 * 825 * 86_400.0

# Running gateways look at the folder within this time.
_NOTICED_AFTER_S = 10.0

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Authorities:
    """The authorities that issue devices' certificates; another object after each change.

    Args:
        active: the authority that signs.
        others: authorities that are trusted too, while one replaces another.
    """

    active: Authority
    others: tuple[Authority, ...] = ()

    def __iter__(self) -> Iterator[Authority]:
        return iter((self.active, *self.others))

    @property
    def pem(self) -> str:
        """Their certificates, the active one's first."""
        return "".join(authority.pem for authority in self)


def had_store(identity: settings.IdentitySection) -> bool:
    """Returns whether a gateway has used the authority, and so had a store: an empty store has lost its content."""
    return (Path(identity.directory) / CRL_FILE).exists()


def open_authorities(directory: Path, now_s: float) -> Authorities:
    """Returns the authorities in a folder; creates the first one if missing.

    Raises:
        ConfigError: the folder cannot be read or written, or its content is not valid.
    """
    with locked(directory):
        active, following, previous = (directory / name for name in (_ACTIVE, _NEXT, _PREVIOUS))
        bundle = directory / BUNDLE_FILE
        _complete_switch(directory)
        if not active.exists():
            if bundle.exists():
                raise ConfigError(
                    f"The authority's key {active} is gone; restore it from a backup. Without one, empty {directory}: "
                    "then there will be a new authority, and all devices have to enrol again."
                )
            _store(active, ca.create_authority(ca.new_key(), now_s))
        authorities = Authorities(_load(active), tuple(_load(file) for file in (following, previous) if file.exists()))
        if not bundle.exists() or read(bundle) != authorities.pem.encode():
            write(bundle, authorities.pem.encode())
        return authorities


def file_version(file: Path) -> tuple[int, int] | None:
    """Returns a value that changes when a file is replaced or written; None for a missing file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def import_authority(directory: Path, authority: Authority) -> None:
    """Makes an operator's own authority the one that signs.

    Raises:
        ConfigError: there is one already, or the folder cannot be written.
    """
    with locked(directory):
        if (directory / _ACTIVE).exists() or (directory / BUNDLE_FILE).exists():
            raise ConfigError(
                f"There is an authority in {directory} already, which devices may have enrolled with; begin with an "
                "empty folder, or let another take over from it: `firstline-gateway ca prepare --certificate FILE "
                "--key FILE`."
            )
        _store(directory / _ACTIVE, authority)


def prepare_next(directory: Path, authority: Authority, now_s: float) -> None:
    """Adds another authority that is trusted and announced together with the active one.

    Its list of revoked certificates, still empty, is added to the others: a verifier refuses certificates of an
    authority without a list.

    Raises:
        ConfigError: one is prepared already, or the folder cannot be written.
    """
    with locked(directory):
        if (directory / _NEXT).exists():
            raise ConfigError(f"{directory / _NEXT} is there already; `ca switch` makes it the one that signs.")
        if (directory / CRL_FILE).exists():
            lists = read(directory / CRL_FILE) + ca.revocation_list(authority, (), now_s).encode()
            write(directory / CRL_FILE, lists)
        _store(directory / _NEXT, authority)


def trusted_since_s(directory: Path, *, retiring: bool) -> float | None:
    """Returns the wall time from which running gateways have used the next authority, or the present one if retiring.

    A device that renewed its certificate later trusts it. None if there is no authority to switch to, or to retire.

    Raises:
        ConfigError: the folder cannot be read.
    """
    file = directory / (_PREVIOUS if retiring else _NEXT)
    with naming(file):
        return file.stat().st_mtime + _NOTICED_AFTER_S if file.exists() else None


def switch(directory: Path) -> None:
    """Makes the next authority the one that signs; the one before it is still trusted.

    Raises:
        ConfigError: none is prepared, an earlier one is still trusted, or the folder cannot be written.
    """
    with locked(directory):
        _complete_switch(directory)
        if (directory / _PREVIOUS).exists():
            raise ConfigError("The authority before the present one is still trusted; `ca retire` ends that.")
        if not (directory / _NEXT).exists():
            raise ConfigError("No authority is prepared; `firstline-gateway ca prepare` makes one.")
        with naming(directory / _ACTIVE, "written"):
            os.utime(directory / _ACTIVE)  # see `trusted_since_s`; before it moves, because a switch may be interrupted
        _rename(directory / _ACTIVE, directory / _PREVIOUS)
        _rename(directory / _NEXT, directory / _ACTIVE)


def retire(directory: Path) -> None:
    """Stops trusting the authority before the present one.

    Raises:
        ConfigError: there is none, or the folder cannot be written.
    """
    previous = directory / _PREVIOUS
    with locked(directory):
        _complete_switch(directory)
        try:
            previous.unlink()
        except FileNotFoundError as error:
            raise ConfigError("There is no previous authority.") from error
        except OSError as error:
            raise ConfigError(f"{previous} cannot be removed: {system_reason(error)}.") from error


def server_certificate(directory: Path, authority: Authority, hosts: Sequence[str], now_s: float) -> Path:
    """Returns the file with the gateway's certificate, chain and key; creates it, and renews it before it expires.

    Raises:
        ConfigError: the folder cannot be written.
    """
    file = directory / SERVER_FILE
    with locked(directory):
        if not (file.exists() and is_current(read(file), authority, hosts, now_s)):
            certificate, key = ca.issue_server(authority, hosts, now_s)
            write(file, ca.key_pem(key) + (ca.pem_of(certificate) + authority.pem).encode(), private=True)
    return file


def is_current(certificate_pem: bytes, authority: Authority, hosts: Sequence[str], now_s: float) -> bool:
    """Returns whether a server's certificate is from this authority, for these hosts, and not about to expire."""
    try:
        certificate = ca.load_certificate(certificate_pem)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ConfigError, x509.ExtensionNotFound):
        return False
    renew_s = certificate.not_valid_after_utc.timestamp() - _RENEW_BEFORE_S
    return (
        certificate.issuer == authority.certificate.subject
        and set(names) == {ca.general_name(host) for host in hosts}
        and certificate.not_valid_before_utc.timestamp() <= now_s < renew_s
    )


@dataclass(frozen=True, slots=True)
class RevocationLists:
    """The lists in a file.

    Args:
        revoked: serial numbers in hexadecimal, and when they were revoked (seconds since 1970).
        issuers: the authorities whose lists are in the file and are genuine.
    """

    revoked: Mapping[str, float]
    issuers: frozenset[x509.Name]


def parse_lists(lists_pem: str, authorities: Authorities) -> RevocationLists:
    """Returns the lists that these authorities signed; a damaged list counts as missing."""
    revoked: dict[str, float] = {}
    issuers: set[x509.Name] = set()
    for part in lists_pem.split(_CRL_END)[:-1]:
        try:
            found = x509.load_pem_x509_crl((part + _CRL_END).encode())
            if any(found.is_signature_valid(authority.key.public_key()) for authority in authorities):
                issuers.add(found.issuer)
                revoked |= {f"{one.serial_number:x}": one.revocation_date_utc.timestamp() for one in found}
        # TypeError for a signature of another kind.
        except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion):
            continue
    return RevocationLists(revoked, frozenset(issuers))


def revocation_lists(
    authorities: Authorities, revoked: Iterable[tuple[str, float]], before: RevocationLists, now_s: float
) -> str:
    """Returns a list of each authority, each with all serial numbers, which match only their own authority.

    Args:
        authorities: sign the lists.
        revoked: serial numbers and times in the store.
        before: the lists that are replaced. Their certificates stay, as long as one of them may be valid: a store that
            does not know them has lost them.
        now_s: the wall time.
    """
    lost = {serial: when_s for serial, when_s in before.revoked.items() if when_s > now_s - _LISTED_S}
    serials = sorted((lost | dict(revoked)).items())
    return "".join(ca.revocation_list(authority, serials, now_s) for authority in authorities)


def write_revocations(
    directory: Path, authorities: Authorities, revoked: Iterable[tuple[str, float]], now_s: float
) -> None:
    """Writes the file of revocation lists; certificates that are on them already stay there.

    Raises:
        ConfigError: the folder cannot be written.
    """
    with locked(directory):
        lists = revocation_lists(authorities, revoked, read_lists(directory, authorities), now_s)
        write(directory / CRL_FILE, lists.encode())


def read_lists(directory: Path, authorities: Authorities) -> RevocationLists:
    """Returns the revocation lists in a folder of authorities.

    Raises:
        ConfigError: the file cannot be read.
    """
    file = directory / CRL_FILE
    return parse_lists(read(file).decode(errors="replace") if file.exists() else "", authorities)


def write(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replaces a file atomically and durably.

    Args:
        path: of the file, in an existing folder.
        content: all of it.
        private: mode 0600 instead of 0644.

    Raises:
        ConfigError: it cannot be written.
    """
    with naming(path, "written"):
        write_whole(path, content, folder_owners_mode=0o600 if private else 0o644)


def read(path: Path) -> bytes:
    """Returns the content of a file.

    Raises:
        ConfigError: it cannot be read.
    """
    with naming(path):
        return path.read_bytes()


def read_signing_key(file: Path, otherwise: str) -> Ed25519PrivateKey:
    """Returns the key in a file of the folder, which signs the audit log or the registry's metadata.

    Args:
        file: of the key, in PEM.
        otherwise: the end of the error, which says what to do if no backup has the key.

    Raises:
        ConfigError: it cannot be read, or is not such a key.
    """
    advice = f"Restore it from a backup, or put it aside, and {otherwise}."
    try:
        key = load_pem_private_key(read(file), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{file} holds no private key and cannot be used to sign: {error}. {advice}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{file} holds no Ed25519 key. {advice}")
    return key


def _load(file: Path) -> Authority:
    content = read(file)
    try:
        return ca.load_authority(content, content)
    except ConfigError as error:
        raise ConfigError(
            f"{file} is no authority's key with its certificate: {error.message} Restore it from a backup."
        ) from error


def _store(file: Path, authority: Authority) -> None:
    write(file, ca.key_pem(authority.key) + authority.pem.encode(), private=True)


def _complete_switch(directory: Path) -> None:
    """Completes a switch that was interrupted between its two steps."""
    active, following, previous = (directory / name for name in (_ACTIVE, _NEXT, _PREVIOUS))
    if not active.exists() and previous.exists() and following.exists():
        _rename(following, active)


def _rename(old: Path, new: Path) -> None:
    try:
        old.replace(new)
        sync_folder(new.parent)
    except OSError as error:
        raise ConfigError(f"{old} cannot be renamed to {new}: {system_reason(error)}.") from error


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Locks the folder of the authorities, which is created if missing; other processes wait."""
    with naming(f"identity.directory {directory}", "written"):
        if not directory.exists():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            give_to_owner_of(directory.parent, directory)
        descriptor = os.open(directory / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class AuthorityFolder:
    """The authorities of a running gateway, read again after a command changed them.

    Threads may share it; everything here blocks.

    Args:
        directory: the folder of the authorities, which need not exist.
        clock: dates certificates.
    """

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory = directory
        self._clock = clock
        self._lock = threading.Lock()
        self._versions: object = None
        self._authorities: Authorities | None = None

    @property
    def exists(self) -> bool:
        """Whether an authority was created or imported."""
        return (self.directory / BUNDLE_FILE).exists()

    def open(self) -> Authorities:
        """Returns the authorities; creates the first one if missing.

        Raises:
            ConfigError: the folder cannot be used.
        """
        with self._lock:
            present = self._file_versions()
            while self._authorities is None or self._versions != present:  # a command may change them meanwhile
                self._authorities = open_authorities(self.directory, self._clock.wall_s())
                self._versions, present = present, self._file_versions()
            if not (self.directory / CRL_FILE).exists():
                write_revocations(self.directory, self._authorities, (), self._clock.wall_s())
            return self._authorities

    def listed(self) -> Mapping[str, float]:
        """Returns the serial numbers on the list of revoked certificates, and when they were revoked.

        Raises:
            ConfigError: the folder cannot be used.
        """
        return read_lists(self.directory, self.open()).revoked if (self.directory / CRL_FILE).exists() else {}

    def write_revocations(self, revoked: Iterable[RevokedCertificate]) -> None:
        """Writes the list of revoked certificates for a proxy, if there is an authority; logs why it cannot."""
        if not self.exists:
            return
        try:
            serials = [(one.serial, one.revoked_s) for one in revoked]
            write_revocations(self.directory, self.open(), serials, self._clock.wall_s())
        except ConfigError as error:
            log.error("revocation list not written", error=error.message)

    def _file_versions(self) -> object:
        return [file_version(self.directory / name) for name in (_ACTIVE, _NEXT, _PREVIOUS)]
