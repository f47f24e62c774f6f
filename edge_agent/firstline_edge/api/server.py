"""Serves the API over HTTP and gRPC: sockets, start, and graceful stop."""

from __future__ import annotations

import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

from firstline_core.errors import ConfigError
from firstline_core.protocol.cors import with_cors
from firstline_core.protocol.http import BodyBudget
from firstline_core.protocol.http_server import HttpServer, ServerLimits, connections_within_descriptors
from firstline_core.runtime.memory import keep_freed_memory, release_freed_memory
from firstline_core.telemetry.logs import logger
from firstline_edge.api.access import Access
from firstline_edge.api.app import App
from firstline_edge.api.data_plane import EdgeDataPlane
from firstline_edge.api.sockets import listen, listen_unix, url_of
from firstline_edge.settings.settings import ApiSection

log = logger(__name__)

_DRAIN_S = 10  # for requests in flight after the signal to stop


@contextlib.contextmanager
def bound_sockets(section: ApiSection) -> Iterator[tuple[list[socket.socket], str]]:
    """Binds the API's sockets.

    Args:
        section: the addresses.

    Yields:
        The sockets, and the URL of the first.

    Raises:
        AddressError: an address is not available.
    """
    with contextlib.ExitStack() as bound:
        listener = bound.enter_context(contextlib.closing(listen(section.host, section.port)))
        listeners = [listener]
        if section.socket:
            path, mode = Path(section.socket), int(section.socket_mode, 8)
            listeners.append(bound.enter_context(listen_unix(path, mode)))
        yield listeners, url_of(listener)


@contextlib.asynccontextmanager
async def serving(
    app: App, listeners: Iterable[socket.socket], limits: ServerLimits | None = None
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
        await server.stop(_DRAIN_S)


@contextlib.asynccontextmanager
async def serving_grpc(agent: EdgeDataPlane, access: Access, bodies: BodyBudget) -> AsyncIterator[None]:
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
        await server.stop(_DRAIN_S)


def release_startup_memory() -> None:
    """Returns the garbage of the start to the system: about 5 MB, which is much on a small device."""
    gc.collect()
    gc.freeze()  # objects of the start live as long as the process: later collections skip them
    release_freed_memory()
    keep_freed_memory()
