"""Sockets of the servers of both tiers."""

from __future__ import annotations

import errno
import socket

from firstline_core.errors import CapacityError, ConfigError
from firstline_core.storage.files import system_reason

_BACKLOG = 2048
_PROBLEMS = {
    errno.EADDRINUSE: "{} is in use by another program; stop it, or choose a port with --port (0 for any free one).",
    errno.EACCES: "{} may not be used by this user; choose a port above 1023 with --port.",
    errno.EADDRNOTAVAIL: "{} is not an address of this machine; correct api.host.",
}


def bind(host: str, port: int) -> socket.socket:
    """Returns a TCP socket that is bound to an address, and does not listen yet.

    Raises:
        ConfigError: the host is unknown, or no name of a host.
        CapacityError: the port is in use or may not be bound.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:  # UnicodeError: an empty or long part between two dots
        raise ConfigError(
            f"api.host is '{host}', which is not known; check the host name, or name an address of this machine, "
            "such as 127.0.0.1."
        ) from error
    # IPv4 first: 'localhost' is also ::1, which not every machine has.
    family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _unavailable(host_and_port(host.strip("[]"), port), error) from error
    return bound


def listen(bound: socket.socket) -> None:
    """Begins to listen on a bound socket.

    Raises:
        CapacityError: another process began to listen on its address first.
    """
    try:
        bound.listen(_BACKLOG)
    except OSError as error:
        name = bound.getsockname()
        raise _unavailable(name if bound.family == socket.AF_UNIX else host_and_port(*name[:2]), error) from error


def url_of(bound: socket.socket, *, tls: bool = False) -> str:
    """Returns the URL at which a client on this machine reaches a bound socket."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (a look-up, not a bind)
    return f"{'https' if tls else 'http'}://{host_and_port(host, port)}"


def host_and_port(host: str, port: int) -> str:
    """Returns an address as URLs have it, with IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _unavailable(address: str, error: OSError) -> CapacityError:
    problem = _PROBLEMS.get(error.errno or 0, "{} cannot be used: {}.")
    return CapacityError(problem.format(address, system_reason(error)))
