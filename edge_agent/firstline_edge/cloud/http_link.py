"""The HTTP link: V2 with binary tensors over one pool of keep-alive connections, and one connection for probes.

Probes have their own: in the pool they would wait behind requests, and a busy device would take its gateway for dead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import quote

import orjson
from msgspec.structs import replace

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.errors import (
    BY_CODE,
    ConfigError,
    FirstlineError,
    ForbiddenError,
    PayloadTooLargeError,
    ProtocolError,
    RequestError,
    UnauthorizedError,
)
from firstline_core.protocol.http_body import header_length
from firstline_core.protocol.http_errors import error_from
from firstline_core.protocol.oip import DEFAULT_LIMITS, Limits, decode_response, encode_request
from firstline_core.storage.secrets import read_secret
from firstline_core.telemetry.logs import logger
from firstline_core.types import InferRequest, InferResponse
from firstline_edge.cloud.http_pool import Call, HttpLinkSettings, Pool, make_pool, tls_context
from firstline_edge.cloud.link import ignore

log = logger(__name__)

_REFUSES_DEVICE = (401, 403)


class HttpLink:
    """Asks the gateway over HTTP/1.1.

    Raises:
        ConfigError: a URL or certificate file that cannot be used.
    """

    name = "http"
    in_turn = False

    def __init__(self, settings: HttpLinkSettings, *, clock: Clock = SYSTEM_CLOCK, limits: Limits = DEFAULT_LIMITS):
        self._settings = settings
        self._clock = clock
        self._limits = limits
        self._token = settings.token
        self._tls = tls_context(settings)
        self._pool, self._probing_pool = self._make_pools()

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
        call = Call("POST", f"{path}/infer", encoded, payer=self.name, trace=request.trace)
        sent_token = self._token
        status, headers, body = await self._pool.exchange(call, self._token, timeout_s)
        if status in _REFUSES_DEVICE and self._found_other_token(sent_token):
            left_s = timeout_s - (self._clock.monotonic_s() - now_s)
            if left_s > 0:
                status, headers, body = await self._pool.exchange(call, self._token, left_s)
        if status != 200:
            raise _refusal(status, body, headers)
        try:
            length = header_length(headers)
        except RequestError as error:
            raise ProtocolError(error.message) from error
        return decode_response(body, length, self._limits)

    async def probe(self, timeout_s: float) -> None:
        """Asks `GET /v2/health/live`; a captive portal's friendly page is not an answer."""
        status, _, body = await self._probing_pool.exchange(Call("GET", "/v2/health/live"), self._token, timeout_s)
        try:
            live = orjson.loads(body)
        except orjson.JSONDecodeError:
            live = None
        if status != 200 or not isinstance(live, dict) or live.get("live") is not True:
            raise ProtocolError(f"{self._settings.url} does not answer as a Firstline gateway (HTTP status {status}).")

    async def renewed(self) -> None:
        """Makes new connections from now on; returns once what is under way on the old ones has ended."""
        old = (self._pool, self._probing_pool)
        self._pool, self._probing_pool = self._make_pools()
        for pool in old:
            await pool.drain()

    async def close(self) -> None:
        await self._pool.close()
        await self._probing_pool.close()

    def _make_pools(self) -> tuple[Pool, Pool]:
        kept = (self._settings.connections, 1)
        requests, probes = (make_pool(self._settings, connections, self._tls, self._limits) for connections in kept)
        return requests, probes

    def _found_other_token(self, refused: str) -> bool:
        """Whether there is another token than the refused one: somebody may have put a new one into the file."""
        if self._token == refused and self._settings.token_file:
            try:
                self._token = read_secret(self._settings.token_file, "links.token_file")
            except ConfigError as error:
                log.warning("the token cannot be read again", link=self.name, error=error.message)
        return self._token != refused


def _refusal(status: int, body: bytes, headers: Mapping[str, str]) -> FirstlineError:
    """What a status other than 200 says.

    A proxy or a captive portal also says 404: without one of our codes that is no judgement of the request, and
    must not end a promise that the outbox keeps. Nor must a key that may do something else only: for this device it
    is as good as none, and its operator's to mend.
    """
    error = error_from(status, body, headers)
    if isinstance(error, ForbiddenError):
        return UnauthorizedError(error.message)
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = None
    ours = isinstance(said, dict) and said.get("code") in BY_CODE
    if ours or isinstance(error, UnauthorizedError | PayloadTooLargeError) or not isinstance(error, RequestError):
        return error
    return ProtocolError(f"HTTP status {status}, but not from a Firstline gateway: {error.message}")
