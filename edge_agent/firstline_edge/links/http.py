"""The HTTP link: V2 with binary tensors over one pool of keep-alive connections, and one connection for probes.

Probes have their own: in the pool they would wait behind requests, and a busy device would take its gateway for dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

import httpx
import orjson

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import (
    BY_CODE,
    ConfigError,
    FirstlineError,
    LinkDownError,
    LinkError,
    PayloadTooLargeError,
    ProtocolError,
    RemoteTimeoutError,
    RequestError,
    UnauthorizedError,
)
from firstline_core.protocol.http import header_length, headers_for, read_body
from firstline_core.protocol.http_errors import error_from
from firstline_core.protocol.oip import DEFAULT_LIMITS, Encoded, Limits, decode_response, encode_request
from firstline_core.secrets_file import read_secret
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferRequest, InferResponse
from firstline_edge.identity.credentials import Credentials
from firstline_edge.links.base import LinkBusyError, ignore
from firstline_edge.links.traffic import count

log = logger(__name__)

# httpx's exceptions and ours, most specific first. A connection that cannot be had within its own, shorter
# timeout is a link that is down; anything that is merely late is late.
_FOREIGN: tuple[tuple[type[Exception], type[LinkError]], ...] = (
    (httpx.ConnectTimeout, LinkDownError),
    (httpx.TimeoutException, RemoteTimeoutError),
    (httpx.NetworkError, LinkDownError),
    (httpx.ProxyError, LinkDownError),
    (httpx.HTTPError, ProtocolError),
    (httpx.InvalidURL, ProtocolError),
    (httpx.StreamError, ProtocolError),
)
# What a server that closed an idle connection, just as we used it, looks like.
_STALE = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, httpx.CloseError)
_STALE_RETRIES = 2
_FIRST_LINE_BYTES = 50
_UNAUTHORIZED = 401


@dataclass(frozen=True, slots=True)
class HttpLinkSettings:
    """How to reach the gateway.

    Args:
        url: e.g. "https://gateway.example.com"; a path is kept as a prefix.
        token: the device's bearer token, "" for none.
        token_file: where to look for another one once the gateway refuses this one, "" for nowhere.
        ca_file: authorities that may sign the gateway's certificate; None for the usual ones.
        credentials: this device's own instead, where it has joined.
        proxy: URL of an HTTP proxy; the environment's proxy variables are not read.
        connect_timeout_s: for TCP and TLS each; long enough for a first packet that was lost and is sent again
            after a second (RFC 6298), below the usual deadline, so that another link still has time.
        connections: kept at most.
    """

    url: str
    token: str = field(default="", repr=False)
    token_file: str = ""
    ca_file: Path | None = None
    credentials: Credentials | None = field(default=None, repr=False)
    proxy: str | None = None
    connect_timeout_s: float = 1.5
    connections: int = 16


@dataclass(frozen=True, slots=True)
class _Pool:
    """Connections, and a seat for each: whoever waits for one waits here.

    httpcore looks at all that wait in its own queue whenever one of them comes or goes: at a thousand, for seconds.
    """

    client: httpx.AsyncClient
    seats: asyncio.Semaphore


@dataclass(frozen=True, slots=True)
class _Call:
    """What is sent."""

    method: str
    path: str
    encoded: Encoded | None = None


class HttpLink:
    """Asks the gateway over HTTP/1.1.

    Raises:
        ConfigError: a URL or certificate file that cannot be used.
    """

    name = "http"

    def __init__(self, settings: HttpLinkSettings, *, clock: Clock = SYSTEM_CLOCK, limits: Limits = DEFAULT_LIMITS):
        self._settings = settings
        self._clock = clock
        self._limits = limits
        self._base = _base_of(settings.url)
        self._token = settings.token
        self._tls = _tls_context(settings)  # one for all: loading the authorities takes 50 ms
        self._pool = self._make_pool(settings.connections)
        self._probing_pool = self._make_pool(1)

    @property
    def address(self) -> str:
        """Where it leads, for people."""
        return self._settings.url

    async def start(self, on_lost: Callable[[], None] = ignore) -> None:
        """Nothing to do: connections are made when they are needed, and lost without a word."""

    async def infer(self, request: InferRequest, timeout_s: float) -> InferResponse:
        """See `Link.infer`."""
        now_s = self._clock.monotonic_s()
        # What the gateway is told is what is granted here, and the answer comes back in binary.
        granted = replace(request, deadline_s=now_s + timeout_s, binary_output=True, outputs=())
        encoded = encode_request(granted, binary=True, now_s=now_s)
        path = f"/v2/models/{quote(request.model, safe='')}"
        if request.version:
            path += f"/versions/{quote(request.version, safe='')}"
        call = _Call("POST", f"{path}/infer", encoded)
        sent_token = self._token
        status, headers, body = await self._exchange(call, timeout_s)
        if status == _UNAUTHORIZED and self._found_other_token(sent_token):
            left_s = timeout_s - (self._clock.monotonic_s() - now_s)
            if left_s > 0:
                status, headers, body = await self._exchange(call, left_s)
        if status != 200:
            raise _refusal(status, body, headers)
        try:
            length = header_length(headers)
        except RequestError as error:
            raise ProtocolError(error.message) from error
        return decode_response(body, length, self._limits)

    async def probe(self, timeout_s: float) -> None:
        """Asks `GET /v2/health/live`; a captive portal's friendly page is not an answer."""
        status, _, body = await self._exchange(_Call("GET", "/v2/health/live"), timeout_s)
        try:
            live = orjson.loads(body)
        except orjson.JSONDecodeError:
            live = None
        if status != 200 or not isinstance(live, dict) or live.get("live") is not True:
            raise ProtocolError(f"{self._settings.url} does not answer as a Firstline gateway (HTTP status {status}).")

    async def renewed(self) -> None:
        """Makes new connections from now on; returns once what is under way on the old ones has ended."""
        old = ((self._pool, self._settings.connections), (self._probing_pool, 1))
        self._pool, self._probing_pool = (self._make_pool(connections) for _, connections in old)
        for pool, connections in old:
            for _ in range(connections):
                await pool.seats.acquire()
            await pool.client.aclose()

    async def close(self) -> None:
        await self._pool.client.aclose()
        await self._probing_pool.client.aclose()

    def _make_pool(self, connections: int) -> _Pool:
        # TCP_NODELAY is httpcore's own default.
        client = httpx.AsyncClient(
            headers={"Accept-Encoding": "identity", "User-Agent": "firstline-edge"},
            verify=self._tls,
            proxy=self._settings.proxy,
            trust_env=False,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )
        return _Pool(client, asyncio.Semaphore(connections))

    def _found_other_token(self, refused: str) -> bool:
        """Whether there is another token than the refused one: somebody may have put a new one into the file."""
        if self._token == refused and self._settings.token_file:
            try:
                self._token = read_secret(self._settings.token_file, "links.token_file")
            except ConfigError as error:
                log.warning("the token cannot be read again", link=self.name, error=error.message)
        return self._token != refused

    async def _exchange(self, call: _Call, timeout_s: float) -> tuple[int, Mapping[str, str], bytes]:
        steps: list[str] = []
        pool = self._pool if call.encoded is not None else self._probing_pool
        try:
            # httpx limits each read; only this limits them all together.
            async with asyncio.timeout(timeout_s), pool.seats:
                for _ in range(_STALE_RETRIES):
                    steps.clear()
                    try:
                        return await self._send(pool, call, timeout_s, steps)
                    except _STALE:
                        # A kept connection that the server had closed: try again, on the way to a fresh one. The
                        # request's id makes that safe, should it have been heard after all.
                        if any(step.endswith("connect_tcp.started") for step in steps):
                            raise
                return await self._send(pool, call, timeout_s, steps)
        except TimeoutError as error:
            if not steps:
                raise LinkBusyError(
                    f"All {self._settings.connections} connections to {self._settings.url} were busy "
                    f"for {timeout_s:.3g} s."
                ) from error
            raise RemoteTimeoutError(f"{self._settings.url} did not answer within {timeout_s:.3g} s.") from error
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise _translated(error, self._settings.url) from error
        except PayloadTooLargeError as error:
            raise ProtocolError(f"{self._settings.url} answered with too much. {error.message}") from error

    async def _send(
        self, pool: _Pool, call: _Call, timeout_s: float, steps: list[str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        async def trace(event: str, _info: object) -> None:
            steps.append(event)  # the first one comes when there is a seat

        # Where the whole is shorter than the time to connect, what ran out is the whole.
        connect_s = self._settings.connect_timeout_s
        headers = {} if call.encoded is None else dict(headers_for(call.encoded))
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        timeout = httpx.Timeout(None, connect=connect_s if connect_s < timeout_s else None)
        request = pool.client.build_request(
            call.method,
            self._base + call.path,
            content=None if call.encoded is None else call.encoded.body,
            headers=headers,
            timeout=timeout,
            extensions={"trace": trace},
        )
        try:
            response = await pool.client.send(request, stream=True)
        finally:
            # Sent in vain is sent, too; what happened to the last part of a body that was cut off nobody knows.
            if call.encoded is not None and any(step.endswith("send_request_headers.complete") for step in steps):
                count(self.name, sent=_head_bytes(request.headers.raw) + len(call.encoded.body))
        async with contextlib.aclosing(response):
            heard = dict(response.headers)
            if self._settings.credentials is not None and "date" in heard:
                self._settings.credentials.heard_date(heard["date"])
            try:
                body = await read_body(response.aiter_raw(), heard, self._limits)
            finally:
                if call.encoded is not None:
                    received = _head_bytes(response.headers.raw) + response.num_bytes_downloaded
                    count(self.name, received=received)
            return response.status_code, heard, body


def _head_bytes(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Bytes of headers on the wire, with an average first line."""
    return _FIRST_LINE_BYTES + sum(len(name) + len(value) + 4 for name, value in headers)


def _refusal(status: int, body: bytes, headers: Mapping[str, str]) -> FirstlineError:
    """What a status other than 200 says.

    A proxy or a captive portal also says 404: without one of our codes that is no judgement of the request, and
    must not end a promise that the outbox keeps.
    """
    error = error_from(status, body, headers)
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = None
    ours = isinstance(said, dict) and said.get("code") in BY_CODE
    if ours or isinstance(error, UnauthorizedError | PayloadTooLargeError) or not isinstance(error, RequestError):
        return error
    return ProtocolError(f"HTTP status {status}, but not from a Firstline gateway: {error.message}")


def _translated(error: Exception, url: str) -> LinkError:
    kind = next(ours for theirs, ours in _FOREIGN if isinstance(error, theirs))
    return kind(f"{url}: {str(error) or type(error).__name__}.")


def _base_of(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"The gateway's URL {url!r} is not one: {error}.") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or any(c.isspace() for c in url):
        raise ConfigError(f"The gateway's URL {url!r} must look like https://gateway.example.com.")
    return url.rstrip("/")


def _tls_context(settings: HttpLinkSettings) -> ssl.SSLContext | bool:
    if settings.credentials is not None:
        return settings.credentials.context
    if settings.ca_file is None and not settings.url.startswith("https:"):
        return False  # nothing to verify
    try:
        if settings.ca_file is None:
            return httpx.create_ssl_context(trust_env=False)
        return ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"The authorities in {settings.ca_file} cannot be used: {error}.") from error
