"""Access control of the console: it protects everything that is served, including the pages' live channel.

Other web pages in the user's browser must not reach the console. Such a page may point its own name at 127.0.0.1 (DNS
rebinding), so without a password the console answers only requests for this machine's names. It may also make the
browser call the console (CSRF, WebSockets included); the browser then sends the page's origin, which must be the
console's own.

Wrong passwords are limited per minute, from one address and from all addresses together. Above the limit even the right
password is refused: otherwise guessing would continue. Addresses that have sent the right password are exempt from the
common limit, so that attackers elsewhere cannot lock them out.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import math
import time
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from firstline_core.protocol.loopback import is_loopback
from firstline_core.protocol.tensors import shown

HEALTH = "/health"
"""Liveness check without credentials; it reveals nothing else."""
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
    """The refusal of a request; it may be repeated after `retry_s` seconds."""

    status: HTTPStatus
    sentence: str
    retry_s: int | None = None


class Guard:
    """Refuses requests without access, and sends the security headers.

    Args:
        app: the protected application.
        password: that browsers must send; "" for none.
    """

    def __init__(self, app: ASGIApp, password: str) -> None:
        self._app = app
        self._password = password
        self._attempts = PasswordAttempts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD"):
            await PlainTextResponse("live\n")(scope, receive, _protected(send))
            return
        refused = self._refusal(Headers(scope=scope), (scope.get("client") or ("",))[0])
        if refused is None:
            await self._app(scope, receive, _protected(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
        else:
            headers = {}
            if refused.status is HTTPStatus.UNAUTHORIZED:
                headers["WWW-Authenticate"] = 'Basic realm="Firstline console", charset="UTF-8"'
            if refused.retry_s is not None:
                headers["Retry-After"] = str(refused.retry_s)
            reply = PlainTextResponse(refused.sentence, refused.status, headers)
            await reply(scope, receive, _protected(send))

    def _refusal(self, headers: Headers, address: str) -> Refusal | None:
        """Returns the refusal of a request, if any; counts wrong passwords of its address."""
        tries = bool(self._password) and "authorization" in headers
        if tries and (wait_s := self._attempts.wait_s(address)):
            retry_s = math.ceil(wait_s)
            sentence = f"Too many wrong passwords were tried; try again in {retry_s} s."
            return Refusal(HTTPStatus.TOO_MANY_REQUESTS, sentence, retry_s)
        refused = refusal(headers, self._password)
        if tries and refused is None:
            self._attempts.right(address)
        elif tries and refused is not None and refused.status is HTTPStatus.UNAUTHORIZED:
            self._attempts.wrong(address)
        return refused


def refusal(headers: Headers, password: str) -> Refusal | None:
    """Returns the refusal of a request with these headers; None if it is allowed."""
    host, origin = headers.get("host", ""), headers.get("origin")
    if not password and not is_loopback(_name(host)):
        return Refusal(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"This console answers to 127.0.0.1, localhost and [::1], not to {shown(host)}.",
        )
    if origin is not None and not _own(origin, host):
        return Refusal(HTTPStatus.FORBIDDEN, f"This console does not answer to pages of {shown(origin)}.")
    if password and not hmac.compare_digest(_sent_password(headers), password.encode()):
        return Refusal(HTTPStatus.UNAUTHORIZED, "The console's password is needed; any user name will do.")
    return None


def _sent_password(headers: Headers) -> bytes:
    scheme, _, text = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(text, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


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


_WINDOW_S = 60.0
_KNOWN = 1024  # addresses
PER_ADDRESS = 10
IN_ALL = 100


class PasswordAttempts:
    """Wrong passwords of the present minute. The limit also bounds the number of addresses.

    Args:
        now_s: monotonic time.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._until_s = 0.0
        self._wrong: Counter[str] = Counter()
        self._known: dict[str, None] = {}

    def wait_s(self, address: str) -> float:
        """Returns the seconds until an address may try again; 0 if it may now."""
        left_s = self._until_s - self._now_s()
        if left_s <= 0:
            self._wrong.clear()
            return 0.0
        spent = self._wrong[address] >= PER_ADDRESS
        crowded = self._wrong.total() >= IN_ALL and address not in self._known
        return left_s if spent or crowded else 0.0

    def wrong(self, address: str) -> None:
        """Notes a wrong password."""
        if not self._wrong:
            self._until_s = self._now_s() + _WINDOW_S
        self._wrong[address] += 1

    def right(self, address: str) -> None:
        """Notes the right password."""
        self._known.pop(address, None)
        self._known[address] = None
        if len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]
