"""Lets web pages of listed origins call a tier from a browser (CORS), https://fetch.spec.whatwg.org/#http-cors-protocol.

The same middleware serves both tiers, because a device has no web framework. It never allows cookies: callers send a
bearer token.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated

from msgspec import Meta

from firstline_core.errors import ForbiddenError, RequestError
from firstline_core.protocol.asgi import AsgiApp, Message, Receive, Scope, Send, send_reply
from firstline_core.protocol.http import Reply, error_reply
from firstline_core.protocol.loopback import is_loopback
from firstline_core.protocol.tensors import shown

ANY_ORIGIN = "*"

Origin = Annotated[str, Meta(pattern=r"^(\*|https?://[^/\s]+)$")]
"""Scheme, host and port of a web page, as browsers send them; or `*`."""

_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_EXPOSED = b"firstline-answer, inference-header-content-length, location, preference-applied, retry-after"
_MAX_AGE_S = 600
_VARY = (b"vary", b"Origin")


def with_cors(app: AsgiApp, origins: Collection[str]) -> AsgiApp:
    """Returns the application, with answers that browsers give to pages of these origins.

    Args:
        app: answers all requests but preflight requests.
        origins: such as "https://example.com"; `*` for any. Without origins the application is returned as it is.
    """
    return _Cors(app, origins) if origins else app


def is_listed(origin: str, origins: Collection[str]) -> bool:
    """Returns whether pages of an origin may call."""
    return origin in origins or ANY_ORIGIN in origins


def check_page(headers: Mapping[str, str], origins: Collection[str], server: str) -> None:
    """Refuses web pages from elsewhere in a browser on this machine, at a server that authenticates no caller.

    Such a page can let its own name resolve to 127.0.0.1 (DNS rebinding), so only the loopback's names are accepted as
    Host. It can also let the browser post to 127.0.0.1 (CSRF); the browser then sends the page's `Origin`.

    Args:
        headers: of the request, by lower-case names.
        origins: as for `with_cors`; their pages may call.
        server: begins the error: "This agent".

    Raises:
        RequestError: the request is of such a page.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if not is_loopback(_host_of(host)):
        raise RequestError(f"{server} answers to 127.0.0.1, localhost, ::1, not to {shown(_host_of(host))}.")
    if origin is None or is_listed(origin, origins) or is_loopback(_host_of(origin.partition("://")[2])):
        return
    raise RequestError(
        f"{server} does not answer to web pages from elsewhere ({shown(origin)}); list the page's origin in "
        "api.cors_origins."
    )


def _host_of(authority: str) -> str:
    """Returns the host of `HOST[:PORT]`, in lower case."""
    name = authority[1:].partition("]")[0] if authority.startswith("[") else authority.partition(":")[0]
    return name.lower()


class _Cors:
    def __init__(self, app: AsgiApp, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        origin: bytes | None = headers.get(b"origin")
        if origin is None:
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await send_reply(self._preflight(origin.decode("latin-1"), headers), send)
        else:
            await self._app(scope, receive, self._allowing(origin, send))

    def _preflight(self, origin: str, headers: dict[bytes, bytes]) -> Reply:
        """Answers the question of a browser whether a page may send a request."""
        if not is_listed(origin, self._origins):
            reply = error_reply(
                ForbiddenError("Pages of this origin may not call; api.cors_origins lists those that may.")
            )
            reply.headers["Vary"] = "Origin"
            return reply
        allowed = {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Max-Age": str(_MAX_AGE_S),
            "Vary": "Origin, Access-Control-Request-Headers, Access-Control-Request-Private-Network",
        }
        if wanted := headers.get(b"access-control-request-headers", b"").decode("latin-1"):
            allowed["Access-Control-Allow-Headers"] = wanted
        if b"access-control-request-private-network" in headers:
            allowed["Access-Control-Allow-Private-Network"] = "true"
        return Reply(204, allowed, b"")

    def _allowing(self, origin: bytes, send: Send) -> Send:
        """Returns a function that sends answers to a page; pages of other origins cannot read them."""
        added = [_VARY]
        if is_listed(origin.decode("latin-1"), self._origins):
            added += [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED)]

        async def send_allowed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        return send_allowed
