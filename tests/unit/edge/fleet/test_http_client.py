"""Fleet requests over HTTP to a server that is not the gateway."""

from __future__ import annotations

import asyncio

import pytest
from support.profiles import profile
from support.streams import serving_streams

from firstline_core.errors import NotFoundError, ProtocolError
from firstline_core.fleet.twin import LIMIT_BYTES
from firstline_edge.fleet.http_client import FleetHttp, upload_profile
from firstline_edge.fleet.updates.state_machine import TEMPORARY
from firstline_edge.settings.settings import LinkSection


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirected_document_has_not_arrived(status: int) -> None:
    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d Moved\r\nLocation: https://gateway/\r\nContent-Length: 0\r\n\r\n" % status)
        writer.close()

    async with serving_streams(redirect) as port:
        http = FleetHttp(LinkSection(kind="http", url=f"http://127.0.0.1:{port}"), None)
        with pytest.raises(ProtocolError, match=rf"a redirect \(HTTP status {status}\).*name the final address"):
            await http.exchange("PUT", "/fleet/v1/twin/reported", content=b"{}")
        with pytest.raises(ProtocolError, match="a redirect"):
            await http.send("/fleet/v1/twin/profiles/digits/versions/1", b"{}")
        await http.close()


@pytest.mark.parametrize("answer", [b"<html>login</html>", b" " * (LIMIT_BYTES + 1)])
async def test_a_profile_that_another_server_answers_has_not_arrived(answer: bytes) -> None:
    async def log_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + answer)
        writer.close()

    async with serving_streams(log_in) as port:
        http = FleetHttp(LinkSection(kind="http", url=f"http://127.0.0.1:{port}"), None)
        with pytest.raises(ProtocolError):
            await upload_profile(http, profile(1.0))
        await http.close()


@pytest.mark.parametrize("status", [400, 403, 404, 413, 451, 500, 511, 520, 530])
@pytest.mark.parametrize("page", [b"<html>Welcome to the hotel</html>", b'{"code": {}, "error": "origin"}'])
async def test_errors_of_an_intermediary_are_temporary(status: int, page: bytes) -> None:
    """They must not end an update or a profile."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d Refused\r\nContent-Length: %d\r\n\r\n%b" % (status, len(page), page))
        writer.close()

    async with serving_streams(refuse) as port:
        http = FleetHttp(LinkSection(kind="http", url=f"http://127.0.0.1:{port}"), None)
        with pytest.raises(TEMPORARY):
            await http.exchange("GET", "/fleet/v1/registry/blobs/x")
        await http.close()


async def test_an_error_of_the_gateway_is_permanent() -> None:
    body = b'{"detail": "There is no such file.", "code": "not_found"}'

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with serving_streams(refuse) as port:
        http = FleetHttp(LinkSection(kind="http", url=f"http://127.0.0.1:{port}"), None)
        with pytest.raises(NotFoundError, match="no such file"):
            await http.exchange("GET", "/fleet/v1/registry/blobs/x")
        await http.close()


async def test_a_document_that_has_not_changed_is_no_redirect() -> None:
    async def unchanged(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 304 Not Modified\r\n\r\n")
        writer.close()

    async with serving_streams(unchanged) as port:
        http = FleetHttp(LinkSection(kind="http", url=f"http://127.0.0.1:{port}"), None)
        assert (await http.exchange("GET", "/fleet/v1/twin"))[0] == 304
        await http.close()
