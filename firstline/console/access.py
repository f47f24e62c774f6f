"""Access control of the console: it protects everything that is served, including the pages' live channel.

A web page from elsewhere that the user looks at is not meant. It may have its own name point at 127.0.0.1 (DNS
rebinding), so without a password only this machine's names are answered to; and it may have the browser call the
console (CSRF, WebSockets included), which then says in `Origin` whose page it was: that must be the console's own.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import math
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from firstline.console.password_attempts import Attempts
from firstline.console.settings import is_loopback
from firstline_core.protocol.tensors import shown

HEALTH = "/health"
"""Whether the process serves, for whoever starts it anew; it tells nothing, so that everybody may ask."""

_PORTS = {"http": 80, "https": 443}
_NOWHERE = "", 0
# Scripts that NiceGUI writes into its pages, and templates that Vue compiles in the browser, need both 'unsafe-'. What
# counts is that nothing comes from, or goes to, anywhere else, and that no other page can frame these buttons.
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
    """Why a request is refused; `retry_s` is when it may be repeated."""

    status: HTTPStatus
    sentence: str
    retry_s: int | None = None


class Guard:
    """Lets in whom it should, and tells browsers to load from nowhere else.

    Args:
        app: the protected application.
        password: that browsers have to show; "" for none.
    """

    def __init__(self, app: ASGIApp, password: str) -> None:
        self._app = app
        self._password = password
        self._attempts = Attempts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD"):
            await PlainTextResponse("live\n")(scope, receive, _protected(send))
            return
        found = self._refusal(Headers(scope=scope), (scope.get("client") or ("",))[0])
        if found is None:
            await self._app(scope, receive, _protected(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
        else:
            headers = {}
            if found.status is HTTPStatus.UNAUTHORIZED:
                headers["WWW-Authenticate"] = 'Basic realm="Firstline console", charset="UTF-8"'
            if found.retry_s is not None:
                headers["Retry-After"] = str(found.retry_s)
            reply = PlainTextResponse(found.sentence, found.status, headers)
            await reply(scope, receive, _protected(send))

    def _refusal(self, headers: Headers, address: str) -> Refusal | None:
        """Why a request from this address is not answered; counts passwords that are wrong."""
        tries = bool(self._password) and "authorization" in headers
        if tries and (wait_s := self._attempts.wait_s(address)):
            retry_s = math.ceil(wait_s)
            sentence = f"Too many wrong passwords were tried; try again in {retry_s} s."
            return Refusal(HTTPStatus.TOO_MANY_REQUESTS, sentence, retry_s)
        found = refusal(headers, self._password)
        if tries and found is None:
            self._attempts.right(address)
        elif tries and found is not None and found.status is HTTPStatus.UNAUTHORIZED:
            self._attempts.wrong(address)
        return found


def refusal(headers: Headers, password: str) -> Refusal | None:
    """Why a request with these headers is not answered; None where it is."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if not password and not is_loopback(_name(host)):
        return Refusal(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"This console answers to 127.0.0.1, localhost and [::1], not to {shown(host)}.",
        )
    if origin is not None and not _own(origin, host):
        return Refusal(HTTPStatus.FORBIDDEN, f"This console does not answer to pages of {shown(origin)}.")
    if password and not hmac.compare_digest(_shown_password(headers), password.encode()):
        return Refusal(HTTPStatus.UNAUTHORIZED, "The console's password is needed; any user name will do.")
    return None


def _shown_password(headers: Headers) -> bytes:
    scheme, _, text = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(text, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _own(origin: str, host: str) -> bool:
    """Whether a page of this origin came from here, by the scheme that it came by."""
    scheme = origin.partition("://")[0]
    return scheme in _PORTS and _authority(origin) == _authority(f"{scheme}://{host}") != _NOWHERE


def _name(authority: str) -> str:
    """The host of `HOST[:PORT]`."""
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
