"""The gateway's side of TLS: its certificate, which is exchanged while it serves, and whom it believes.

A client may show a certificate, and OpenSSL checks its chain and that the client has the key; not its times, nor
whether it was revoked. `gatekeeper.py` does, so that a device with an expired certificate gets an error that explains
it, and can still renew it.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError
from firstline_core.telemetry.logs import logger
from firstline_gateway.identity import authorities
from firstline_gateway.identity.authorities import AuthorityFolder
from firstline_gateway.settings import settings

# x509_vfy.h; Python's `ssl.VerifyFlags` has no name for it.
_NO_CHECK_TIME = 0x200000
# How soon an exchanged certificate or authority is noticed.
_LOOK_EVERY_S = 10.0

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """The content of a TLS context; `changed` differs when one of the two files does."""

    certificate: Path
    key: Path
    believed_pem: str
    changed: object


class ServerTls:
    """The TLS context of a gateway that serves HTTPS.

    Args:
        found: hosts, or the operator's own files.
        folder: of the gateway's authority.
        clock: dates certificates.

    Raises:
        ConfigError: the files are no good.
    """

    def __init__(self, found: settings.Tls, folder: AuthorityFolder, clock: Clock) -> None:
        self._settings = found
        self._folder = folder
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._seen = self._prepare()
        self.context = _context()
        _load(self.context, self._seen)

    def start(self) -> None:
        """Begins to look for files that have changed, and to renew the gateway's own certificate."""
        self._task = asyncio.create_task(self._keep())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def files(self) -> ServerFiles:
        """Returns the current certificates; a new object after each change."""
        return self._seen

    async def refresh(self) -> bool:
        """Takes changed files over, for connections from now on; whether there were any.

        Raises:
            ConfigError: they cannot be used; the previous ones stay in use.
        """
        found = await asyncio.to_thread(self._prepare)
        if found == self._seen:
            return False
        _load(_context(), found)  # a context of its own, for a bad pair of files leaves half of it behind
        _load(self.context, found)  # on the event loop, where handshakes are made
        self._seen = found
        return True

    def _prepare(self) -> ServerFiles:
        believed = self._folder.open()
        if self._settings.certificate_file:
            certificate, key = Path(self._settings.certificate_file), Path(self._settings.key_file)
        else:
            certificate = key = authorities.server_certificate(
                self._folder.directory, believed.active, self._settings.hosts, self._clock.wall_s()
            )
        return ServerFiles(certificate, key, believed.pem, (authorities.changed(certificate), authorities.changed(key)))

    async def _keep(self) -> None:
        trouble = ""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                if await self.refresh():
                    log.info("server certificate reloaded")
                trouble = ""
            except ConfigError as error:
                if error.message != trouble:
                    log.error("server certificate not reloaded", error=error.message)
                trouble = error.message
            except Exception:  # the outermost loop of a task that must never end
                log.exception("server certificate not reloaded")


def check(found: settings.Tls) -> None:
    """Tries an operator's own certificate, where one is named.

    Raises:
        ConfigError: its files are no good.
    """
    if found.certificate_file:
        files = ServerFiles(Path(found.certificate_file), Path(found.key_file), "", None)
        _load(_context(), files)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    context.verify_mode = ssl.CERT_OPTIONAL
    # An operator's own authority may be another's intermediate, and is believed all the same.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
    return context


def _load(context: ssl.SSLContext, found: ServerFiles) -> None:
    """Puts the files' contents into a context.

    Raises:
        ConfigError: they are no good.
    """
    try:
        context.load_cert_chain(found.certificate, found.key, password=_no_password)
        if found.believed_pem:
            context.load_verify_locations(cadata=found.believed_pem)
    except OSError as error:  # ssl.SSLError is one
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        raise ConfigError(
            f"tls.certificate_file {found.certificate} and tls.key_file {found.key} cannot be used: {reason}."
        ) from error


def _no_password() -> str:
    """Instead of asking at a terminal."""
    raise ConfigError("tls.key_file is encrypted; give the key without a password, in a file that others cannot read.")
