"""A download with a hundred interruptions: at most 1.05 times its bytes, and the signed content."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import LinkError, ProtocolError
from firstline_core.storage.artefact import SignedFile
from firstline_edge.fleet.http_client import FleetHttp
from firstline_edge.fleet.updates.installation import RateLimit, download
from firstline_edge.fleet.updates.registry import GatewayRegistry
from firstline_edge.settings.settings import LinkSection

CUTS = 100
SIZE_BYTES = 4 << 20
PIECE_BYTES = 4096


class CuttingServer:
    """Answers ranges of one file over real sockets, and hangs up in the middle, politely or not."""

    def __init__(self, content: bytes, rng: random.Random, *, ranges: bool = True) -> None:
        self.content = content
        self.rng = rng
        self.ranges = ranges
        self.cuts = 0
        self.sent_bytes = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            first = 0
            if self.ranges and "range: bytes=" in head:
                first = int(head.split("range: bytes=")[1].split("-")[0])
            rest = self.content[first:]
            status = "206 Partial Content" if first else "200 OK"
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(rest)}\r\n\r\n".encode())
            left = CUTS - self.cuts
            ends = self.rng.randint(1, 2 * len(rest) // (left + 1)) if left else len(rest)
            for begin in range(0, min(ends, len(rest)), PIECE_BYTES):
                piece = rest[begin : min(begin + PIECE_BYTES, ends)]
                self.sent_bytes += len(piece)
                writer.write(piece)
                await writer.drain()
            if ends < len(rest):
                self.cuts += 1
                if self.rng.random() < 0.5:
                    writer.transport.abort()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def served(server: CuttingServer) -> AsyncIterator[GatewayRegistry]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    http = FleetHttp(LinkSection(kind="http", url=f"http://127.0.0.1:{port}"), None)
    try:
        yield GatewayRegistry(http, Path("unused"), "", SYSTEM_CLOCK.wall_s)
    finally:
        await http.close()
        listening.close()
        await listening.wait_closed()


@pytest.mark.parametrize("seed", range(5))
async def test_a_hundred_interruptions_cost_a_twentieth(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    content = rng.randbytes(SIZE_BYTES)
    file = SignedFile("m/1/edge.onnx", len(content), hashlib.sha256(content).hexdigest(), {})
    server, path = CuttingServer(content, rng), tmp_path / "partial"
    received_bytes = 0

    def note(size_bytes: int) -> None:
        nonlocal received_bytes
        received_bytes += size_bytes

    async with served(server) as registry:
        for _ in range(2 * CUTS):
            try:
                await download(registry, file, path, RateLimit(0, SYSTEM_CLOCK), note)
                break
            except LinkError:
                continue
    assert path.read_bytes() == content
    assert server.cuts == CUTS
    assert received_bytes == SIZE_BYTES and server.sent_bytes <= 1.05 * SIZE_BYTES


async def test_a_server_without_ranges_is_supported(tmp_path: Path) -> None:
    rng = random.Random(1)
    content = rng.randbytes(100_000)
    file = SignedFile("m/1/edge.onnx", len(content), hashlib.sha256(content).hexdigest(), {})
    server, path = CuttingServer(content, rng, ranges=False), tmp_path / "partial"
    server.cuts = CUTS
    path.write_bytes(content[:70_001])
    async with served(server) as registry:
        await download(registry, file, path, RateLimit(0, SYSTEM_CLOCK), lambda _: None)
    assert path.read_bytes() == content


async def test_a_login_page_is_not_part_of_a_file(tmp_path: Path) -> None:
    async def portal(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://login.invalid/\r\nContent-Length: 5\r\n\r\nlogin")
        await writer.drain()
        writer.close()

    server = CuttingServer(b"", random.Random(1))
    server.serve = portal  # type: ignore[method-assign]
    file = SignedFile("m/1/edge.onnx", 5, hashlib.sha256(b"model").hexdigest(), {})
    async with served(server) as registry:
        with pytest.raises(ProtocolError, match="login"):
            await download(registry, file, tmp_path / "partial", RateLimit(0, SYSTEM_CLOCK), lambda _: None)
    assert (tmp_path / "partial").read_bytes() == b""


async def test_the_download_respects_its_rate_limit(tmp_path: Path) -> None:
    rng = random.Random(1)
    content = rng.randbytes(100_000)
    file = SignedFile("m/1/edge.onnx", len(content), hashlib.sha256(content).hexdigest(), {})
    server = CuttingServer(content, rng)
    server.cuts = CUTS
    begun_s = SYSTEM_CLOCK.monotonic_s()
    async with served(server) as registry:
        await download(registry, file, tmp_path / "partial", RateLimit(200_000, SYSTEM_CLOCK), lambda _: None)
    assert SYSTEM_CLOCK.monotonic_s() - begun_s >= 0.5
