"""The agent as a process: its sockets, one ready line, a graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from firstline_core.errors import ConfigError
from firstline_core.protocol.http_server import HttpServer, ServerLimits, connections_within_descriptors
from firstline_core.runtime.memory import keep_freed_memory, release_freed_memory
from firstline_core.telemetry.logs import logger
from firstline_edge.agent import EdgeAgent
from firstline_edge.api import unix_socket
from firstline_edge.api.access import Access, access_of
from firstline_edge.api.address import listen, url_of
from firstline_edge.api.app import App
from firstline_edge.api.bodies import BodyBudget
from firstline_edge.settings.settings import EdgeSettings

log = logger(__name__)

_DRAIN_S = 10  # what answers in the making may take after the order to stop


async def serve(
    settings: EdgeSettings, ready: Callable[[str], None], *, trouble: Mapping[Path, str] = MappingProxyType({})
) -> None:
    """Runs the agent and its API until SIGTERM or SIGINT.

    Args:
        settings: see `settings/settings.py`.
        ready: called with the URL once requests are answered.
        trouble: for `status`, by the file that it is with.

    Raises:
        ConfigError: the settings make no sense on this machine.
        AddressError: an address cannot be had.
    """
    access = access_of(settings.api)
    with contextlib.ExitStack() as bound:
        listener = bound.enter_context(contextlib.closing(listen(settings.api.host, settings.api.port)))
        listeners, url = [listener], url_of(listener)
        if settings.api.socket:
            path, mode = Path(settings.api.socket), int(settings.api.socket_mode, 8)
            listeners.append(bound.enter_context(unix_socket.listening(path, mode)))
        async with EdgeAgent(settings, trouble=trouble) as agent:
            agent.parts.state.publish_url(url)
            app, stop = App(agent, access), asyncio.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            async with _grpc(agent, access, app.bodies), serving(app, listeners):
                _settle_memory()
                ready(url)
                await stop.wait()


@contextlib.asynccontextmanager
async def serving(
    app: App, listeners: Iterable[socket.socket], limits: ServerLimits | None = None
) -> AsyncIterator[None]:
    """Serves the API on bound sockets, and stops without losing an answer."""
    connections = connections_within_descriptors()
    server = HttpServer(app, limits=limits or ServerLimits(pending=connections, connections=connections))
    await server.start(listeners)
    try:
        yield
    finally:
        app.streams.close()  # they would be waited for
        await server.stop(_DRAIN_S)


@contextlib.asynccontextmanager
async def _grpc(agent: EdgeAgent, access: Access, bodies: BodyBudget) -> AsyncIterator[None]:
    """Listens for gRPC too, where the settings say so.

    Raises:
        ConfigError: its packages are not installed.
        CapacityError: its address cannot be had.
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


def _settle_memory() -> None:
    """Starting leaves garbage and holes in the heap: some 5 MB, much on a small device. Then requests come."""
    gc.collect()
    gc.freeze()  # what is here now stays for good: no later collection needs to look at it
    release_freed_memory()
    keep_freed_memory()
