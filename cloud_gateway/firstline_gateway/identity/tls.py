"""The gateway's side of TLS: its certificate, which can be replaced while it serves, and the authorities it trusts.

A client may show a certificate. OpenSSL checks its chain and that the client has the key, but neither its times nor
whether it was revoked: `gatekeeper.py` does, so that a device with an expired certificate gets an error that explains
it, and can still renew it.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError
from firstline_core.storage.files import system_reason
from firstline_core.telemetry.logs import logger
from firstline_gateway.background import PeriodicTask
from firstline_gateway.identity import authorities, ca
from firstline_gateway.identity.authorities import AuthorityFolder, file_version
from firstline_gateway.settings import settings

# x509_vfy.h; Python's `ssl.VerifyFlags` has no name for it.
_NO_CHECK_TIME = 0x200000
# How soon a replaced certificate or authority is noticed.
_REFRESH_S = 10.0

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """The content of a TLS context; `versions` changes when one of the two files does."""

    certificate: Path
    key: Path
    authorities_pem: str
    versions: object


class ServerTls:
    """The TLS context of a gateway that serves HTTPS.

    Args:
        tls: hosts, or the operator's own files.
        folder: of the gateway's authority.
        clock: dates certificates.

    Attributes:
        files: the current files; a new object after each change.
        validity: when the certificate begins and ends (Unix time), by bound; empty if only OpenSSL can read it.
        task: looks for changed files, and renews the gateway's own certificate.

    Raises:
        ConfigError: the files cannot be used.
    """

    def __init__(self, tls: settings.TlsSection, folder: AuthorityFolder, clock: Clock) -> None:
        self._settings = tls
        self._folder = folder
        self._clock = clock
        self.task = PeriodicTask("server certificate", self.refresh, interval_s=_REFRESH_S, clock=clock)
        self.files = self._prepare()
        self.context = _context()
        _load(self.context, self.files)
        self.validity = _validity(self.files)

    async def refresh(self) -> bool:
        """Uses changed files for connections from now on; returns whether there were any.

        Raises:
            ConfigError: they cannot be used; the previous ones stay in use.
        """
        files = await asyncio.to_thread(self._prepare)
        if files == self.files:
            return False
        _load(_context(), files)  # a context of its own, because an invalid pair of files leaves half of it behind
        _load(self.context, files)  # on the event loop, where handshakes are made
        self.files, self.validity = files, _validity(files)
        log.info("server certificate reloaded")
        return True

    def _prepare(self) -> ServerFiles:
        trusted = self._folder.open()
        if self._settings.certificate_file:
            certificate, key = Path(self._settings.certificate_file), Path(self._settings.key_file)
        else:
            certificate = key = authorities.server_certificate(
                self._folder.directory, trusted.active, self._settings.hosts, self._clock.wall_s()
            )
        return ServerFiles(certificate, key, trusted.pem, (file_version(certificate), file_version(key)))


def check(tls: settings.TlsSection) -> None:
    """Tries to load an operator's own certificate, if one is configured.

    Raises:
        ConfigError: its files cannot be used.
    """
    if tls.certificate_file:
        files = ServerFiles(Path(tls.certificate_file), Path(tls.key_file), "", None)
        _load(_context(), files)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    context.verify_mode = ssl.CERT_OPTIONAL
    # An operator's own authority may be an intermediate of another, and is trusted nevertheless.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
    return context


def _load(context: ssl.SSLContext, files: ServerFiles) -> None:
    """Loads the files into a context.

    Raises:
        ConfigError: they cannot be used.
    """
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
        if files.authorities_pem:
            context.load_verify_locations(cadata=files.authorities_pem)
    except OSError as error:  # ssl.SSLError is one
        reason = getattr(error, "reason", None) or system_reason(error)
        raise ConfigError(
            f"tls.certificate_file {files.certificate} and tls.key_file {files.key} cannot be used: {reason}."
        ) from error


def _validity(files: ServerFiles) -> dict[tuple[str, ...], float]:
    """Returns `ServerTls.validity` of a certificate."""
    try:
        certificate = ca.load_certificate(authorities.read(files.certificate))
    except ConfigError:
        return {}
    return {
        ("begin",): certificate.not_valid_before_utc.timestamp(),
        ("end",): certificate.not_valid_after_utc.timestamp(),
    }


def _no_password() -> str:
    """Instead of asking at a terminal."""
    raise ConfigError("tls.key_file is encrypted; give the key without a password, in a file that others cannot read.")
