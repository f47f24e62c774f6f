"""A Unix socket beside the TCP port, for programs on this device: guarded by its file's mode, with no port to find."""

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
    """A bound socket, whose file goes at the end.

    Args:
        path: what a process left that was killed is replaced; anything else that is there is not.
        mode: of the file, for those who may write requests into it.

    Raises:
        AddressError: the path is taken, or cannot be used.
    """
    if _is_file(path):
        raise AddressError(f"api.socket is {path}, which is a file already, and no socket; choose another path.")
    if _answers(path):
        raise AddressError(f"api.socket is {path}, where another program listens; stop it, or choose another path.")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as listener:
        before = os.umask(0o777)  # nobody may come in before the mode is set
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
    except OSError:  # nothing there, or nothing that may be looked at: binding says what is wrong
        return False


def _answers(path: Path) -> bool:
    """Whether somebody listens, perhaps too busy to answer: whoever connects in vain to a full queue would wait."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as caller:
        caller.setblocking(False)
        try:
            caller.connect(str(path))
        except BlockingIOError:
            return True
        except OSError as error:  # others' sockets may refuse this user
            return error.errno == errno.EACCES and os.access(path.parent, os.X_OK)
        return True
