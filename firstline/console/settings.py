"""Settings of the console: its address, its password and its gateway."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from firstline_core.errors import ConfigError
from firstline_core.protocol.loopback import is_loopback

DEFAULT_PORT = 8090
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
        password: that browsers must send; "" allows every user of this machine.
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
    password: str = field(default="", repr=False)
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    plain_http: bool = False

    def __post_init__(self) -> None:
        if self.password and len(self.password) < _FEWEST_CHARACTERS:
            raise ConfigError(
                f"The console's password has {len(self.password)} characters; use {_FEWEST_CHARACTERS} or more."
            )
        if (self.tls_certificate is None) is not (self.tls_key is None):
            raise ConfigError("TLS needs both files: --tls-cert with the certificate, --tls-key with its key.")
        if self.local:
            return
        if not self.password:
            raise ConfigError(
                f"On {self.host} whoever reaches the console could command the fleet; give it a password of its own "
                "(--password-file), or listen on 127.0.0.1."
            )
        if self.tls_certificate is None and not self.plain_http:
            raise ConfigError(
                f"On {self.host} the password would travel unprotected; name a certificate (--tls-cert, --tls-key), or "
                "say --plain-http where a proxy or the network protects it."
            )

    @property
    def local(self) -> bool:
        """Returns whether only this machine can reach the console."""
        return is_loopback(self.host)

    @property
    def scheme(self) -> str:
        return "http" if self.tls_certificate is None else "https"
