"""Serves a gateway until a signal ends the process."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from firstline_core.protocol.http_server import HttpServer, ServerLimits, connections_within_descriptors
from firstline_core.protocol.sockets import listen
from firstline_core.runtime.memory import keep_freed_memory
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.settings_reload import SettingsReload
from firstline_gateway.app import LIVE_KEYS, Gateway
from firstline_gateway.settings.settings import Settings

if TYPE_CHECKING:
    from firstline_core.protocol.grpc.server import GrpcServer

# Time to write the last answers, after `api.drain_s` for their requests.
_SERVER_STOP_S = 2
# At most, however many descriptors there are; a stranger may keep a connection after an answer that needs no key.
CONNECTIONS_LIMIT = 65_536
# Requests create no reference cycles; the default thresholds would start a collection every ten requests.
_GC_THRESHOLDS = (10_000, 20, 20)
_DESCRIPTORS_WANTED = 65_536

log = logger(__name__)


def raise_descriptor_limit() -> None:
    """Raises the soft limit of file descriptors towards the hard limit; the default is meant for select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


async def run_gateway(
    gateway: Gateway, bound: socket.socket, announce: Callable[[], None], read: Callable[[], Settings]
) -> bool:
    """Serves until SIGTERM or SIGINT, then answers the requests in flight for at most `api.drain_s`.

    SIGHUP reloads the configuration.

    Requests that take longer are answered with `NotReadyError`.

    Args:
        gateway: started and closed here.
        bound: from `protocol.sockets.bind`; closed here.
        announce: called when the gateway accepts requests.
        read: reads the settings again.

    Returns:
        False if a batch or the store is still busy: its thread would prevent the interpreter from exiting.

    Raises:
        CapacityError: an address is in use.
        FirstlineError: a part of the gateway cannot start; all others are closed.
    """
    stop, hangup = asyncio.Event(), asyncio.Event()
    reload = SettingsReload(gateway.settings, read, gateway.adopt, lambda: LIVE_KEYS)
    reloading: asyncio.Task[None] | None = None
    signals = ((signal.SIGTERM, stop), (signal.SIGINT, stop), (signal.SIGHUP, hangup))
    loop = asyncio.get_running_loop()
    grpc: GrpcServer | None = None
    server: HttpServer | None = None
    try:
        listen(bound)
        grpc = gateway.grpc_server()
        for number, event in signals:
            loop.add_signal_handler(number, event.set)
        limits = ServerLimits(
            idle_s=gateway.settings.api.keep_alive_s,
            pending=connections_within_descriptors(),
            connections=connections_within_descriptors(CONNECTIONS_LIMIT),
        )
        server = gateway.http_server(limits)
        await gateway.start()
        if grpc is not None:
            await grpc.start()
        await server.start([bound])
        gc.collect()
        gc.freeze()  # startup objects live as long as the process; later collections skip them
        gc.set_threshold(*_GC_THRESHOLDS)
        keep_freed_memory()
        reloading = asyncio.create_task(reload.keep(hangup))
        announce()
        await stop.wait()
        log.info("draining")
        # The server still listens: load balancers see that `ready` is false, and new requests get a reason.
        if not await gateway.drain(gateway.settings.api.drain_s):
            log.warning("gave up on requests in flight", after_s=gateway.settings.api.drain_s)
            await gateway.abandon()
    finally:
        if reloading is not None:
            reloading.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):  # a second one ends the process; SIGHUP still does not
            loop.remove_signal_handler(number)
        if grpc is not None:
            await grpc.stop(_SERVER_STOP_S)
        if server is not None:
            await server.stop(_SERVER_STOP_S)
        bound.close()  # a server that did not start has not closed it
        ended = await gateway.close()
        if ended:
            log.info("stopped")
        else:
            log.error("stopped while a batch runs, or the store does not respond")
    return ended
