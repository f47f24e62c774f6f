"""The base of the parts of a gateway's API: JSON in both directions, the gateway's errors as exceptions, and pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

import httpx
import msgspec

from firstline.client import connection
from firstline_core.errors import FirstlineError, ProtocolError, RequestError
from firstline_core.protocol.http import error_from
from firstline_core.protocol.http_client import HttpReply
from firstline_core.units import MIB

_ANSWER_BYTES = 256 * MIB
"""Longest JSON that is read: a page of 1,000 devices that report as much as they may, and more."""

T = TypeVar("T")


class Page(Protocol):
    """A page of a list; `after` is the cursor of the next page, None at the end."""

    @property
    def after(self) -> Any: ...


P = TypeVar("P", bound=Page)


class Api:
    """A part of the API of one gateway.

    Each method raises `LinkDownError` or `RemoteTimeoutError` if the gateway cannot be reached or did not answer in
    time, `ProtocolError` if the answer is not what a Firstline gateway sends, and the error that the gateway answered
    with as a `FirstlineError`.
    """

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    @property
    def _url(self) -> str:
        """The gateway's address, for error messages."""
        return str(self._client.base_url).rstrip("/")

    def _send(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: object = None,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Sends one request and decodes the JSON answer.

        Args:
            method: the HTTP method.
            path: below the gateway's address.
            kind: type of the answer.
            body: to be encoded in JSON; None for no body.
            params: of the query; those that are None are left out.
            headers: in addition to the client's own.
        """
        content = None if body is None else msgspec.json.encode(body)
        reply = self._exchange(method, path, content, params=params, headers=headers)
        try:
            return msgspec.json.decode(reply.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"{self._url} does not answer as a Firstline gateway: {error}.") from error

    def _exchange(
        self,
        method: str,
        path: str,
        content: bytes | Iterator[bytes] | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpReply:
        """Sends one request, and returns the answer in any form."""
        with self._stream(method, path, content, params=params, headers=headers) as response:
            return HttpReply(response.status_code, response.headers, self._body(response, path))

    def _pages(
        self, path: str, kind: type[P], params: Mapping[str, Any] | None = None, first: str | int = ""
    ) -> Iterator[P]:
        """Yields all pages of a list, from the one after the cursor `first` on."""
        after: Any = first
        while after is not None:
            page = self._send("GET", path, kind, params={**(params or {}), "after": after})
            yield page
            after = page.after

    @contextmanager
    def _stream(
        self,
        method: str,
        path: str,
        content: bytes | Iterator[bytes] | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[httpx.Response]:
        """Sends one request, and opens an answer whose body the caller reads in parts."""
        query = {name: value for name, value in (params or {}).items() if value is not None} or None
        try:
            with self._client.stream(method, path, content=content, params=query, headers=headers) as reply:
                if not reply.is_success:
                    raise self._refusal(reply, path)
                yield reply
        except httpx.HTTPError as error:
            raise connection.link_error(error, self._url, use_environment=False) from error

    def _refusal(self, reply: httpx.Response, path: str) -> FirstlineError:
        refusal = error_from(reply.status_code, self._body(reply, path), reply.headers)
        if reply.status_code == HTTPStatus.NOT_FOUND and refusal.code == RequestError.code:
            return ProtocolError(
                f"{self._url} is not a gateway, or has another version: it has no {path}; name the gateway's address "
                "with --gateway."
            )
        return refusal

    def _body(self, reply: httpx.Response, path: str) -> bytes:
        body = read_limited(reply.iter_bytes(), _ANSWER_BYTES)
        if len(body) > _ANSWER_BYTES:
            raise ProtocolError(
                f"{self._url} does not answer as a Firstline gateway: the answer to {path} has more than "
                f"{_ANSWER_BYTES} bytes."
            )
        return body


def read_limited(parts: Iterable[bytes], limit_bytes: int) -> bytes:
    """Returns a body. Stops reading above the limit, so that the result of a larger body is above the limit too."""
    content = bytearray()
    for part in parts:
        content += part
        if len(content) > limit_bytes:
            break
    return bytes(content)
