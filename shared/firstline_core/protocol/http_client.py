"""HTTP clients: every httpx client of both tiers and of the Python client is built here.

`open_client` and `open_async_client` set what all of them share. `HttpClient` adds what inference needs: one time limit
for the whole exchange, a bounded answer, and a retry where the server had closed an idle connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from http.cookiejar import DefaultCookiePolicy
from typing import Any, NamedTuple, TypeVar

import httpx

from firstline_core import errors
from firstline_core.clock import end_tasks
from firstline_core.protocol.http import StaleConnectionError, read_body
from firstline_core.protocol.http_transport import SOCKET_OPTIONS, AsyncTransport, BlockingTransport, KeepingTransport
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.proxies import check_proxy, environment_proxy
from firstline_core.storage.files import not_certificates
from firstline_core.telemetry.wording import rounded

_Client = TypeVar("_Client", httpx.Client, httpx.AsyncClient)

USER_AGENT = "firstline"
CONNECT_TIMEOUT_S = 2.0
SHORTEST_IDLE_S = 0.5
"""No network is assumed to forget connections sooner."""
RECOVERY_S = 600.0
"""Time without a forgotten connection after which a shortened idle limit doubles."""

# Rate of a slow link. The upload of a body that takes long at this rate does not count as silence.
_SLOW_BYTES_S = 32_000

HTTP_FAILURES = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, UnicodeError)
"""Everything that httpx raises when there is no usable answer; UnicodeError for a redirect or reason it cannot read."""

_FIRST_LINE_BYTES = 50
_ERROR_NUMBER = re.compile(r"^\[Errno -?\d+\] ")
_NO_HOST = ("not known", "name resolution", "No address associated")
_OPENSSL = re.compile(r"^\[SSL: \w+\] certificate verify failed: | \(_ssl\.c:\d+\)$")
# aiohttp warns above 1 MiB that one write blocks the event loop, so larger bodies are written in parts.
_WHOLE_BODY_BYTES, _PART_BYTES = 1 << 20, 1 << 18


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Address, credentials and limits of a server.

    Args:
        url: e.g. "https://gateway.example.com"; a path is kept as a prefix.
        headers: sent with each request.
        tls: verifies the server and may present a client certificate; True uses httpx's default authorities; False
            verifies nothing, for http:// and for the first contact with an authority.
        proxy: URL of an HTTP proxy; "" for none.
        use_environment: read proxies (HTTPS_PROXY, NO_PROXY) and SSL_CERT_FILE from the environment; this machine is
            always reached without a proxy.
        timeout: for each step of an exchange (seconds).
        connections: the most at the same moment; None for no limit.
        idle_s: how long an unused connection stays open.
        socket: path of a Unix socket that is used instead of the host and port in `url`; "" for none.
    """

    url: str
    headers: Mapping[str, str] | None = None
    tls: ssl.SSLContext | bool = True
    proxy: str = ""
    use_environment: bool = False
    timeout: httpx.Timeout | float | None = None
    connections: int | None = 100
    idle_s: float = 5.0
    socket: str = ""


def open_client(settings: ClientSettings) -> httpx.Client:
    """Returns a blocking client; the caller closes it.

    Raises:
        ConfigError: a URL, a proxy or a variable of the environment that cannot be used.
    """
    return _without_cookies(httpx.Client(**_arguments(settings), transport=BlockingTransport(**_transport(settings))))


