"""A Unix socket for programs on this device, next to the TCP port; the mode of its file controls access."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from firstline_edge.api.address import AddressError

_PROBLEMS = {
    errno.EACCES: "api.socket is {}, where this user may not write; choose a folder of its own.",
    errno.ENOENT: "api.socket is {}, but there is no such folder; make it, or correct the path.",
    errno.EROFS: "api.socket is {}, on a file system that is read-only; choose another folder, such as one below /run.",
}


@contextlib.contextmanager
def listening(path: Path, mode: int) -> Iterator[socket.socket]:
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
            said = _PROBLEMS.get(error.errno or 0, "api.socket is {}, which cannot be used: {}.")
            raise AddressError(said.format(path, error.strerror or error)) from error
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
