"""Requests to the fleet API: JSON in both directions, the gateway's errors as exceptions, and pages of lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

import httpx
import msgspec

from firstline.client import connection
from firstline_core.errors import ProtocolError, RequestError
from firstline_core.protocol.http import error_from

T = TypeVar("T")


class Page(Protocol):
    """A page of a list; `after` is the cursor of the next page, None at the end."""

    @property
    def after(self) -> Any: ...


P = TypeVar("P", bound=Page)


def pages(fetch: Callable[[Any], P], first: Any = "") -> Iterator[P]:
    """Yields all pages of a list.

    Args:
        fetch: returns the page after a cursor.
        first: cursor of the first page.
    """
    after = first
    while after is not None:
        page = fetch(after)
        yield page
        after = page.after


def send(
    client: httpx.Client,
    method: str,
    path: str,
    kind: type[T],
    body: object = None,
    *,
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> T:
    """Sends one request and decodes the JSON answer.

    Args:
        client: of the gateway.
        method: the HTTP method.
        path: below the gateway's address.
        kind: type of the answer.
        body: to be encoded in JSON; None for no body.
        params: of the query.
        headers: in addition to the client's own.

    Raises:
        LinkDownError, RemoteTimeoutError: the gateway cannot be reached, or did not answer in time.
        ProtocolError: the answer is not what a Firstline gateway sends.
        FirstlineError: the error that the gateway answered with.
    """
    content = None if body is None else msgspec.json.encode(body)
    if body is not None:
        headers = {"Content-Type": "application/json", **(headers or {})}
    response = exchange(client, method, path, content, params=params, headers=headers)
    try:
        return msgspec.json.decode(response.content, type=kind)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"{base_url(client)} does not answer as a Firstline gateway: {error}.") from error


def exchange(
    client: httpx.Client,
    method: str,
    path: str,
    content: bytes | Iterator[bytes] | None = None,
    *,
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> httpx.Response:
    """Sends one request; errors are those of `send`, except for the answer's form."""
    try:
        response = client.request(method, path, content=content, params=params, headers=headers)
    except httpx.HTTPError as error:
        raise connection.link_error(error, base_url(client)) from error
    if not response.is_success:
        refusal = error_from(response.status_code, response.content, response.headers)
        if response.status_code == HTTPStatus.NOT_FOUND and refusal.code == RequestError.code:
            raise ProtocolError(
                f"{base_url(client)} is not a gateway, or has another version: it has no {path}; name the gateway's "
                "address with --gateway."
            )
        raise refusal
    return response


def base_url(client: httpx.Client) -> str:
    """Returns the gateway's address, for error messages."""
    return str(client.base_url).rstrip("/")
