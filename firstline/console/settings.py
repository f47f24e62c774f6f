"""Settings of the console: its address, its password and its gateway."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from firstline.console import DEFAULT_PORT
from firstline.console.accounts import Accounts
from firstline_core.errors import ConfigError
from firstline_core.protocol.loopback import is_loopback

_FEWEST_CHARACTERS = 12  # of the password


@dataclass(frozen=True)
class Settings:
    """The checked settings of the console.

    Args:
        gateway: its URL.
        key: an API key with the scope "fleet"; it stays in this process.
        ca_file: CA certificates used to verify the gateway (PEM); None for the system's own.
        host: address to listen on.
        port: 0 for a free one.
        accounts: the persons with access; without any, every user of this machine may use the console.
        tls_certificate: with `tls_key`, the console's certificate (PEM); None serves plain HTTP.
        plain_http: serve beyond loopback without TLS, if the network is protected otherwise.

    Raises:
        ConfigError: the console would be open to unauthorised users.
    """

    gateway: str
    key: str = field(repr=False)
    ca_file: Path | None = None
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    accounts: Accounts = field(default=Accounts(), repr=False)
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    plain_http: bool = False

    def __post_init__(self) -> None:
        if self.accounts.shared:
            check_password(self.accounts.shared)
        if (self.tls_certificate is None) is not (self.tls_key is None):
            raise ConfigError("TLS needs both files: --tls-cert with the certificate, --tls-key with its key.")
        if self.local:
            return
        if not self.accounts.required:
            raise ConfigError(
                f"On {self.host} other machines could command the fleet without sign-in; add --accounts or "
                "--password-file, or listen on 127.0.0.1."
            )
        if self.tls_certificate is None and not self.plain_http:
            raise ConfigError(
                f"On {self.host} passwords would travel unencrypted; add a certificate (--tls-cert, --tls-key), or "
                "--plain-http if a proxy or the network protects them."
            )

    @property
    def local(self) -> bool:
        """Returns whether only this machine can reach the console."""
        return is_loopback(self.host)

    @property
    def scheme(self) -> str:
        return "http" if self.tls_certificate is None else "https"

    @property
    def url(self) -> str:
        """The address on which the console listens."""
        host = self.host.strip("[]")
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def secure(self) -> bool:
        """Returns whether browsers reach the console over TLS only."""
        oidc = self.accounts.oidc
        return self.scheme == "https" or (oidc is not None and urlsplit(oidc.url).scheme == "https")


def check_password(password: str) -> None:
    """Checks that a password is long enough, and that a browser can send it.

    Raises:
        ConfigError: it is too short, or not UTF-8; the message does not contain it.
    """
    try:
        password.encode()
    except UnicodeEncodeError:
        raise ConfigError("The console's password is not UTF-8 text; choose another.") from None
    if len(password) < _FEWEST_CHARACTERS:
        raise ConfigError(f"The console's password has {len(password)} characters; use {_FEWEST_CHARACTERS} or more.")
