"""CPU time of one call from the gateway to a server behind it: httpx over its own transport, and over aiohttp.

    python bench/behind.py [--calls N]

CPU time of this process, which only calls; the server is another process that answers each request with the same
bytes. The rounds alternate, and the smallest figure counts. Prints, and writes bench/results/behind.json.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import cast

import uvloop

from bench.figures import Figure, report
from firstline_core.protocol.http_client import ClientSettings, HttpClient
from firstline_gateway.executors.oip.http_transport import Transport

_ROUNDS = 7
_BODIES_BYTES = {"1 KB": 1_000, "600 KB": 602_112}
_ANSWER = b"x" * 240
_PATH = "/v2/models/m/versions/1/infer"

Call = Callable[[bytes], Awaitable[int]]


def main() -> int:
    """Measures both transports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=500, help="in each round (default: %(default)s)")
    wanted = parser.parse_args()
    listening = socket.create_server(("127.0.0.1", 0))
    serving = multiprocessing.get_context("fork").Process(target=_serve, args=(listening,), daemon=True)
    serving.start()
    try:
        return report("behind", uvloop.run(_measure(listening.getsockname()[1], wanted.calls)))
    finally:
        serving.terminate()
        serving.join()


async def _measure(port: int, calls: int) -> list[Figure]:
    settings = ClientSettings(f"http://127.0.0.1:{port}", tls=False)
    default = HttpClient(settings, limit_bytes=1 << 26)
    chosen = HttpClient(settings, limit_bytes=1 << 26, transport=Transport(tls=False))
    clients = {"httpx": default, "httpx over aiohttp, the gateway's choice": chosen}
    headers, found = {"Content-Type": "application/octet-stream"}, []

    def by(client: HttpClient) -> Call:
        async def call(body: bytes) -> int:
            return (await client.exchange("POST", _PATH, headers, body, 10.0)).status

        return call

    for size, size_bytes in _BODIES_BYTES.items():
        body, least_us = b"x" * size_bytes, dict.fromkeys(clients, float("inf"))
        for _ in range(_ROUNDS):
            for name, client in clients.items():
                least_us[name] = min(least_us[name], await _round_us(by(client), body, calls))
        found += [Figure(f"{size}: a call by {name}", round(us, 1), "us of a core") for name, us in least_us.items()]
    for client in clients.values():
        await client.close()
    return found


async def _round_us(call: Call, body: bytes, calls: int) -> float:
    began_s = time.process_time()
    for _ in range(calls):
        assert await call(body) == 200
    return (time.process_time() - began_s) / calls * 1e6


def _serve(listening: socket.socket) -> None:
    """Answers every request with 200, once it is there."""

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._transport, self._left, self._head = transport, 0, b""

        def data_received(self, data: bytes) -> None:
            if not self._left:
                self._head += data
                head, found, rest = self._head.partition(b"\r\n\r\n")
                if not found:
                    return
                (length,) = [
                    int(line.partition(b":")[2])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                ]
                self._head, self._left, data = b"", length, rest
            self._left -= len(data)
            if not self._left:
                answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_ANSWER), _ANSWER)
                cast("asyncio.Transport", self._transport).write(answer)

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Server, sock=listening)
        await server.serve_forever()

    uvloop.run(run())


if __name__ == "__main__":
    sys.exit(main())
