"""The TCP address that the API listens on."""

from __future__ import annotations

import errno
import socket

from firstline_core.errors import ConfigError, FirstlineError

_BIND_PROBLEMS = {
    errno.EADDRINUSE: "{} is in use by another program; stop it, or choose a port with --port (0 lets the system).",
    errno.EACCES: "{} may not be used by this user; choose a port above 1023 with --port.",
    errno.EADDRNOTAVAIL: "{} is not an address of this machine; correct api.host.",
}


class AddressError(FirstlineError):
    """Raised when the address to listen on is not available."""


def listen(host: str, port: int) -> socket.socket:
    """Returns a bound TCP socket.

    Raises:
        ConfigError: the host is not an address.
        AddressError: the port is in use or may not be bound.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"api.host is '{host}', which is not an address: {error.strerror}.") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise AddressError(
            _BIND_PROBLEMS.get(error.errno or 0, "{} cannot be used: {}.").format(f"{host}:{port}", error.strerror)
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Returns the URL at which a client on this machine reaches the socket."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (a look-up, not a bind)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
