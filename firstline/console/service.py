"""The console's process: its pages behind the guard, on one port, until it is told to stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI
from nicegui import ui
from starlette.types import ASGIApp

from firstline.console import devices, rollout, rollouts, tiers
from firstline.console.access import Guard
from firstline.console.settings import Settings
from firstline.console.watching import Watch
from firstline.fleet import Fleet, open_fleet
from firstline_core.errors import ConfigError

_GATEWAY_S = 5.0  # a gateway that says nothing for so long is away
_STOP_S = 2
_CONNECTIONS = 256
_KEPT_MESSAGES = 100  # for a browser whose connection broke and comes back
_RECONNECT_S = 5.0
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><path fill="#0072b2" d="M1 1h6v2H3v1h3v2H3v2H1z"/></svg>'
)


def run(settings: Settings, ready: Callable[[str], None]) -> None:
    """Serves until a signal says to stop.

    Args:
        settings: of the console.
        ready: told the console's address once it listens.

    Raises:
        ConfigError: the address cannot be had, or the gateway's URL, key or authority is none.
    """
    listening = _bind(settings)
    with open_fleet(settings.gateway, settings.key, settings.ca_file, _GATEWAY_S) as fleet:
        asyncio.run(_serve(settings, fleet, listening, ready))


async def _serve(settings: Settings, fleet: Fleet, listening: socket.socket, ready: Callable[[str], None]) -> None:
    config = uvicorn.Config(
        Guard(application(Watch(fleet)), settings.password),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_STOP_S,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )
    server = uvicorn.Server(config)
    host, port = listening.getsockname()[:2]
    ready(f"{settings.scheme}://{f'[{host}]' if ':' in host else host}:{port}")
    await server.serve(sockets=[listening])


def application(watch: Watch) -> ASGIApp:
    """The pages; one application in a process, as NiceGUI has it."""
    for module in (devices, rollouts, rollout, tiers):
        module.add_pages(watch)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    ui.run_with(
        app,
        title="Firstline",
        favicon=_ICON,
        language="en-US",
        tailwind=False,
        show_welcome_message=False,
        reconnect_timeout=_RECONNECT_S,
        message_history_length=_KEPT_MESSAGES,
        # Nothing is stored of whoever looks, so there is no session, and no secret to sign one with.
        storage_secret=None,
    )
    return app


def _bind(settings: Settings) -> socket.socket:
    host = settings.host.strip("[]")
    try:
        family, *_, address = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM)[0]
        taken = socket.socket(family, socket.SOCK_STREAM)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
        taken.listen()  # whoever is told the address may call at once, and waits until it is served
    except OSError as error:
        raise ConfigError(
            f"The console cannot listen on {settings.host}, port {settings.port}: {error.strerror}."
        ) from error
    return taken
