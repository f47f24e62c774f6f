"""Access control of the console: it protects everything that is served, including the pages' live channel.

Other web pages in the user's browser must not reach the console. Such a page may point its own name at 127.0.0.1 (DNS
rebinding), so without a sign-in the console answers only requests for this machine's names. It may also make the
browser call the console (CSRF, WebSockets included); the browser then sends the page's origin, which must be the
console's own.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from firstline.console.sessions import COOKIE, Sessions
from firstline_core.protocol.loopback import is_loopback
from firstline_core.protocol.tensors import shown

HEALTH = "/health"
"""Liveness check without credentials; it reveals nothing else."""
SIGN_IN_PATH = "/sign-in"
PERSON = "firstline.person"
"""Key of the scope under which the pages find the person; None without sign-in."""
_PORTS = {"http": 80, "https": 443}
_NOWHERE = "", 0
# Scripts that NiceGUI writes into its pages, and templates that Vue compiles in the browser, need both 'unsafe-'. The
# policy still prevents that content comes from or goes to another host, and that another page frames these buttons.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
}


class Refusal(NamedTuple):
    """The refusal of a request."""

    status: HTTPStatus
    sentence: str


class Guard:
    """Refuses requests without access, and sends the security headers.

    Args:
        app: the protected application.
        sign_in: the routes with which persons sign in; None if every user of this machine may use the console.
        sessions: of the persons who signed in.
    """

    def __init__(self, app: ASGIApp, sign_in: ASGIApp | None = None, sessions: Sessions | None = None) -> None:
        self._app = app
        self._sign_in = sign_in
        self._sessions = sessions or Sessions()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD"):
            await PlainTextResponse("live\n")(scope, receive, _protected(send))
            return
        headers = Headers(scope=scope)
        person = self._sessions.person(cookie_parser(headers.get("cookie", "")).get(COOKIE, ""))
        refused = refusal(headers, local_only=self._sign_in is None)
        if refused is None and self._sign_in is not None and scope["path"].startswith(SIGN_IN_PATH):
            await self._sign_in(scope, receive, _protected(send))
        elif refused is None and (self._sign_in is None or person is not None):
            await self._app({**scope, PERSON: person}, receive, _protected(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
        elif refused is not None:
            await PlainTextResponse(refused.sentence, refused.status)(scope, receive, _protected(send))
        elif "text/html" in headers.get("accept", ""):
            await RedirectResponse(SIGN_IN_PATH, HTTPStatus.SEE_OTHER)(scope, receive, _protected(send))
        else:
            reply = PlainTextResponse("Sign in first.", HTTPStatus.UNAUTHORIZED)
            await reply(scope, receive, _protected(send))


def refusal(headers: Headers, *, local_only: bool) -> Refusal | None:
    """Returns the refusal of a request with these headers; None if it is allowed."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if local_only and not is_loopback(_name(host)):
        return Refusal(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"This console answers to 127.0.0.1, localhost and [::1], not to {shown(host)}.",
        )
    if origin is not None and not _own(origin, host):
        return Refusal(HTTPStatus.FORBIDDEN, f"This console does not answer to pages of {shown(origin)}.")
    return None


def _own(origin: str, host: str) -> bool:
    """Returns whether an origin is the console itself."""
    scheme = origin.partition("://")[0]
    return scheme in _PORTS and _authority(origin) == _authority(f"{scheme}://{host}") != _NOWHERE


def _name(authority: str) -> str:
    """Returns the host of `HOST[:PORT]`."""
    return _authority(f"http://{authority}")[0]


def _authority(url: str) -> tuple[str, int]:
    """Returns host and port of a URL; an empty host if it is not a URL."""
    try:
        parts = urlsplit(url)
        return ((parts.hostname or "").lower(), parts.port or _PORTS[parts.scheme]) if parts.hostname else _NOWHERE
    except ValueError:
        return _NOWHERE


def _protected(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return sent
