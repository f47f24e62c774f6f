"""The agent as a process: one socket, one ready line, a graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import uvicorn
from starlette.applications import Starlette

from firstline_core.errors import ConfigError, FirstlineError
from firstline_core.telemetry.logs import logger
from firstline_edge.agent import EdgeAgent
from firstline_edge.api.access import Access, access_of
from firstline_edge.api.app import create_app
from firstline_edge.api.bodies import BodyBudget
from firstline_edge.api.http_protocol import HEAD_LIMIT_BYTES, HttpProtocol
from firstline_edge.api.streams import Streams
from firstline_edge.settings import EdgeSettings

log = logger(__name__)

_KEEP_ALIVE_S = 75  # longer than clients keep idle connections, so that they close them, and not we under them
_DRAIN_S = 10  # what answers in the making may take after the order to stop


_BIND_PROBLEMS = {
    errno.EADDRINUSE: "{} is in use by another program; stop it, or choose a port with --port (0 lets the system).",
    errno.EACCES: "{} may not be used by this user; choose a port above 1023 with --port.",
    errno.EADDRNOTAVAIL: "{} is not an address of this machine; correct api.host.",
}


class AddressError(FirstlineError):
    """The address to listen on cannot be had."""


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
        AddressError: the address cannot be had.
    """
    access = access_of(settings.api)
    with contextlib.closing(listen(settings.api.host, settings.api.port)) as listener:
        url = url_of(listener)
        async with EdgeAgent(settings, trouble=trouble) as agent:
            agent.parts.state.publish_url(url)
            app = create_app(agent, access)
            server = Server(app, lambda: ready(url))
            async with _grpc(agent, access, app.state.bodies):
                _give_back_memory()
                for number in (signal.SIGTERM, signal.SIGINT):
                    asyncio.get_running_loop().add_signal_handler(number, server.stop)
                await server.serve(sockets=[listener])


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


def listen(host: str, port: int) -> socket.socket:
    """A bound TCP socket.

    Raises:
        ConfigError: the host is no address.
        AddressError: the port is taken or may not be bound.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"api.host is '{host}', which is no address: {error.strerror}.") from error
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
    """Where a client on this machine reaches the socket."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (a look-up, not a bind)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
