"""Connections of both clients: address, token, TLS, and httpx's errors as Firstline errors."""

from __future__ import annotations

import asyncio
import os
import ssl
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx

from firstline.client.calls import Answered, Call
from firstline.client.retries import Steps, followed, job_result
from firstline_core.errors import (
    ConfigError,
    FirstlineError,
    LinkDownError,
    ProtocolError,
    RemoteTimeoutError,
    RequestError,
)
from firstline_core.protocol.http import decompressed
from firstline_core.protocol.http_client import ClientSettings, connection_fault, untrusted
from firstline_core.protocol.limits import DEFAULT_LIMITS
from firstline_core.protocol.proxies import environment_proxy
from firstline_core.storage.files import not_certificates

DEFAULT_URL = "http://127.0.0.1:8070"  # this machine's agent
DEFAULT_TIMEOUT_S = 30.0
_TIMEOUT_LIMIT_S = 24 * 60 * 60
_LAST_PORT = 65535

Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)
T = TypeVar("T")


class BaseClient(ABC, Generic[Http]):
    """The base of both clients, over httpx's blocking or asynchronous client; `Client` describes the arguments.

    A forked process shares its parent's sockets and would read the parent's answers. Connections of one event loop do
    not work in another. So each process and each loop gets an httpx client, and so connections, of its own.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        ca_file: Path | str | None = None,
        socket: Path | str | None = None,
    ) -> None:
        if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= _TIMEOUT_LIMIT_S:
            raise ConfigError(
                f"timeout_s is {timeout_s!r:.80}; give a number above 0 and at most {_TIMEOUT_LIMIT_S} s (a day)."
            )
        self._socket = socket
        self._settings = ClientSettings(
            str(base_url(url)),
            headers={"Accept-Encoding": "gzip, deflate"} | authorization(token),
            tls=verification(ca_file),
            use_environment=True,
            timeout=timeout_s,
            socket="" if socket is None else str(socket),
        )
        self._timeout_s = timeout_s
        self._clients: dict[tuple[int, asyncio.AbstractEventLoop | None], Http] = {}
        self._open_here(self._place())  # a setting that cannot be used is an error here, not later

    def _arguments(self, call: Call[Any]) -> dict[str, Any]:
        """Returns the arguments of httpx's `stream` for a call."""
        return {
            "method": call.method,
            "url": call.path,
            "content": call.content,
            "headers": call.headers,
            "params": call.params,
            "timeout": min(call.silence_s, self._timeout_s),
        }

    @staticmethod
    @abstractmethod
    def _open(settings: ClientSettings) -> Http:
        """Returns the httpx client of this kind."""

    @staticmethod
    @abstractmethod
    def _place() -> tuple[int, asyncio.AbstractEventLoop | None]:
        """Returns this process's id and the running event loop; None for a blocking client, or without a loop."""

    @property
    def _http(self) -> Http:
        """The httpx client of this process and event loop."""
        place = self._place()
        found = self._clients.get(place)
        if found is not None and found.is_closed:
            raise ConfigError("The client is closed; create another one, or close it later.")
        return found if found is not None else self._open_here(place)

    def _open_here(self, place: tuple[int, asyncio.AbstractEventLoop | None]) -> Http:
        process = place[0]
        # Those of other processes and loops are not closed, because they are not this one's; ended loops need none.
        for key in list(self._clients):
            if key[0] == process and key[1] is not None and key[1].is_closed():
                self._clients.pop(key, None)
        unused = self._clients.pop((process, None), None)  # opened before there was a loop
        return self._clients.setdefault(place, unused if unused is not None else self._open(self._settings))

    def _job_result(self, call: Call[T], job_id: str, timeout_s: float) -> Steps[T]:
        return job_result(call, job_id, timeout_s=timeout_s, silence_s=self._timeout_s / 2)

    def _followed(self, call: Call[Answered], patience_s: float, *, final: bool = True) -> Steps[Answered]:
        return followed(call, patience_s=patience_s, silence_s=self._timeout_s / 2, final=final)

    @property
    def url(self) -> str:
        """The tier's address, or its Unix socket."""
        return self._settings.url.rstrip("/") if self._socket is None else f"unix:{self._socket}"


def this_process() -> tuple[int, None]:
    """Returns the place of a blocking client."""
    return os.getpid(), None


def this_loop() -> tuple[int, asyncio.AbstractEventLoop | None]:
    """Returns the place of an asynchronous client."""
    try:
        return os.getpid(), asyncio.get_running_loop()
    except RuntimeError:  # no loop runs yet
        return os.getpid(), None


