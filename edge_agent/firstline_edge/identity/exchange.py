"""Enrolment and renewal of a device's certificate over HTTP; see `protocol/enrolment.py`."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import msgspec

from firstline_core.errors import (
    LinkDownError,
    PayloadTooLargeError,
    ProtocolError,
    RemoteTimeoutError,
    UnauthorizedError,
)
from firstline_core.protocol.enrolment import (
    CA_PATH,
    ENROL_PATH,
    RENEW_PATH,
    EnrolAnswer,
    EnrolRequest,
    JoinToken,
    RenewRequest,
)
from firstline_core.protocol.http import JSON_TYPE
from firstline_core.protocol.http_body import read_body
from firstline_core.protocol.http_client import HTTP_FAILURES, ClientSettings, open_async_client
from firstline_core.protocol.http_errors import error_from
from firstline_core.protocol.limits import Limits
from firstline_edge.identity.tls import device_context, shown, unverified_context

_TIMEOUT_S = 15.0
_LIMITS = Limits(body_bytes=1 << 20)


async def fetch_authority(url: str, token: JoinToken, *, proxy: str = "") -> str:
    """Fetches the authority's certificate that the token names, from a server that is not verified yet.

    Sends no secret.

    Raises:
        LinkDownError: no answer.
        ProtocolError: the server is not a gateway.
        UnauthorizedError: it is another gateway than the token's.
    """
    from firstline_edge.identity.keys import authority_with

    async with _client(url, unverified_context(), proxy) as client:
        body = await _said(client, "GET", CA_PATH)
    try:
        found = authority_with(body.decode(), token.ca_hash)
    except ValueError as error:
        raise ProtocolError(f"{url} does not answer as a Firstline gateway: {error}.") from error
    if found is None:
        raise UnauthorizedError(
            f"{url} is not the gateway that the join token is from: its authority's key has another hash. Look at the "
            "URL; where it is right, somebody answers in the gateway's place, and the token was not sent."
        )
    return found


async def enrol(url: str, token: JoinToken, csr: str, authority_pem: str, *, proxy: str = "") -> EnrolAnswer:
    """Requests the first certificate, from a gateway that the authority verifies.

    Raises:
        UnauthorizedError: the token is used, expired or unknown.
        LinkDownError: no answer, or from a server that the authority does not verify.
        ProtocolError: a malformed answer.
        FirstlineError: the gateway's error.
    """
    times: list[tuple[float, float]] = []

    def note(begins_s: float, ends_s: float) -> str:
        times.append((begins_s, ends_s))  # what time it is, the gateway has yet to say
        return ""

    context = device_context(note)
    context.load_verify_locations(cadata=authority_pem)
    async with _client(url, context, proxy) as client:
        answer = _answer(url, await _said(client, "POST", ENROL_PATH, EnrolRequest(token.secret, csr)))
    if any(answer.now_s > ends_s for _, ends_s in times):
        raise LinkDownError(f"{url} shows a certificate that ended at {shown(times[0][1])}; the gateway needs another.")
    return answer


async def renew(url: str, csr: str, context: ssl.SSLContext, *, proxy: str = "") -> EnrolAnswer:
    """Requests the next certificate; `context` presents the current one.

    Raises:
        UnauthorizedError: the current one is revoked, or expired too long ago.
        LinkDownError, ProtocolError, FirstlineError: see `enrol`.
    """
    async with _client(url, context, proxy) as client:
        return _answer(url, await _said(client, "POST", RENEW_PATH, RenewRequest(csr)))


@asynccontextmanager
async def _client(url: str, context: ssl.SSLContext, proxy: str) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Accept-Encoding": "identity", "User-Agent": "firstline-edge"}
    settings = ClientSettings(url, headers=headers, tls=context, proxy=proxy, timeout=_TIMEOUT_S)
    async with open_async_client(settings) as client:
        yield client


async def _said(
    client: httpx.AsyncClient, method: str, path: str, request: EnrolRequest | RenewRequest | None = None
) -> bytes:
    """Returns the body of an answer with status 200."""
    url = str(client.base_url).rstrip("/")
    content = None if request is None else msgspec.json.encode(request)
    headers = {} if request is None else {"Content-Type": JSON_TYPE}
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            client.stream(method, path, content=content, headers=headers) as response,
        ):
            body = await read_body(response.aiter_raw(), response.headers, _LIMITS)
    except TimeoutError as error:
        raise RemoteTimeoutError(f"{url} did not answer within {_TIMEOUT_S:g} s.") from error
    except HTTP_FAILURES as error:
        said = str(error).rstrip(".") or type(error).__name__
        raise LinkDownError(f"{url} cannot be reached: {said}.") from error
    except PayloadTooLargeError as error:
        raise ProtocolError(f"{url} does not answer as a Firstline gateway: {error.message}") from error
    if response.status_code != httpx.codes.OK:
        refusal = error_from(response.status_code, body, response.headers)
        raise type(refusal)(f"{url}: {refusal.message}", retry_after_s=refusal.retry_after_s)
    return body


def _answer(url: str, body: bytes) -> EnrolAnswer:
    try:
        return msgspec.json.decode(body, type=EnrolAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"{url} does not answer as a Firstline gateway: {error}.") from error
