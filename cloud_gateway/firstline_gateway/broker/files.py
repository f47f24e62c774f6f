"""The broker's folder: writes its files, keeps them up to date, and tells the broker to reload them.

A gateway's own folder of authorities stays the gateway's: the key that signs never comes here.
"""

from __future__ import annotations

import os
import secrets
import signal
import stat
from dataclasses import dataclass
from pathlib import Path

from firstline_core.errors import ConfigError
from firstline_core.storage.files import naming, system_reason
from firstline_core.telemetry.logs import logger
from firstline_gateway.broker import config
from firstline_gateway.identity import ca
from firstline_gateway.identity.authorities import (
    Authorities,
    RevocationLists,
    is_current,
    parse_lists,
    revocation_lists,
    write,
)
from firstline_gateway.identity.credentials import KnownCredentials, RevokedCertificate
from firstline_gateway.settings.settings import BROKER_AUTHORITIES_FILE, BROKER_PASSWORD_FILE, BROKER_USER, Settings

_SALT_BYTES = 12

log = logger(__name__)


@dataclass(eq=False)
class BrokerFolder:
    """The folder of one broker.

    Args:
        settings: of the gateway.
    """

    settings: Settings

    def __post_init__(self) -> None:
        # Both are kept until a call has written all files. An earlier process may have ended before its signal.
        self._is_reload_due = True
        self._refused: set[str] = set()

    def refresh(self, authorities: Authorities, credentials: KnownCredentials, now_s: float) -> set[str]:
        """Writes missing and changed files, and makes the broker reload them. Blocks.

        Args:
            authorities: the authorities of devices' certificates; the active one signs the broker's certificate.
            credentials: have the revoked certificates and devices. Those that only the present files have stay
                refused: a store that does not know them has lost them.
            now_s: the wall time.

        Returns:
            The devices that lost a certificate, or everything, since these files were written last.

        Raises:
            ConfigError: the folder cannot be written.
        """
        self._make()
        listed = sorted(credentials.revoked_certificates())
        denied_before = config.denied_devices(self._text(config.ACCESS_LIST))
        denied = credentials.revoked_devices | {device for device in denied_before if not credentials.knows(device)}
        before = parse_lists(self._text(config.REVOCATIONS), authorities)
        self._refused |= {one.device for one in listed if one.serial not in before.revoked} | (denied - denied_before)
        self._put(config.ACCESS_LIST, config.access_list(self.settings.mqtt.prefix, denied))
        self._put(BROKER_AUTHORITIES_FILE, authorities.pem)
        self._revocations(authorities, listed, before, now_s)
        self._certificate(authorities, now_s)
        self._password()
        self._put(config.CONFIGURATION, config.configuration(self.settings))  # last: `run.sh` starts a broker with it
        if self._is_reload_due:
            self._reload()
            self._is_reload_due = False
        refused, self._refused = self._refused, set()
        return refused

    @property
    def path(self) -> Path:
        """Returns the path of the folder, as this gateway sees it."""
        return self.settings.broker.folder

    @property
    def password_file(self) -> Path:
        """The password of gateways, for `mqtt.password_file`."""
        return self.path / BROKER_PASSWORD_FILE

    def _make(self) -> None:
        broker = self.settings.broker
        with naming(f"broker.directory {self.path}", "written"):
            self.path.mkdir(mode=0o750, parents=True, exist_ok=True)
            if not broker.data_folder.is_relative_to(broker.seen_folder):
                return  # the data lies elsewhere, and is the broker's own matter
            data = self.path / broker.data_folder.relative_to(broker.seen_folder)
            data.mkdir(mode=0o750, parents=True, exist_ok=True)
        if self._has_group:
            self._hand_on(data, 0o2770)  # the broker writes here

    def _revocations(
        self, authorities: Authorities, revoked: list[RevokedCertificate], before: RevocationLists, now_s: float
    ) -> None:
        """Writes the lists if they lack an authority or a certificate."""
        issuers = {authority.certificate.subject for authority in authorities}
        if before.issuers != issuers or any(one.serial not in before.revoked for one in revoked):
            dated = [(one.serial, one.revoked_s) for one in revoked]
            self._put(config.REVOCATIONS, revocation_lists(authorities, dated, before, now_s))

    def _certificate(self, authorities: Authorities, now_s: float) -> None:
        if self._has_certificate(authorities, now_s):
            return
        certificate, key = ca.issue_server(authorities.active, self.settings.broker.hosts, now_s)
        self._put(config.KEY, ca.key_pem(key).decode(), private=True)
        self._put(config.CERTIFICATE, ca.pem_of(certificate) + authorities.active.pem)

    def _has_certificate(self, authorities: Authorities, now_s: float) -> bool:
        certificate = self._text(config.CERTIFICATE).encode()
        if not is_current(certificate, authorities.active, self.settings.broker.hosts, now_s):
            return False
        try:
            key = ca.load_key(self._text(config.KEY).encode())
        except ConfigError:
            return False
        return ca.load_certificate(certificate).public_key() == key.public_key()

    def _password(self) -> None:
        """Creates the password if a file of it is missing or damaged."""
        if self._text(BROKER_PASSWORD_FILE).strip() and self._text(config.PASSWORDS).strip():
            return
        password = secrets.token_urlsafe(32)
        line = config.password_line(BROKER_USER, password, secrets.token_bytes(_SALT_BYTES))
        self._put(config.PASSWORDS, line, private=True)
        write(self.password_file, f"{password}\n".encode(), private=True)

    def _put(self, name: str, text: str, *, private: bool = False) -> None:
        """Writes a file that the broker reads, if its content changes."""
        if self._text(name) == text:
            return
        path = self.path / name
        write(path, text.encode(), private=private)
        self._is_reload_due = True
        if private and self._has_group:
            self._hand_on(path, 0o640)

    @property
    def _has_group(self) -> bool:
        """Whether the folder hands its group on: the broker then runs as another user of that group."""
        return bool(self.path.stat().st_mode & stat.S_ISGID)

    def _hand_on(self, path: Path, mode: int) -> None:
        try:
            if stat.S_IMODE(path.stat().st_mode) != mode:
                path.chmod(mode)
        except OSError as error:
            raise ConfigError(f"{path} cannot be given to the broker's group: {system_reason(error)}.") from error

    def _text(self, name: str) -> str:
        """Returns a file's text; "" if it is missing or damaged, so that it is written again."""
        with naming(self.path / name):
            try:
                return (self.path / name).read_text(encoding="utf-8")
            except (FileNotFoundError, UnicodeDecodeError):
                return ""

    def _reload(self) -> None:
        """Makes a broker on this machine reload its files (SIGHUP); others watch them, see `mosquitto/run.sh`."""
        pid_file = self.settings.broker.pid_file
        if not pid_file:
            return
        try:
            os.kill(int(Path(pid_file).read_text()), signal.SIGHUP)
        except FileNotFoundError:
            log.info("broker not running; it reads its files at its start", pid_file=pid_file)
        except (OSError, ValueError) as error:
            log.error("broker reload failed", pid_file=pid_file, error=str(error))