def base_url(url: str) -> httpx.URL:
    """Returns the server's address.

    Raises:
        ConfigError: `url` is not the URL of a server.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(
            f"'{url}' is not a URL ({error}); write https://HOST:PORT, or http:// without TLS."
        ) from error
    if parsed.userinfo:
        place = f"{parsed.scheme}://...@{parsed.netloc.decode()}"  # not with the password
        raise ConfigError(
            f"'{place}' has a user or a password; write {parsed.scheme}://HOST:PORT only, and give the API "
            "key in its file, or as `token` in Python."
        )
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.fragment:
        raise ConfigError(f"'{url}' is not the URL of a server; write https://HOST:PORT, or http:// without TLS.")
    if parsed.port is not None and not 1 <= parsed.port <= _LAST_PORT:
        raise ConfigError(f"'{url}' has port {parsed.port}; use 1 to {_LAST_PORT}.")
    return parsed


def authorization(token: str | None) -> dict[str, str]:
    """Returns the header with the token, without a line end from the token's file.

    Raises:
        ConfigError: a header cannot carry the token; the message does not contain it.
    """
    value = (token or "").strip()
    if value:
        check_token(value)
    return {"Authorization": f"Bearer {value}"} if value else {}


def check_token(token: str, source: str = "The token") -> None:
    """Checks that a header can carry a token.

    Raises:
        ConfigError: it cannot; the message names the source, and does not contain the token.
    """
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError(
            f"{source} is not a token: it has spaces, line ends or letters beyond ASCII; set it to the one word that "
            "`firstline-gateway key create` printed."
        )


def verification(ca_file: Path | str | None) -> ssl.SSLContext | bool:
    """Returns the TLS context that verifies an `https://` server; True for the default authorities.

    Raises:
        ConfigError: the file does not hold certificates.
    """
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # an SSLError is one
        raise ConfigError(f"{ca_file} {not_certificates(error)}, such as the gateway's authorities.pem.") from error


def read_whole(streamed: httpx.Response) -> httpx.Response:
    """Returns a response whose body is read and decompressed within the limits: a server cannot fill the memory.

    Raises:
        ProtocolError: the body is over the limit, or not in the encoding that it claims.
    """
    body = bytearray()
    for part in streamed.iter_raw():
        _append(body, part, streamed)
    return _decompressed(streamed, bytes(body))


async def read_whole_async(streamed: httpx.Response) -> httpx.Response:
    """`read_whole` for asyncio."""
    body = bytearray()
    async for part in streamed.aiter_raw():
        _append(body, part, streamed)
    return _decompressed(streamed, bytes(body))


def _append(body: bytearray, part: bytes, response: httpx.Response) -> None:
    body += part
    if len(body) > DEFAULT_LIMITS.body_bytes:
        raise ProtocolError(
            f"{response.url} answers with more than {DEFAULT_LIMITS.body_bytes} bytes, the most that is read; ask for "
            "fewer rows or outputs."
        )


def _decompressed(response: httpx.Response, body: bytes) -> httpx.Response:
    try:
        # A proxy may name an encoding for an answer without a body, such as 204.
        content = decompressed(response.headers, body, DEFAULT_LIMITS) if body else b""
    except RequestError as error:
        raise ProtocolError(f"The answer of {response.url} cannot be read. {error.message}") from error
    headers = response.headers.copy()
    headers.pop("Content-Encoding", None)  # httpx would decompress it again
    return httpx.Response(
        response.status_code,
        headers=headers,
        content=content,
        request=response.request,
        extensions=response.extensions,
    )


def link_error(error: httpx.HTTPError, url: str, *, use_environment: bool = True) -> FirstlineError:
    """Returns an httpx error as a Firstline error.

    Args:
        error: of a request.
        url: of the server, or its Unix socket.
        use_environment: whether the client uses the environment's proxies.
    """
    reason = connection_fault(error, url)
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        return RemoteTimeoutError(f"{url} did not answer in time; raise timeout_s, or ask for less.")
    if isinstance(error, httpx.ProtocolError | httpx.DecodingError):
        return ProtocolError(f"{url} does not answer in HTTP: {reason}. Check the address.")
    if message := untrusted(error, url, "with --ca or FIRSTLINE_CA (`ca_file` in Python)"):
        return LinkDownError(message)
    if "name it with" in reason:
        return LinkDownError(f"{url} cannot be used: {reason}.")
    if use_environment and not url.startswith("unix:") and (proxy := environment_proxy(url)):
        return LinkDownError(
            f"{url} cannot be reached through the proxy {httpx.URL(proxy).netloc.decode()}: {reason}. Correct the "
            "variables of the proxy, or exclude the server in NO_PROXY."
        )
    return LinkDownError(f"{url} cannot be reached: {reason}. Start the server, or correct the address.")
