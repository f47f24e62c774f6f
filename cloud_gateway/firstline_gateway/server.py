"""The process's HTTP server: binds, announces itself once it answers, and ends without dropping a request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import uvicorn

from firstline_core.errors import CapacityError, ConfigError, FirstlineError
from firstline_core.runtime.memory import keep_freed_memory
from firstline_core.telemetry.logs import logger
from firstline_gateway.api.app import create_asgi
from firstline_gateway.api.connection.door import Door, Newcomers, newcomers_limit
from firstline_gateway.api.connection.fast_path import FastPath
from firstline_gateway.api.connection.inference_protocol import InferenceProtocol
from firstline_gateway.gateway import Gateway

if TYPE_CHECKING:
    from firstline_core.protocol.grpc.server import GrpcServer

_BACKLOG = 2048
# For writing out answers that are made; requests have their own, longer time before it.
_CLOSE_S = 2
# Requests leave no cycles behind, and are many: a look for some after 700 objects would be one each ten requests.
_COLLECTED = (10_000, 20, 20)
# Turns of the event loop, each of which accepts and reads what has come by then, and runs what was to run.
_LAST_TURNS = 10

log = logger(__name__)


def bind(host: str, port: int) -> socket.socket:
    """Takes the address, without answering on it yet.

    Raises:
        CapacityError: it is taken, or not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # By its protocol asyncio knows a TCP socket, and sets TCP_NODELAY on what it accepts. Without, an answer's body
    # waits for the client's acknowledgement of its head: 40 ms on Linux (Nagle's algorithm and delayed ACKs).
    taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host.strip("[]"), port))
    except OSError as error:
        taken.close()
        raise _taken(host, port, error) from error
    return taken


def _taken(host: str, port: int, error: OSError) -> CapacityError:
    return CapacityError(
        f"Cannot listen on {host} port {port}: {error.strerror}; choose another with --port, or stop what holds it."
    )


def url_of(bound: socket.socket, *, tls: bool = False) -> str:
    """The address as a URL."""
    host, port = bound.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn with its signals left to us, and a moment from which it answers."""

    def __init__(self, config: uvicorn.Config, newcomers: Newcomers, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._newcomers = newcomers
        self._tls = tls
        self._doors: list[Door] = []
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is None or sockets is None:
            await super().startup(sockets)
        else:
            await self.lifespan.startup()  # there is none; it makes the state that connections are given
            self._doors = [Door(each, self._protocol, self._tls, self._newcomers, backlog=_BACKLOG) for each in sockets]
            self.servers = list(self._doors)  # type: ignore[arg-type]  # it closes them, and no more
            self.started = True
        self.up.set()

    def _protocol(self) -> asyncio.Protocol:
        kind: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return kind(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets nobody new in, and reads what came by then before connections are closed.

        What nobody has accepted or read turns the end into a reset, and a request into no answer at all.
        """
        await _turns()
        for listening in self.servers:
            listening.close()
        await _turns()
        await super().shutdown(sockets)
        self._newcomers.end()
        for door in self._doors:
            await door.wait_closed()


async def _turns() -> None:
    for _ in range(_LAST_TURNS):
        await asyncio.sleep(0)


async def serve(gateway: Gateway, bound: socket.socket, announce: Callable[[], None]) -> bool:
    """Serves until SIGTERM or SIGINT, then finishes what is in flight, for at most `api.drain_s`.

    What takes longer is answered with the advice to send it again.

    Args:
        gateway: started and closed here.
        bound: from `bind`; closed here.
        announce: called once requests are answered.

    Returns:
        False where a batch or the store is still at work: its thread would keep the interpreter from ending.

    Raises:
        CapacityError: another process began to listen on the address first.
    """
    try:
        bound.listen(_BACKLOG)  # only here two processes that bound one address meet
    except OSError as error:
        await gateway.close()
        host, port = bound.getsockname()[:2]
        raise _taken(host, port, error) from error
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = http_server(gateway, gateway.settings.api.keep_alive_s)
    ended = True
    try:
        grpc = open_grpc(gateway)
    except FirstlineError:
        bound.close()
        await gateway.close()
        raise
    await gateway.start()
    if grpc is not None:
        await grpc.start()
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        await server.up.wait()
        gc.collect()
        gc.freeze()  # what is here now stays for good: no later collection needs to look at it
        gc.set_threshold(*_COLLECTED)
        keep_freed_memory()
        announce()
        await stop.wait()
        log.info("draining")
        # Still listening: load balancers see `ready` turn, and new requests are sent elsewhere with a sentence.
        if not await gateway.drain(gateway.settings.api.drain_s):
            log.warning("gave up on requests in flight", after_s=gateway.settings.api.drain_s)
            await gateway.abandon()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        server.should_exit = True
        if grpc is not None:
            await grpc.stop(_CLOSE_S)
        await serving
        ended = await gateway.close()
        if ended:
            log.info("stopped")
        else:
            log.error("stopped while a batch runs, or the store says nothing")
    return ended


def open_grpc(gateway: Gateway) -> GrpcServer | None:
    """The server for gRPC, where the settings ask for one; it listens once it is started.

    Raises:
        ConfigError: its packages are not installed.
        CapacityError: its address is taken.
    """
    if not gateway.settings.grpc.enabled:
        return None
    try:
        from firstline_gateway.api.grpc import grpc_server
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"grpc.enabled is set, but the package '{error.name}' is not installed; install firstline[gateway,grpc]."
        ) from error
    found = grpc_server(gateway)
    log.info("listening for gRPC", port=found.port)
    return found


def http_server(gateway: Gateway, keep_alive_s: float) -> Server:
    """Uvicorn as the gateway runs it."""
    newcomers = Newcomers(newcomers_limit())
    config = uvicorn.Config(
        create_asgi(gateway),
        # Whose constructor it calls for each connection.
        http=partial(InferenceProtocol, gateway=gateway, fast_path=FastPath(gateway), newcomers=newcomers),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=int(keep_alive_s),
        timeout_graceful_shutdown=_CLOSE_S,
    )
    return Server(config, newcomers, gateway.identity.tls.context if gateway.identity.tls is not None else None)
