"""The process's HTTP server: binds, announces itself once it answers, and ends without dropping a request."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from firstline_core.errors import CapacityError, ConfigError, FirstlineError
from firstline_core.protocol.http_server import HttpServer, ServerLimits, connections_within_descriptors
from firstline_core.runtime.memory import keep_freed_memory
from firstline_core.telemetry.logs import logger
from firstline_gateway.api.app import create_asgi
from firstline_gateway.api.peers import Peers
from firstline_gateway.app import Gateway

if TYPE_CHECKING:
    from firstline_core.protocol.grpc.server import GrpcServer

_BACKLOG = 2048
_DESCRIPTORS_WANTED = 65_536
# For writing out answers that are made; requests have their own, longer time before it.
_CLOSE_S = 2
# Requests leave no cycles behind, and are many: a look for some after 700 objects would be one each ten requests.
_COLLECTED = (10_000, 20, 20)

log = logger(__name__)


def raise_descriptor_limit() -> None:
    """Raises the soft limit of file descriptors towards the hard limit; the default is meant for select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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
    limits = ServerLimits(idle_s=gateway.settings.api.keep_alive_s, pending=connections_within_descriptors())
    server = http_server(gateway, limits)
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
    await server.start([bound])
    try:
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
        if grpc is not None:
            await grpc.stop(_CLOSE_S)
        await server.stop(_CLOSE_S)
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


def http_server(gateway: Gateway, limits: ServerLimits) -> HttpServer:
    """Returns the gateway's HTTP server, not started yet.

    Args:
        gateway: answers.
        limits: of connections.
    """
    return HttpServer(
        create_asgi(gateway),
        limits=limits,
        clock=gateway.clock,
        tls=gateway.identity.tls.context if gateway.identity.tls is not None else None,
        peers=Peers(gateway.identity.gatekeeper.sessions),
    )
