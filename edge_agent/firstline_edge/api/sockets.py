"""The sockets that the API listens on: a TCP port, and a Unix socket for programs on this device."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from firstline_core.errors import ConfigError, FirstlineError
from firstline_core.storage.files import system_reason

_TCP_PROBLEMS = {
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
        raise ConfigError(
            f"api.host is '{host}', which is not known; check the host name, or name an address of this machine, "
            "such as 127.0.0.1."
        ) from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise AddressError(
            _TCP_PROBLEMS.get(error.errno or 0, "{} cannot be used: {}.").format(f"{host}:{port}", system_reason(error))
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Returns the URL at which a client on this machine reaches the socket."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (a look-up, not a bind)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


_UNIX_PROBLEMS = {
    errno.EACCES: "api.socket is {}, where this user may not write; choose a folder of its own.",
    errno.ENOENT: "api.socket is {}, but there is no such folder; make it, or correct the path.",
    errno.EROFS: "api.socket is {}, on a file system that is read-only; choose another folder, such as one below /run.",
}


@contextlib.contextmanager
def listen_unix(path: Path, mode: int) -> Iterator[socket.socket]:
    """Yields a bound socket, and deletes its file at the end.

    Args:
        path: of the file. The socket of a killed process is replaced; any other file is not.
        mode: of the file; users who may write to it may send requests.

    Raises:
        AddressError: the path is in use, or cannot be used.
    """
    if _is_file(path):
        raise AddressError(f"api.socket is {path}, which is a file but not a socket; choose another path.")
    if _answers(path):
        raise AddressError(f"api.socket is {path}, where another program listens; stop it, or choose another path.")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as listener:
        before = os.umask(0o777)  # no client may connect before the mode is set
        try:
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            path.chmod(mode)
        except OSError as error:
            message = _UNIX_PROBLEMS.get(error.errno or 0, "api.socket is {}, which cannot be used: {}.")
            raise AddressError(message.format(path, system_reason(error))) from error
        finally:
            os.umask(before)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def _is_file(path: Path) -> bool:
    try:
        return not stat.S_ISSOCK(path.stat().st_mode)
    except OSError:  # missing or unreadable: binding reports the reason
        return False


def _answers(path: Path) -> bool:
    """Returns whether a process listens, without waiting for a place in its queue."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as caller:
        caller.setblocking(False)
        try:
            caller.connect(str(path))
        except BlockingIOError:
            return True
        except OSError as error:  # the socket of another user may refuse this one
            return error.errno == errno.EACCES and os.access(path.parent, os.X_OK)
        return True
