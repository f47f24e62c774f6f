"""HTTP/1.1 connections to one gateway: kept alive, replaced where they went stale, with each byte counted.

What is asked over them stands in `http.py`. On the way through a proxy they are `http_proxied.py`'s.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from firstline_core.errors import ConfigError, LinkError, RemoteTimeoutError
from firstline_core.protocol.http import headers_for
from firstline_core.protocol.http_client import HttpClient
from firstline_core.protocol.oip import Encoded, Limits
from firstline_core.types import TraceContext
from firstline_edge.cloud.link import LinkBusyError
from firstline_edge.identity.credentials import Credentials
from firstline_edge.telemetry.link_traffic import count

USER_AGENT = "firstline-edge"

Reply = tuple[int, Mapping[str, str], bytes]
"""Status, headers and body."""


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
class Call:
    """What is sent.

    Args:
        payer: name of the link whose bytes these are; "" for what nobody counts.
        trace: that it belongs to.
    """

    method: str
    path: str
    encoded: Encoded | None = None
    payer: str = ""
    trace: TraceContext | None = None


class Pool(Protocol):
    """Some connections, and a seat for each: whoever waits for one waits here."""

    async def exchange(self, call: Call, token: str, timeout_s: float) -> Reply:
        """Sends it, once more on a fresh connection where a kept one had been closed, and reads the answer.

        Raises:
            LinkBusyError: no connection became free in time; nothing was sent.
            LinkError: there was no answer, or none that is HTTP.
        """
        ...

    async def drain(self) -> None:
        """Closes once what is under way has ended; nothing new may begin."""
        ...

    async def close(self) -> None: ...


def make_pool(settings: HttpLinkSettings, connections: int, tls: ssl.SSLContext | None, limits: Limits) -> Pool:
    """Connections to the gateway, through a proxy where the settings name one.

    Args:
        settings: how to reach the gateway.
        connections: kept at most.
        tls: see `tls_context`; one for all pools, because loading the authorities takes 50 ms.
        limits: of what is read.

    Raises:
        ConfigError: a URL that cannot be used.
    """
    check_url(settings.url)
    if not settings.proxy:
        return DirectPool(settings, connections, tls, limits)
    from firstline_edge.cloud.http_proxied import ProxiedPool  # httpx, which takes time and memory to import

    return ProxiedPool(settings, connections, tls, limits)


class DirectPool:
    """A `Pool` without a proxy."""

    def __init__(
        self, settings: HttpLinkSettings, connections: int, tls: ssl.SSLContext | None, limits: Limits
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._client = HttpClient(
            settings.url,
            token="",
            tls=tls,
            limit_bytes=limits.body_bytes,
            user_agent=USER_AGENT,
            connect_s=settings.connect_timeout_s,
        )
        self._seats = asyncio.Semaphore(connections)

    async def exchange(self, call: Call, token: str, timeout_s: float) -> Reply:
        """See `Pool`."""
        headers, body = ({}, b"") if call.encoded is None else (dict(headers_for(call.encoded)), call.encoded.body)
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if call.trace is not None:
            headers |= call.trace.headers()
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + timeout_s
        url = self._settings.url
        try:
            async with asyncio.timeout_at(ends_s):
                await self._seats.acquire()
        except TimeoutError as error:
            busy = f"All {self._connections} connections to {url} were busy for {timeout_s:.3g} s."
            raise LinkBusyError(busy) from error
        try:
            left_s = ends_s - loop.time()
            reply = await self._client.exchange(
                call.method, call.path, headers, body, left_s, crossed=partial(_count, call.payer)
            )
        except RemoteTimeoutError as error:
            raise RemoteTimeoutError(f"{url} did not answer within {timeout_s:.3g} s.") from error
        except LinkError as error:
            raise type(error)(f"{url}: {error.message}.") from error
        finally:
            self._seats.release()
        if self._settings.credentials is not None and "date" in reply.headers:
            self._settings.credentials.heard_date(reply.headers["date"])
        return reply

    async def drain(self) -> None:
        """See `Pool`."""
        for _ in range(self._connections):
            await self._seats.acquire()
        await self.close()

    async def close(self) -> None:
        await self._client.close()


def _count(payer: str, sent: int, received: int) -> None:
    """Sent in vain is sent, too."""
    if payer:
        count(payer, sent=sent, received=received)


def tls_context(settings: HttpLinkSettings) -> ssl.SSLContext | None:
    """Whom to believe, and who this device is; None where there is nothing to verify.

    Raises:
        ConfigError: authorities that cannot be read.
    """
    if settings.credentials is not None:
        return settings.credentials.context
    if settings.ca_file is None and not settings.url.startswith("https:"):
        return None
    try:
        if settings.ca_file is None:
            import certifi  # the authorities that httpx trusts, too

            return ssl.create_default_context(cafile=certifi.where())
        return ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"The authorities in {settings.ca_file} cannot be used: {error}.") from error


def check_url(url: str) -> None:
    """Raises `ConfigError` where the URL is none of a gateway."""
    try:
        parsed = urlsplit(url)
        known = parsed.scheme in ("http", "https") and bool(parsed.hostname) and (parsed.port or 1) > 0
    except ValueError:
        known = False
    if not known or any(character.isspace() for character in url):
        raise ConfigError(f"The gateway's URL {url!r} must look like https://gateway.example.com.")
