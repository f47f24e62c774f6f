"""HTTP as bytes on a socket, for requests that no client would send."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import orjson

from bench.support.line import Tier

TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def refused(self) -> str:
        """The code of the error that it is, after a look at its form."""
        assert 400 <= self.status < 500, (self.status, self.body[:500])
        assert self.headers.get("content-type") == "application/json"
        said = orjson.loads(self.body)
        assert isinstance(said["error"], str)
        assert said["error"].endswith("."), said
        assert len(said["error"]) < 1000, said
        code: str = said["code"]
        assert code.isidentifier()
        return code


def head(tier: Tier, method: str, path: str, *lines: str) -> bytes:
    """A request's head, with the host and the caller's token."""
    known = [f"Host: 127.0.0.1:{tier.port}", *(f"{name}: {value}" for name, value in tier.headers.items())]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *known, *lines, "", ""]).encode("latin-1")


@contextmanager
def connection(tier: Tier) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", tier.port), timeout=TIMEOUT_S) as found:
        yield found


def read(found: socket.socket, method: str = "POST") -> Answer:
    """The next response, over any 1xx before it."""
    response = http.client.HTTPResponse(found, method=method)
    response.begin()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, response.read())


def exchange(tier: Tier, request: bytes) -> Answer:
    """Sends bytes on a fresh connection and reads the one response."""
    with connection(tier) as found:
        found.sendall(request)
        return read(found)
