"""The sockets of the API."""

from __future__ import annotations

import resource
import socket

from firstline_core.errors import CapacityError
from firstline_core.storage.files import system_reason

_BACKLOG = 2048
_DESCRIPTORS_WANTED = 65_536


def raise_descriptor_limit() -> None:
    """Raises the soft limit of file descriptors towards the hard limit; the default is meant for select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound to an address, and does not listen yet.

    Raises:
        CapacityError: the address is in use, or does not belong to this machine.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host.strip("[]"), port))
    except OSError as error:
        bound.close()
        raise _unavailable(host, port, error) from error
    return bound


def _unavailable(host: str, port: int, error: OSError) -> CapacityError:
    return CapacityError(
        f"Cannot listen on {host} port {port}: {system_reason(error)}; choose another with --port, or "
        "stop what holds it."
    )


def url_of(bound: socket.socket, *, tls: bool = False) -> str:
    """Returns the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def listen(bound: socket.socket) -> None:
    """Begins to listen on a bound address.

    Raises:
        CapacityError: another process began to listen on it first.
    """
    try:
        bound.listen(_BACKLOG)
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise _unavailable(host, port, error) from error
