"""HTTP as bytes on a socket, for requests that no client would send."""

import asyncio
import http.client
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import orjson
from support.line import Tier

TIMEOUT_S = 20.0

_REQUEST_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def refused(self) -> str:
        """The code of the error that it is, after a look at its form."""
        assert 400 <= self.status < 500, (self.status, self.body[:500])
        assert self.headers.get("content-type") == "application/json"
        document = orjson.loads(self.body)
        assert isinstance(document["error"], str)
        assert document["error"].endswith((".", "?")), document
        assert len(document["error"]) < 1000, document
        assert _REQUEST_ID.fullmatch(document["request_id"])
        code: str = document["code"]
        assert code.isidentifier()
        return code


def head(tier: Tier, method: str, path: str, *lines: str) -> bytes:
    """A request's head, with the host and the caller's token."""
    headers = [f"Host: 127.0.0.1:{tier.port}", *(f"{name}: {value}" for name, value in tier.headers.items())]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *headers, *lines, "", ""]).encode("latin-1")


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


class RawReply(NamedTuple):
    status: int
    head: bytes
    body: bytes


@asynccontextmanager
async def connected(
    url: str, timeout_s: float = TIMEOUT_S
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server in this process, and the time for all that is done on it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        async with asyncio.timeout(timeout_s):
            yield reader, writer
    finally:
        writer.transport.abort()


async def next_reply(reader: asyncio.StreamReader) -> RawReply:
    """The next response, with a body as long as its head says."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
    return RawReply(int(head.split()[1]), head, await reader.readexactly(int(length[1])))


def process_of(tier: Tier) -> Path:
    """The folder in /proc of the process that logs there."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "fd" / "2").readlink() == tier.log.resolve():
                return process
    raise LookupError(f"the {tier.name}'s process was not found")
