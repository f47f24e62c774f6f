"""Fleet requests over HTTP to a server that is not the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.profiles import profile
from support.streams import serving_streams
from support.threads import NoThreads

from firstline_core.errors import LinkDownError, NotFoundError, ProtocolError
from firstline_core.fleet.twin import LIMIT_BYTES
from firstline_edge.fleet.http_client import FleetHttp, upload_profile
from firstline_edge.fleet.updates.state_machine import TEMPORARY
from firstline_edge.settings.settings import LinkSection


@asynccontextmanager
async def client_of(answer: bytes) -> AsyncIterator[FleetHttp]:
    """A client of a server that gives each request the same answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with serving_streams(serve) as port:
        http = FleetHttp(LinkSection(kind="http", url=f"http://127.0.0.1:{port}"), None)
        yield http
        await http.close()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirected_document_has_not_arrived(status: int) -> None:
    moved = b"HTTP/1.1 %d Moved\r\nLocation: https://gateway/\r\nContent-Length: 0\r\n\r\n" % status
    async with client_of(moved) as http:
        with pytest.raises(ProtocolError, match=rf"a redirect \(HTTP status {status}\).*name the final address"):
            await http.exchange("PUT", "/fleet/v1/twin/reported", content=b"{}")
        with pytest.raises(ProtocolError, match="a redirect"):
            await http.send("/fleet/v1/twin/profiles/digits/versions/1", b"{}")


@pytest.mark.parametrize("answer", [b"<html>login</html>", b" " * (LIMIT_BYTES + 1)])
async def test_a_profile_that_another_server_answers_has_not_arrived(answer: bytes) -> None:
    async with client_of(b"HTTP/1.1 200 OK\r\n\r\n" + answer) as http:
        with pytest.raises(ProtocolError):
            await upload_profile(http, profile(1.0))


@pytest.mark.parametrize("status", [400, 403, 404, 413, 451, 500, 511, 520, 530])
@pytest.mark.parametrize("page", [b"<html>Welcome to the hotel</html>", b'{"code": {}, "error": "origin"}'])
async def test_errors_of_an_intermediary_are_temporary(status: int, page: bytes) -> None:
    """They must not end an update or a profile."""
    async with client_of(b"HTTP/1.1 %d Refused\r\nContent-Length: %d\r\n\r\n%b" % (status, len(page), page)) as http:
        with pytest.raises(TEMPORARY):
            await http.exchange("GET", "/fleet/v1/registry/blobs/x")


async def test_an_error_of_the_gateway_is_permanent() -> None:
    body = b'{"detail": "There is no such file.", "code": "not_found"}'
    async with client_of(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)) as http:
        with pytest.raises(NotFoundError, match="no such file"):
            await http.exchange("GET", "/fleet/v1/registry/blobs/x")


async def test_a_document_that_has_not_changed_is_no_redirect() -> None:
    async with client_of(b"HTTP/1.1 304 Not Modified\r\n\r\n") as http:
        assert (await http.exchange("GET", "/fleet/v1/twin"))[0] == 304


async def test_a_lack_of_threads_is_a_temporary_error() -> None:
    http = FleetHttp(LinkSection(kind="http", url="http://localhost:9"), None)
    asyncio.get_running_loop().set_default_executor(NoThreads())  # a name is looked up in a thread
    with pytest.raises(LinkDownError, match="can't start new thread"):
        await http.exchange("GET", "/fleet/v1/twin")
    await http.close()
