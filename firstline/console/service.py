"""The console's process: it serves the protected pages on one port until a signal stops it."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import NoReturn

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from nicegui import app as pages
from nicegui import ui
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp

from firstline.console import (
    audit_page,
    contract_pages,
    device_pages,
    enrol_page,
    overview_page,
    rollout_form,
    rollout_pages,
    settings_page,
)
from firstline.console.access import Guard
from firstline.console.connections import Connection, TlsListener
from firstline.console.page import Frame, card, empty
from firstline.console.polling import Watch
from firstline.console.sessions import COOKIE, Sessions
from firstline.console.settings import Settings
from firstline.console.sign_in import SignInRoutes
from firstline.fleet.client import Fleet, acting_for, open_fleet
from firstline_core.errors import ConfigError, FirstlineError, ForbiddenError, UnauthorizedError
from firstline_core.fleet.persons import Person, Role
from firstline_core.storage.files import system_reason

_GATEWAY_S = 5.0  # silence after which a gateway counts as away
_STOP_S = 1  # for open pages, which receive no more updates
_CONNECTIONS = 256
_KEPT_MESSAGES = 100  # for a browser whose connection broke and comes back
# A page whose browser is away for longer is loaded again. NiceGUI allows a browser two fifths of this time to answer a
# ping: a slow browser or network must not lose its connection.
_RECONNECT_S = 20.0
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><path fill="#0072b2" d="M1 1h6v2H3v1h3v2H3v2H1z"/></svg>'
)


def run(settings: Settings, ready: Callable[[str], None]) -> None:
    """Serves until a signal says to stop.

    Args:
        settings: of the console.
        ready: called with the console's address once it listens.

    Raises:
        ConfigError: the address is not available, TLS lacks a certificate, or the gateway's URL, key or authority is
            not valid, or the gateway forbids the key to act for persons.
    """
    _check_tls(settings)
    with (
        open_fleet(settings.gateway, settings.key, settings.ca_file, _GATEWAY_S) as fleet,
        listening_socket(settings) as listening,
    ):
        if settings.accounts.required:
            check_key(fleet)
        for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn ends its server, then gives the signal back
            signal.signal(number, _end)
        host, port = listening.getsockname()[:2]
        asyncio.run(_serve(replace(settings, host=host, port=port), fleet, listening, ready))


async def _serve(settings: Settings, fleet: Fleet, listening: socket.socket, ready: Callable[[str], None]) -> None:
    config = uvicorn.Config(
        protected(settings, fleet),
        http=Connection,
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
    if settings.tls_certificate is not None:
        listening = TlsListener(listening, server.server_state.connections)
    ready(settings.url)
    await server.serve(sockets=[listening])


def check_key(fleet: Fleet) -> None:
    """Checks that the gateway lets the key act for persons; a gateway that does not answer is asked later.

    Raises:
        ConfigError: it forbids that.
    """
    try:
        acting_for(Person("console", Role.VIEWER), fleet, lambda each: each.page(limit=1))
    except ForbiddenError as error:
        raise ConfigError(f"The console cannot use this key for sign-in: {error.message}") from error
    except FirstlineError:
        return  # the pages say what is wrong


def protected(settings: Settings, fleet: Fleet) -> ASGIApp:
    """Returns the application behind its access control.

    Raises:
        ConfigError: the sign-in cannot be used as configured.
    """
    if not settings.accounts.required:
        return Guard(application(Watch(fleet), settings))
    sessions = Sessions()

    def person() -> Person:
        found = sessions.person(ui.context.client.request.cookies.get(COOKIE, ""))
        if found is None:
            raise UnauthorizedError("You are signed out; load this page again to sign in.")
        return found

    routes = SignInRoutes(settings.accounts, sessions, fleet.sign_in, secure=settings.secure)
    return Guard(application(Watch(fleet, person), settings), routes.app, sessions)


def application(watch: Watch, settings: Settings) -> ASGIApp:
    """Returns the application; NiceGUI supports one per process."""
    enrol_page.add_pages(watch, settings.gateway)  # its path also fits the pattern of a device's
    settings_page.add_pages(watch, settings)
    for module in (
        overview_page,
        contract_pages,
        rollout_form,  # before the pattern of a rollout's page
        rollout_pages,
        device_pages,
        audit_page,
    ):
        module.add_pages(watch)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    ui.run_with(
        app,
        title="Firstline",
        favicon=_ICON,
        language="en-US",
        show_welcome_message=False,
        reconnect_timeout=_RECONNECT_S,
        message_history_length=_KEPT_MESSAGES,
        # Nothing is stored about users, so there are no sessions, and no secret to sign them.
        storage_secret=None,
    )
    _add_missing_page()
    pages.add_exception_handler(RequestValidationError, _without_query)
    return app


async def _without_query(request: Request, _error: Exception) -> RedirectResponse:
    """Shows the page without the part of an address that it does not take, such as `?presence=weird`."""
    return RedirectResponse(request.url.path if request.url.query else "/")


def _add_missing_page() -> None:
    """Adds the page of all other addresses; it is the last, because its pattern fits every path."""

    @ui.page("/{path:path}")
    def _missing(path: str) -> None:
        ui.status_code(HTTPStatus.NOT_FOUND)
        frame = Frame("Page not found", "")
        frame.loaded()
        with frame.main, card():
            empty(f"The console has no page /{path}. Choose one in the menu.")


def _end(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(0)


def listening_socket(settings: Settings) -> socket.socket:
    """Returns a socket on the console's address.

    Raises:
        ConfigError: the address is not available.
    """
    try:  # clients may connect at once, and wait until they are served
        found = socket.getaddrinfo(settings.host.strip("[]"), settings.port, type=socket.SOCK_STREAM)
        family, *_, address = found[0]
        dual_stack = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # so that :: serves IPv4, too
        return socket.create_server(address, family=family, dualstack_ipv6=dual_stack)
    except OSError as error:
        raise ConfigError(
            f"The console cannot listen on {settings.host}, port {settings.port}: {system_reason(error)}."
        ) from error


def _check_tls(settings: Settings) -> None:
    """Checks the certificate and its key; uvicorn would report an error as a traceback."""
    if settings.tls_certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_certificate, settings.tls_key)
    except OSError as error:  # an SSLError is one
        raise ConfigError(
            f"{settings.tls_certificate} with {settings.tls_key} cannot be used: {system_reason(error)}. Name a "
            "certificate and its key, both in PEM."
        ) from error
