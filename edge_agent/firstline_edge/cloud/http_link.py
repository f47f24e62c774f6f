"""The HTTP link: V2 requests with binary tensors over connections that stay open.

Probes have a connection of their own: behind requests they would wait, and a busy device would report its gateway down.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

import orjson
from msgspec.structs import replace

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import (
    BY_CODE,
    CapacityError,
    ConfigError,
    FirstlineError,
    ForbiddenError,
    LinkError,
    PayloadTooLargeError,
    ProtocolError,
    RemoteTimeoutError,
    RequestError,
    UnauthorizedError,
)
from firstline_core.protocol.http import error_from, header_length, headers_for
from firstline_core.protocol.http_client import (
    SHORTEST_IDLE_S,
    ClientSettings,
    HttpClient,
    HttpReply,
    untrusted,
)
from firstline_core.protocol.limits import DEFAULT_LIMITS, Limits
from firstline_core.protocol.oip import decode_response, encode_request
from firstline_core.storage.files import not_certificates
from firstline_core.storage.secrets import read_secret
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferRequest, InferResponse
from firstline_edge.cloud.link import LinkBusyError, MessageRefusedError
from firstline_edge.identity.credentials import Credentials
from firstline_edge.settings.settings import LinkSection
from firstline_edge.telemetry.link_traffic import count

log = logger(__name__)

USER_AGENT = "firstline-edge"

_REFUSES_DEVICE = (401, 403)
# Below what NATs and load balancers remember, from 30 s.
_IDLE_S = 15.0
# A probe after a while makes a connection of its own, so that it does not test one that the network has forgotten.
_PROBE_IDLE_S = SHORTEST_IDLE_S


@dataclass(frozen=True, slots=True)
class HttpLinkSettings:
    """How to reach the gateway.

    Args:
        url: e.g. "https://gateway.example.com"; a path is kept as a prefix.
        token: the device's bearer token, "" for none.
        token_file: read again when the gateway refuses the token; "" for none.
        ca_file: CA certificates used to verify the gateway; None for the usual ones.
        credentials: this device's own certificate and CA instead, if it has joined.
        proxy: URL of an HTTP proxy; the environment's proxy variables are not read.
        connect_timeout_s: for TCP and TLS each; long enough for a first packet that was lost and is sent again
            after a second (RFC 6298), below the usual deadline, so that another link still has time.
        connections: the most that stay open.
    """

    url: str
    token: str = field(default="", repr=False)
    token_file: str = ""
    ca_file: Path | None = None
    credentials: Credentials | None = field(default=None, repr=False)
    proxy: str | None = None
    connect_timeout_s: float = 1.5
    connections: int = 16


def http_link_settings(section: LinkSection, credentials: Credentials | None) -> HttpLinkSettings:
    """Returns the settings of the link that a section of the device's settings describes.

    Args:
        section: of the link.
        credentials: of a device that has joined; used if the section presents the identity.

    Raises:
        ConfigError: the token cannot be read.
    """
    return HttpLinkSettings(
        url=section.url,
        token=read_secret(section.token_file, "links.token_file", "the token"),
        token_file=section.token_file,
        ca_file=Path(section.tls_ca_file) if section.tls_ca_file else None,
        credentials=credentials if section.shows_identity else None,
        proxy=section.proxy or None,
    )


def client_settings(
    settings: HttpLinkSettings, tls: ssl.SSLContext | None, connections: int, idle_s: float = _IDLE_S
) -> ClientSettings:
    """Returns the settings of an HTTP client for the gateway.

    Args:
        settings: how to reach it.
        tls: see `tls_context`; one for all clients, because loading the authorities takes 50 ms.
        connections: the most at the same moment.
        idle_s: how long an unused connection stays open.

    Raises:
        ConfigError: a URL that cannot be used.
    """
    _check_url(settings.url)
    return ClientSettings(
        settings.url,
        headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
        tls=False if tls is None else tls,
        proxy=settings.proxy or "",
        connections=connections,
        idle_s=idle_s,
    )


def tls_context(settings: HttpLinkSettings) -> ssl.SSLContext | None:
    """Returns the context that verifies the gateway and presents this device; None if there is nothing to verify.

    Raises:
        ConfigError: authorities that cannot be read.
    """
    if settings.credentials is not None:
        return settings.credentials.context
    if settings.ca_file is None and not settings.url.startswith("https:"):
        return None
    try:
        if settings.ca_file is None:
            import certifi  # the authorities that httpx uses as well

            return ssl.create_default_context(cafile=certifi.where())
        return ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:  # an SSLError is one
        raise ConfigError(f"links.tls_ca_file: {settings.ca_file} {not_certificates(error)}.") from error


def _check_url(url: str) -> None:
    try:
        parsed = urlsplit(url)
        valid = parsed.scheme in ("http", "https") and bool(parsed.hostname) and (parsed.port or 1) > 0
    except ValueError:
        valid = False
    if not valid or any(character.isspace() for character in url):
        raise ConfigError(f"links.url {url!r} is not a URL; write it like https://gateway.example.com.")


class _Pool:
    """A limited number of connections to the gateway; requests wait for a free one here.

    httpcore's own queue walks through all waiting requests whenever one of them comes or goes: with a thousand of
    them, that takes seconds.
    """

    def __init__(
        self, settings: HttpLinkSettings, connections: int, tls: ssl.SSLContext | None, limits: Limits, idle_s: float
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._client = HttpClient(
            client_settings(settings, tls, connections, idle_s),
            limit_bytes=limits.body_bytes,
            connect_s=settings.connect_timeout_s,
            doubts_idle=True,
        )
        self._free = asyncio.Semaphore(connections)
        self._exchanges = 0  # in progress, or waiting for a connection
        self._retired = False

    async def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, timeout_s: float, *, payer: str = ""
    ) -> HttpReply:
        """See `HttpClient.exchange`.

        Args:
            method: e.g. POST.
            path: below the gateway's URL.
            headers: of this request.
            body: b"" for none.
            timeout_s: for the whole exchange, waiting included.
            payer: name of the link whose traffic this is; "" to count nothing.

        Raises:
            LinkBusyError: no connection became free in time; nothing was sent.
            StaleConnectionError: raised after half of the time, if that is enough to tell.
            LinkError: no answer, or not an HTTP answer.
        """
        self._exchanges += 1
        try:
            reply = await self._exchange(method, path, headers, body, timeout_s, payer)
        finally:
            self._exchanges -= 1
            if self._retired:
                await self.retire()
        if self._settings.credentials is not None and "date" in reply.headers:
            self._settings.credentials.observe_date(reply.headers["date"])
        return reply

    async def _exchange(  # noqa: PLR0917
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, timeout_s: float, payer: str
    ) -> HttpReply:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + timeout_s
        url = self._settings.url
        try:
            async with asyncio.timeout_at(ends_s):
                await self._free.acquire()
        except TimeoutError as error:
            busy = f"All {self._connections} connections to {url} were busy for {timeout_s:.3g} s."
            raise LinkBusyError(busy) from error

        def count_bytes(sent: int, received: int) -> None:
            if payer:
                count(payer, sent=sent, received=received)

        try:
            left_s = ends_s - loop.time()
            return await self._client.exchange(method, path, headers, body, left_s, count=count_bytes)
        except LinkError as error:
            if type(error) is RemoteTimeoutError:  # the caller's whole time, not what was left of it
                raise RemoteTimeoutError(f"{url} did not answer within {timeout_s:.3g} s.") from error
            message = untrusted(error.__cause__, url, "in tls_ca_file of this link")
            raise type(error)(message or f"{url}: {error.message}.") from error
        finally:
            self._free.release()

    async def retire(self) -> None:
        """Closes the connections once the requests in progress have ended, without waiting; no new one may begin."""
        self._retired = True
        if not self._exchanges:
            await self.close()

    async def close(self) -> None:
        await self._client.close()


class HttpLink:
    """Asks the gateway over HTTP/1.1.

    Raises:
        ConfigError: a URL or certificate file that cannot be used.
    """

    in_turn = False

    def __init__(
        self,
        settings: HttpLinkSettings,
        *,
        name: str = "http",
        clock: Clock = SYSTEM_CLOCK,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.name = name
        self._settings = settings
        self._clock = clock
        self._limits = limits
        self._token = settings.token
        self._tls = tls_context(settings)
        self._pool, self._probing_pool = self._make_pool(), self._make_probing_pool()
        self.probe_wanted = asyncio.Event()

    @property
    def address(self) -> str:
        """Where it leads, for people."""
        return self._settings.url

    async def start(self) -> None:
        """Does nothing: connections are made on demand, and their loss is not reported."""

    async def infer(self, request: InferRequest, timeout_s: float) -> InferResponse:
        """See `Link.infer`."""
        now_s = self._clock.monotonic_s()
        # The gateway gets the time that is granted here as the deadline, and answers in binary.
        granted = replace(request, deadline_s=now_s + timeout_s, binary_output=True, outputs=())
        encoded = encode_request(granted, binary=True, now_s=now_s)
        path = f"/v2/models/{quote(request.model, safe='')}"
        if request.version:
            path += f"/versions/{quote(request.version, safe='')}"
        headers = headers_for(encoded) | (request.trace.headers() if request.trace is not None else {})

        async def send(timeout_s: float) -> HttpReply:
            sent = headers | self._authorization()
            return await self._pool.exchange("POST", f"{path}/infer", sent, encoded.body, timeout_s, payer=self.name)

        sent_token = self._token
        reply = await send(timeout_s)
        if reply.status in _REFUSES_DEVICE and self._has_other_token(sent_token):
            left_s = timeout_s - (self._clock.monotonic_s() - now_s)
            if left_s > 0:
                reply = await send(left_s)
        if reply.status != 200:
            raise _refusal(reply)
        try:
            length = header_length(reply.headers)
        except RequestError as error:
            raise ProtocolError(error.message) from error
        return decode_response(reply.body, length, self._limits)

    async def probe(self, timeout_s: float) -> None:
        """Requests `GET /v2/health/live`; the page of a captive portal is not an answer."""
        reply = await self._probing_pool.exchange("GET", "/v2/health/live", self._authorization(), b"", timeout_s)
        try:
            live = orjson.loads(reply.body)
        except orjson.JSONDecodeError:
            live = None
        if reply.status != 200 or not isinstance(live, dict) or live.get("live") is not True:
            raise ProtocolError(
                f"{self._settings.url} does not answer as a Firstline gateway (HTTP status {reply.status})."
            )

    async def reconnect(self) -> None:
        """Uses new connections from now on; requests in progress end on the old ones."""
        old = (self._pool, self._probing_pool)
        self._pool, self._probing_pool = self._make_pool(), self._make_probing_pool()
        for pool in old:
            await pool.retire()

    async def discard_connections(self) -> None:
        """See `Link.discard_connections`: requests in progress end on the old connections."""
        old, self._pool = self._pool, self._make_pool()
        await old.retire()

    async def close(self) -> None:
        await self._pool.close()
        await self._probing_pool.close()

    def _make_pool(self) -> _Pool:
        return _Pool(self._settings, self._settings.connections, self._tls, self._limits, _IDLE_S)

    def _make_probing_pool(self) -> _Pool:
        return _Pool(self._settings, 1, self._tls, self._limits, _PROBE_IDLE_S)

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def _has_other_token(self, refused: str) -> bool:
        """Returns whether there is another token than the refused one: the file may have a new one."""
        if self._token == refused and self._settings.token_file:
            try:
                self._token = read_secret(self._settings.token_file, "links.token_file", "the token")
            except ConfigError as error:
                log.warning("token not reread", link=self.name, error=error.message)
        return self._token != refused


def _refusal(reply: HttpReply) -> FirstlineError:
    """Returns the error of an answer with a status other than 200.

    Proxies, captive portals and content delivery networks answer with any status. Without an error code of Firstline it
    does not concern the request, and must not end a promise in the outbox. Neither must an API key with another scope:
    the operator can replace it.
    """
    try:
        document = orjson.loads(reply.body)
    except orjson.JSONDecodeError:
        document = None
    is_gateway_error = (
        isinstance(document, dict) and document.get("code") in BY_CODE and isinstance(document.get("error"), str)
    )
    error = error_from(reply.status, reply.body if is_gateway_error else b"", reply.headers)
    if isinstance(error, ForbiddenError):
        return UnauthorizedError(error.message)
    if is_gateway_error or isinstance(error, UnauthorizedError | CapacityError | LinkError):
        return error
    kind = MessageRefusedError if isinstance(error, PayloadTooLargeError) else ProtocolError
    return kind(f"HTTP status {reply.status}, but not from a Firstline gateway.")
