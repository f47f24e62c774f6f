"""The agent as a process: its sockets, one ready line, a graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import uvicorn
from starlette.applications import Starlette

from firstline_core.errors import ConfigError
from firstline_core.telemetry.logs import logger
from firstline_edge.agent import EdgeAgent
from firstline_edge.api import unix_socket
from firstline_edge.api.access import Access, access_of
from firstline_edge.api.address import listen, url_of
from firstline_edge.api.app import create_app
from firstline_edge.api.bodies import BodyBudget
from firstline_edge.api.http_protocol import HEAD_LIMIT_BYTES, HttpProtocol
from firstline_edge.api.streams import Streams
from firstline_edge.settings import EdgeSettings

log = logger(__name__)

_KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that they close them, and not we under them
_DRAIN_S = 10  # what answers in the making may take after the order to stop


async def serve(
    settings: EdgeSettings, ready: Callable[[str], None], *, trouble: Mapping[Path, str] = MappingProxyType({})
) -> None:
    """Runs the agent and its API until SIGTERM or SIGINT.

    Args:
        settings: see `settings.py`.
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
            app = create_app(agent, access)
            server = Server(app, lambda: ready(url))
            async with _grpc(agent, access, app.state.bodies):
                _give_back_memory()
                for number in (signal.SIGTERM, signal.SIGINT):
                    asyncio.get_running_loop().add_signal_handler(number, server.stop)
                await server.serve(sockets=listeners)


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


def _give_back_memory() -> None:
    """Starting leaves garbage and holes in the heap: some 5 MB, much on a small device."""
    gc.collect()
    gc.freeze()  # what is here now stays for good: no later collection needs to look at it
    with contextlib.suppress(AttributeError, OSError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)


class Server(uvicorn.Server):
    """uvicorn, told to say when it is ready, and to leave signals to the process."""

    def __init__(self, app: Starlette, ready: Callable[[], None]) -> None:
        self._streams: Streams = app.state.streams
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpProtocol,
                h11_max_incomplete_event_size=HEAD_LIMIT_BYTES,
                ws="none",
                log_config=None,
                log_level="warning",
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=_DRAIN_S,
            )
        )
        self._tell_ready = ready

    def stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._tell_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._streams.close()  # they would be waited for
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Uvicorn would raise them again at its end; a graceful stop is exit code 0."""
        yield