def open_async_client(settings: ClientSettings, transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    """Returns a client for asyncio; the caller closes it.

    Args:
        settings: settings of the server.
        transport: sends the requests instead of `AsyncTransport`.

    Raises:
        ConfigError: a URL, a proxy or a variable of the environment that cannot be used.
    """
    arguments = _arguments(settings)
    return _without_cookies(
        httpx.AsyncClient(**arguments, transport=transport or AsyncTransport(**_transport(settings)))
    )


def _without_cookies(client: _Client) -> _Client:
    """Lets the client ignore cookies: no server that it talks to uses any, and a hostile one could fill the memory."""
    client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    return client


def _arguments(settings: ClientSettings) -> dict[str, Any]:
    check_url(settings.url)
    return {
        "base_url": settings.url,
        "headers": {"User-Agent": USER_AGENT, **(settings.headers or {})},
        "trust_env": False,  # httpx would use a proxy for this machine too, and raises errors of several kinds
        "timeout": settings.timeout,
    }


def _transport(settings: ClientSettings) -> dict[str, Any]:
    if settings.proxy:
        check_proxy(settings.proxy, f"The proxy for {settings.url}")
    settings = without_environment(settings)
    limits = httpx.Limits(
        max_connections=settings.connections,
        max_keepalive_connections=settings.connections,
        keepalive_expiry=settings.idle_s,
    )
    return {
        "verify": settings.tls,
        "trust_env": False,
        "limits": limits,
        "proxy": settings.proxy or None,
        "uds": settings.socket or None,
        "socket_options": None if settings.socket else SOCKET_OPTIONS,
    }


def without_environment(settings: ClientSettings) -> ClientSettings:
    """Returns settings that name the proxy and the authorities of the environment, so that it is not read again.

    Raises:
        ConfigError: a variable of the environment that cannot be used.
    """
    if not settings.use_environment:
        return settings
    proxy = settings.proxy or ("" if settings.socket else environment_proxy(settings.url))
    tls = _environment_authorities() if settings.tls is True else settings.tls
    return replace(settings, proxy=proxy, tls=tls, use_environment=False)


def _environment_authorities() -> ssl.SSLContext:
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        name = "SSL_CERT_FILE" if os.environ.get("SSL_CERT_FILE") else "SSL_CERT_DIR"
        raise errors.ConfigError(f"{name}: {os.environ.get(name)} {not_certificates(error)}.") from error


def check_url(url: str) -> None:
    """Raises ConfigError unless httpx can use the URL."""
    try:
        parsed = httpx.URL(url)
        parsed.host.encode("idna")
    except (httpx.InvalidURL, UnicodeError) as error:
        raise errors.ConfigError(f"The URL {url!r} cannot be used: {error}; name it as http://HOST:PORT.") from error
    if parsed.scheme not in ("http", "https"):
        raise errors.ConfigError(f"The URL {url!r} has no http:// or https://; name it as http://HOST:PORT.")


def connection_fault(error: Exception, url: str) -> str:
    """Returns why a server gave no usable answer, without the codes of the system, and what that may mean."""
    reason = _ERROR_NUMBER.sub("", str(error)).rstrip(".") or type(error).__name__
    if any(words in reason for words in _NO_HOST):
        return "its host name is not known here"
    if "WRONG_VERSION_NUMBER" in reason:
        return "it answers without TLS; name it with http:// instead of https://"
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return f"its certificate is not trusted ({_OPENSSL.sub('', reason)})"
    is_reset = isinstance(error, httpx.ReadError | httpx.WriteError) and not str(error)
    if is_reset or "without sending a response" in reason:
        reason = "it closed the connection without an answer"
    if "All connection attempts failed" in reason:
        reason = "it accepts no connection"
    if isinstance(error, httpx.RemoteProtocolError) and url.startswith("http:"):
        return f"{reason[:1].lower()}{reason[1:]}; if it uses TLS, name it with https:// instead of http://"
    return f"{reason[:1].lower()}{reason[1:]}"


def untrusted(error: BaseException | None, url: str, where: str) -> str:
    """Returns a sentence about a server's certificate that was not trusted; "" for another error.

    Args:
        error: one of `HTTP_FAILURES`.
        url: of the server.
        where: where its authority is named, e.g. "with --ca".
    """
    if not isinstance(error, Exception) or "CERTIFICATE_VERIFY_FAILED" not in str(error):
        return ""  # httpx hands on no more than OpenSSL's words
    fault = connection_fault(error, url).partition("trusted")[2]
    remedy = f"name the certificate of the authority that signed it, such as the gateway's authorities.pem, {where}"
    if "mismatch" in fault:
        remedy = "use a name that the certificate has, or add this one to tls.hosts of the gateway"
    elif "expired" in fault or "not yet valid" in fault:
        remedy = "correct the clock of this machine, or renew the certificate"
    return f"The certificate of {url} is not trusted{fault}; {remedy}."


def link_error(error: Exception) -> errors.LinkError:
    """Returns one of `HTTP_FAILURES` as an error of ours.

    The message continues a sentence that begins with the server and has no period, e.g. "it cannot be reached (...)".
    """
    detail = str(error).rstrip(".") or type(error).__name__
    if isinstance(error, httpx.ConnectTimeout):
        return errors.LinkDownError("it did not accept a connection in time")
    if isinstance(error, httpx.TimeoutException):
        return errors.RemoteTimeoutError("it did not answer in time")
    if isinstance(error, httpx.ConnectError | httpx.ProxyError):
        return errors.LinkDownError(f"it cannot be reached ({detail})")
    if _is_disconnection(error):
        return errors.LinkDownError(f"it closed the connection ({detail})")
    return errors.ProtocolError(f"it does not speak HTTP/1.1 ({detail})")


def _is_disconnection(error: Exception) -> bool:
    # httpcore and h11 report a connection that ends before its answer as a fault of the protocol.
    closed = isinstance(error, httpx.RemoteProtocolError) and ("disconnected" in str(error) or "closed" in str(error))
    return closed or isinstance(error, httpx.NetworkError)


class HttpReply(NamedTuple):
    """Status, headers and body of an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class IdleLimit:
    """How long a kept connection may be idle; learns when the network forgets connections sooner.

    A NAT or a load balancer may forget a connection without a word. If one gives no byte after it was idle and a new
    one is answered, connections are closed after half of that time from then on. The limit doubles, up to the longest,
    for each `RECOVERY_S` without such a connection, because the device may have moved to another network.

    Args:
        limit_s: the longest.
        now_s: returns the monotonic time (seconds).

    Attributes:
        limit_s: the current limit (seconds).
    """

    def __init__(self, limit_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = self._longest_s = limit_s
        self._now_s = now_s
        self._changed_s = now_s()
        self._survived_s = SHORTEST_IDLE_S
        self._suspected_s: float | None = None

    def doubts(self, idle_s: float) -> bool:
        """Returns whether no connection was ever answered after it had been idle for `idle_s`."""
        return idle_s > self._survived_s

    def silent(self, idle_s: float) -> None:
        """Records that a kept connection gave no byte after `idle_s` seconds without use."""
        self._suspected_s = idle_s

    def answered(self, idle_s: float, *, new: bool) -> None:
        """Records an answer, over a new connection or after `idle_s` seconds without use."""
        if not new:
            self._survived_s = min(max(self._survived_s, idle_s), self.limit_s)
        elif self._suspected_s is not None:
            self.limit_s = max(SHORTEST_IDLE_S, min(self.limit_s, self._suspected_s / 2))
            self._survived_s = min(self._survived_s, self.limit_s)
            self._changed_s = self._now_s()
        if self.limit_s < self._longest_s and self._now_s() - self._changed_s >= RECOVERY_S:
            self.limit_s = min(self._longest_s, 2 * self.limit_s)
            self._changed_s = self._now_s()
        self._suspected_s = None


class _Progress:
    """The progress of one try, reported by the transport's `trace` extension.

    Args:
        moved: called when the try does not depend on a kept connection, or that connection gives a byte.

    Attributes:
        connecting: whether it needed a new connection.
        sent: whether the head of the request was written.
        answered: whether the head of an answer was read.
    """

    def __init__(self, moved: Callable[[], None]) -> None:
        self.connecting = self.sent = self.answered = False
        self.moved = moved

    async def __call__(self, event: str, _info: object) -> None:
        if event.endswith("connect_tcp.started"):
            self.connecting = True
            self.moved()
        elif event.endswith("send_request_headers.complete"):
            self.sent = True


class HttpClient:
    """Exchanges bounded bodies with one server, over connections that stay open.

    Args:
        settings: how to reach the server; `timeout` is not used.
        limit_bytes: the largest body of an answer.
        connect_s: for TCP, TLS and the proxy together.
        transport: sends the requests; None for `AsyncTransport`.
        doubts_idle: give a connection only half of the time if it was idle for longer than any that was answered, so
            that the caller has time to send the request again.

    Raises:
        ConfigError: see `open_async_client`.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        limit_bytes: int,
        connect_s: float = CONNECT_TIMEOUT_S,
        transport: KeepingTransport | None = None,
        doubts_idle: bool = False,
    ) -> None:
        self.url = settings.url
        self._limits = Limits(body_bytes=limit_bytes)
        self._connect_s = connect_s
        self._transport = transport or AsyncTransport(**_transport(settings))
        self._client = open_async_client(settings, self._transport)
        self._client.headers["Accept-Encoding"] = "identity"
        self._doubts_idle = doubts_idle
        self._idle = IdleLimit(settings.idle_s)
        self._used_s = 0.0  # when an answer last came, on the event loop's clock
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    async def exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float,
        *,
        count: Callable[[int, int], None] = lambda _sent, _received: None,
    ) -> HttpReply:
        """Sends a request and reads the answer.

        A server may close an idle connection at the moment at which the request is written to it. Then the request is
        sent once more. So it must be idempotent, or have an id by which the server recognizes it.

        Args:
            method: e.g. POST.
            path: below the client's URL.
            headers: headers in addition to those of the client.
            body: b"" for none.
            timeout_s: time limit of the whole exchange.
            count: called after each try with the bytes sent and received, heads included (estimated).

        Raises:
            StaleConnectionError: a kept connection gave no byte after it had been idle.
            LinkError: no answer within `timeout_s`, or not an HTTP answer; see `link_error` for the message.
        """
        loop = asyncio.get_running_loop()
        ends_s, idle_s = loop.time() + timeout_s, loop.time() - self._used_s
        is_small = len(body) <= timeout_s / 2 * _SLOW_BYTES_S
        granted_s = timeout_s / 2 if self._doubts_idle and is_small and self._idle.doubts(idle_s) else timeout_s
        # If the whole exchange has less time than a connection, the time of the whole exchange runs out.
        timeout = httpx.Timeout(None, connect=self._connect_s if self._connect_s < timeout_s else None)
        sent_headers = {**headers, "Content-Length": str(len(body))}

        def request(progress: _Progress) -> httpx.Request:
            content = body if len(body) <= _WHOLE_BODY_BYTES else _parts_of(body)
            extensions = {"trace": progress}
            return self._client.build_request(
                method, path, headers=sent_headers, content=content, timeout=timeout, extensions=extensions
            )

        def grant_all() -> None:
            if not limit.expired():
                limit.reschedule(ends_s)

        progress = _Progress(grant_all)
        try:
            async with asyncio.timeout_at(ends_s - timeout_s + granted_s) as limit:
                try:
                    reply = await self._send(request(progress), len(body), progress, count)
                except HTTP_FAILURES as error:
                    if progress.connecting or progress.answered or not _is_disconnection(error):
                        raise
                    progress = _Progress(grant_all)
                    reply = await self._send(request(progress), len(body), progress, count)
            self._idle.answered(idle_s, new=progress.connecting)
            return reply
        except TimeoutError as error:
            await self._transport.close_idle()
            if progress.connecting or progress.answered or idle_s < SHORTEST_IDLE_S or not is_small:
                raise errors.RemoteTimeoutError(f"it did not answer within {rounded(timeout_s)} s") from error
            self._idle.silent(idle_s)
            raise StaleConnectionError(
                f"it gave no byte within {rounded(granted_s)} s over a connection that was idle for {rounded(idle_s)} s"
            ) from error
        except errors.PayloadTooLargeError as error:
            raise errors.ProtocolError(
                f"it answered with too much, more than {self._limits.body_bytes} bytes"
            ) from error
        except HTTP_FAILURES as error:
            raise link_error(error) from error
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(self._idle.limit_s, self._close_idle)

    async def close(self) -> None:
        """Closes all connections; exchanges in progress fail."""
        if self._timer is not None:
            self._timer.cancel()
        await end_tasks(self._closing)
        await self._client.aclose()

    def _close_idle(self) -> None:
        self._closing = asyncio.create_task(self._transport.close_idle())

    async def _send(
        self, request: httpx.Request, body_bytes: int, progress: _Progress, count: Callable[[int, int], None]
    ) -> HttpReply:
        try:
            response = await self._client.send(request, stream=True)
        finally:
            if progress.sent:  # bytes that were sent in vain count as well
                count(_head_bytes(request.headers.raw) + body_bytes, 0)
        progress.answered, self._used_s = True, asyncio.get_running_loop().time()
        progress.moved()
        async with contextlib.aclosing(response):
            if response.status_code < 200:
                raise errors.ProtocolError(f"it does not speak HTTP/1.1 (status {response.status_code})")
            try:
                answer = await read_body(response.aiter_raw(), response.headers, self._limits)
                self._used_s = asyncio.get_running_loop().time()
            finally:
                count(0, _head_bytes(response.headers.raw) + response.num_bytes_downloaded)
        return HttpReply(response.status_code, response.headers, answer)


async def _parts_of(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _PART_BYTES):
        yield body[start : start + _PART_BYTES]


def _head_bytes(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Bytes of a head on the wire, with a first line of average length."""
    return _FIRST_LINE_BYTES + sum(len(name) + len(value) + 4 for name, value in headers)
