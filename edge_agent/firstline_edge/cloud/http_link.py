"""The HTTP link: V2 requests with binary tensors over connections that stay open.

Probes have a connection of their own: behind requests they would wait, and a busy device would report its gateway down.
A probe after a while makes a new connection, so that it does not test one that the network has forgotten.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from urllib.parse import quote

import orjson
from msgspec.structs import replace

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import (
    ConfigError,
    FirstlineError,
    ForbiddenError,
    LinkError,
    ProtocolError,
    RemoteTimeoutError,
    RequestError,
    UnauthorizedError,
)
from firstline_core.protocol.http import error_of_gateway, header_length, headers_for
from firstline_core.protocol.http_client import SHORTEST_IDLE_S, ClientSettings, HttpClient, HttpReply, untrusted
from firstline_core.protocol.limits import DEFAULT_LIMITS, Limits
from firstline_core.protocol.oip import decode_response, encode_request
from firstline_core.protocol.tls import verifying_context
from firstline_core.storage.secrets import read_token
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import rounded
from firstline_core.types import InferRequest, InferResponse
from firstline_edge.cloud.link import LinkBusyError, MessageRefusedError
from firstline_edge.identity.credentials import Credentials
from firstline_edge.settings.settings import LinkSection
from firstline_edge.telemetry.link_traffic import count_traffic

log = logger(__name__)

USER_AGENT = "firstline-edge"

_REFUSES_DEVICE = (401, 403)
_TOO_LARGE = 413
# NATs and load balancers forget idle connections after 30 s or more.
_IDLE_S = 15.0


# For TCP and TLS each: long enough for a first packet that was lost and is sent again after a second (RFC 6298), below
# the usual deadline, so that another link still has time.
_CONNECT_TIMEOUT_S = 1.5
_CONNECTIONS = 16


def client_settings(
    section: LinkSection, tls: ssl.SSLContext | None, connections: int, idle_s: float = _IDLE_S
) -> ClientSettings:
    """Returns the settings of an HTTP client for the gateway.

    Args:
        section: of the link.
        tls: see `tls_context`; one for all clients, because loading the authorities takes 50 ms.
        connections: the most at the same moment.
        idle_s: how long an unused connection stays open.
    """
    return ClientSettings(
        section.url,
        headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
        tls=False if tls is None else tls,
        proxy=section.proxy,
        connections=connections,
        idle_s=idle_s,
    )


def tls_context(section: LinkSection, credentials: Credentials | None) -> ssl.SSLContext | None:
    """Returns the context that verifies the gateway and presents this device; None if there is nothing to verify.

    Raises:
        ConfigError: authorities that cannot be read.
    """
    if credentials is not None and section.shows_identity:
        return credentials.context
    if not section.tls_ca_file and not section.url.startswith("https:"):
        return None
    if not section.tls_ca_file:
        import certifi  # the authorities that httpx uses as well

        return verifying_context(certifi.where(), "links.url")
    return verifying_context(section.tls_ca_file, "links.tls_ca_file")


def token_of(section: LinkSection) -> str:
    """Returns the link's token; "" for a link without one.

    Raises:
        ConfigError: the token cannot be read, or no header can carry it.
    """
    return read_token(section.token_file, "links.token_file")


class _Pool:
    """A limited number of connections to the gateway; requests wait for a free one here.

    httpcore's own queue walks through all waiting requests whenever one of them comes or goes: with a thousand of
    them, that takes seconds.
    """

    def __init__(
        self, client: ClientSettings, connections: int, limits: Limits, credentials: Credentials | None
    ) -> None:
        self._url = client.url
        self._credentials = credentials
        self._connections = connections
        self._client = HttpClient(client, limit_bytes=limits.body_bytes, connect_s=_CONNECT_TIMEOUT_S, doubts_idle=True)
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
        if self._credentials is not None and "date" in reply.headers:
            self._credentials.observe_date(reply.headers["date"])
        return reply

    async def _exchange(  # noqa: PLR0917
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, timeout_s: float, payer: str
    ) -> HttpReply:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + timeout_s
        url = self._url
        try:
            async with asyncio.timeout_at(ends_s):
                await self._free.acquire()
        except TimeoutError as error:
            busy = f"All {self._connections} connections to {url} were busy for {rounded(timeout_s)} s."
            raise LinkBusyError(busy) from error

        def count_bytes(sent: int, received: int) -> None:
            if payer:
                count_traffic(payer, sent=sent, received=received)

        try:
            left_s = ends_s - loop.time()
            return await self._client.exchange(method, path, headers, body, left_s, count=count_bytes)
        except LinkError as error:
            if type(error) is RemoteTimeoutError:  # the caller's whole time, not what was left of it
                raise RemoteTimeoutError(f"{url} did not answer within {rounded(timeout_s)} s.") from error
            where = "in tls_ca_file of this link"
            if self._credentials is not None:
                where += ", or join the gateway again with --force and restart the agent"
            message = untrusted(error.__cause__, url, where)
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


@dataclass(eq=False, repr=False)  # a proxy's URL may hold a password
class HttpLink:
    """Asks the gateway over HTTP/1.1.

    Args:
        section: of the device's settings.
        credentials: of a device that has joined; used if the section presents the identity.
        name: for logs, metrics and `status`.
        clock: for deadlines.
        limits: of answers.
        connections: the most that stay open.

    Raises:
        ConfigError: a token or a certificate file that cannot be used.
    """

    in_turn = False

    section: LinkSection
    credentials: Credentials | None = None
    _: KW_ONLY
    name: str = "http"
    clock: Clock = SYSTEM_CLOCK
    limits: Limits = DEFAULT_LIMITS
    connections: int = _CONNECTIONS

    def __post_init__(self) -> None:
        self._token = token_of(self.section)
        self._tls = tls_context(self.section, self.credentials)
        self._pool, self._probing_pool = self._make_pool(), self._make_pool(probing=True)
        self.probe_wanted = asyncio.Event()

    @property
    def address(self) -> str:
        """Where it leads, for people."""
        return self.section.url

    async def start(self) -> None:
        """Does nothing: connections are made on demand, and their loss is not reported."""

    async def infer(self, request: InferRequest, timeout_s: float) -> InferResponse:
        """See `Link.infer`."""
        now_s = self.clock.monotonic_s()
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
            left_s = timeout_s - (self.clock.monotonic_s() - now_s)
            if left_s > 0:
                reply = await send(left_s)
        if reply.status != 200:
            raise _refusal(reply)
        try:
            length = header_length(reply.headers)
        except RequestError as error:
            raise ProtocolError(error.message) from error
        return decode_response(reply.body, length, self.limits)

    async def probe(self, timeout_s: float) -> None:
        """Requests `GET /v2/health/live`; the page of a captive portal is not an answer."""
        reply = await self._probing_pool.exchange("GET", "/v2/health/live", self._authorization(), b"", timeout_s)
        try:
            live = orjson.loads(reply.body)
        except orjson.JSONDecodeError:
            live = None
        if reply.status != 200 or not isinstance(live, dict) or live.get("live") is not True:
            raise ProtocolError(
                f"{self.section.url} does not answer as a Firstline gateway (HTTP status {reply.status})."
            )

    async def reconnect(self) -> None:
        """Uses new connections from now on; requests in progress end on the old ones."""
        old = (self._pool, self._probing_pool)
        self._pool, self._probing_pool = self._make_pool(), self._make_pool(probing=True)
        for pool in old:
            await pool.retire()

    async def discard_connections(self) -> None:
        """See `Link.discard_connections`: requests in progress end on the old connections."""
        old, self._pool = self._pool, self._make_pool()
        await old.retire()

    async def close(self) -> None:
        await self._pool.close()
        await self._probing_pool.close()

    def _make_pool(self, *, probing: bool = False) -> _Pool:
        connections, idle_s = (1, SHORTEST_IDLE_S) if probing else (self.connections, _IDLE_S)
        client = client_settings(self.section, self._tls, connections, idle_s)
        credentials = self.credentials if self.section.shows_identity else None
        return _Pool(client, connections, self.limits, credentials)

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def _has_other_token(self, refused: str) -> bool:
        """Returns whether there is another token than the refused one: the file may have a new one."""
        if self._token == refused and self.section.token_file:
            try:
                self._token = token_of(self.section)
            except ConfigError as error:
                log.warning("token not reread", link=self.name, error=error.message)
        return self._token != refused


def _refusal(reply: HttpReply) -> FirstlineError:
    """Returns the error of an answer with a status other than 200; none of an intermediary ends a promise.

    Neither does a refusal of an API key with another scope: the operator can replace it.
    """
    error = error_of_gateway(reply.status, reply.body, reply.headers)
    if isinstance(error, ForbiddenError):
        return UnauthorizedError(error.message)
    if reply.status == _TOO_LARGE and type(error) is ProtocolError:  # of a proxy, which may let smaller requests pass
        return MessageRefusedError(error.message)
    return error
