"""Serves the API over HTTP and gRPC: sockets, start, and graceful stop."""

from __future__ import annotations

import contextlib
import errno
import gc
import math
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import CapacityError, ConfigError
from firstline_core.protocol.cors import with_cors
from firstline_core.protocol.http import BodyBudget
from firstline_core.protocol.http_server import HttpServer, ServerLimits, connections_within_descriptors
from firstline_core.protocol.sockets import bind, url_of
from firstline_core.runtime.memory import keep_freed_memory, release_freed_memory
from firstline_core.storage.files import system_reason
from firstline_core.telemetry.logs import logger
from firstline_edge.api.access import Access
from firstline_edge.api.app import App
from firstline_edge.api.data_plane import EdgeDataPlane
from firstline_edge.settings.settings import ApiSection

log = logger(__name__)

_DRAIN_S = 10.0


class Drain:
    """The time for requests in flight after the signal to stop, which both servers share.

    It begins when the first of them stops.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._ends_s = math.inf

    def left_s(self) -> float:
        """Returns the rest of the time in seconds."""
        now_s = self._clock.monotonic_s()
        self._ends_s = min(self._ends_s, now_s + _DRAIN_S)
        return max(0.0, self._ends_s - now_s)


@contextlib.contextmanager
def bound_sockets(section: ApiSection) -> Iterator[tuple[list[socket.socket], str]]:
    """Binds the API's sockets.

    Args:
        section: the addresses.

    Yields:
        The sockets, and the URL of the first.

    Raises:
        CapacityError: an address is not available.
    """
    with contextlib.ExitStack() as bound:
        listener = bound.enter_context(contextlib.closing(bind(section.host, section.port)))
        listeners = [listener]
        if section.socket:
            path, mode = Path(section.socket), int(section.socket_mode, 8)
            listeners.append(bound.enter_context(listen_unix(path, mode)))
        yield listeners, url_of(listener)


@contextlib.asynccontextmanager
async def serving(
    app: App, listeners: Iterable[socket.socket], limits: ServerLimits | None = None, drain: Drain | None = None
) -> AsyncIterator[None]:
    """Serves the API on bound sockets, and stops without losing an answer."""
    connections = connections_within_descriptors()
    server = HttpServer(
        with_cors(app, app.cors_origins), limits=limits or ServerLimits(pending=connections, connections=connections)
    )
    await server.start(listeners)
    try:
        yield
    finally:
        app.streams.close()  # otherwise the server would wait for them
        await server.stop((drain or Drain()).left_s())


@contextlib.asynccontextmanager
async def serving_grpc(
    agent: EdgeDataPlane, access: Access, bodies: BodyBudget, drain: Drain | None = None
) -> AsyncIterator[None]:
    """Serves gRPC too if the settings enable it.

    Raises:
        ConfigError: its packages are not installed.
        CapacityError: its address is not available.
    """
    if not agent.settings.grpc.enabled:
        yield
        return
    try:
        from firstline_edge.api.grpc import grpc_server
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"grpc.enabled is set, but the package '{error.name}' is not installed; install firstline[edge,grpc]."
        ) from error
    server = grpc_server(agent, access, bodies)
    await server.start()
    log.info("listening for gRPC", port=server.port)
    try:
        yield
    finally:
        await server.stop((drain or Drain()).left_s())


def release_startup_memory() -> None:
    """Returns the garbage of the start to the system: about 5 MB, which is much on a small device."""
    gc.collect()
    gc.freeze()  # objects of the start live as long as the process: later collections skip them
    release_freed_memory()
    keep_freed_memory()


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
        CapacityError: the path is in use, or cannot be used.
    """
    if _is_file(path):
        raise CapacityError(f"api.socket is {path}, which is a file but not a socket; choose another path.")
    if _answers(path):
        raise CapacityError(f"api.socket is {path}, where another program listens; stop it, or choose another path.")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as listener:
        before = os.umask(0o777)  # no client may connect before the mode is set
        try:
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            path.chmod(mode)
        except OSError as error:
            message = _UNIX_PROBLEMS.get(error.errno or 0, "api.socket is {}, which cannot be used: {}.")
            raise CapacityError(message.format(path, system_reason(error))) from error
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
