"""What HTTP clients take for one escalation of 1 KB: a binary V2 request there, a small answer back, kept connections.

    python bench/escalating_client.py [--requests 200] [--repeats 15]

They take short turns in the same run, against the same responder in a process of its own (device/responder.py).
CPU is this process's, all its threads; a figure is the least of the turns, for what else the machine does is nobody's
cost. A client whose package is not installed is left out. Writes bench/results/escalation.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import importlib.util
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
from figures import Figure, report

from firstline_core.ids import new_request_id
from firstline_core.protocol.http import headers_for
from firstline_core.protocol.http_client import HttpClient
from firstline_core.protocol.oip import DEFAULT_LIMITS, encode_request
from firstline_core.types import InferRequest, Tensor
from firstline_edge.cloud.http_link import HttpLink
from firstline_edge.cloud.http_pool import Call, HttpLinkSettings, make_pool

_RESPONDER = Path(__file__).parent / "device" / "responder.py"
_TIMEOUT_S = 30.0
_PATH = "/v2/models/s/infer"

_TENSOR = Tensor("x", np.zeros((1, 1024), np.uint8))
_ENCODED = encode_request(InferRequest("s", (_TENSOR,), new_request_id(), binary_output=True), binary=True)
_HEADERS = dict(headers_for(_ENCODED))

Exchange = Callable[[], Awaitable[object]]


class Spent(NamedTuple):
    """Of one request, in microseconds."""

    p50_us: float
    cpu_us: float


@contextlib.asynccontextmanager
async def _http_client(port: int) -> AsyncIterator[Exchange]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    threads = ThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()

    def exchange() -> bytes:
        connection.request("POST", _PATH, _ENCODED.body, _HEADERS)
        return connection.getresponse().read()

    yield lambda: loop.run_in_executor(threads, exchange)
    threads.shutdown()
    connection.close()


@contextlib.asynccontextmanager
async def _httpx(port: int) -> AsyncIterator[Exchange]:
    async with httpx.AsyncClient(trust_env=False) as client:
        yield lambda: client.post(f"http://127.0.0.1:{port}{_PATH}", content=_ENCODED.body, headers=_HEADERS)


@contextlib.asynccontextmanager
async def _aiohttp(port: int) -> AsyncIterator[Exchange]:
    import aiohttp

    async with aiohttp.ClientSession() as session:

        async def exchange() -> bytes:
            url = f"http://127.0.0.1:{port}{_PATH}"
            async with session.post(url, data=_ENCODED.body, headers=_HEADERS) as response:
                return await response.read()

        yield exchange


@contextlib.asynccontextmanager
async def _httptools(port: int) -> AsyncIterator[Exchange]:
    client = HttpClient(f"http://127.0.0.1:{port}", token="", tls=None, limit_bytes=1 << 20)
    yield lambda: client.exchange("POST", _PATH, _HEADERS, _ENCODED.body, _TIMEOUT_S)
    await client.close()


@contextlib.asynccontextmanager
async def _pool(port: int) -> AsyncIterator[Exchange]:
    pool = make_pool(HttpLinkSettings(f"http://127.0.0.1:{port}"), 16, None, DEFAULT_LIMITS)
    yield lambda: pool.exchange(Call("POST", _PATH, _ENCODED, payer="http"), "", _TIMEOUT_S)
    await pool.close()


@contextlib.asynccontextmanager
async def _link(port: int) -> AsyncIterator[Exchange]:
    link = HttpLink(HttpLinkSettings(f"http://127.0.0.1:{port}"))
    yield lambda: link.infer(InferRequest("s", (_TENSOR,), new_request_id()), _TIMEOUT_S)
    await link.close()


_CLIENTS = {
    "http.client in a thread": _http_client,
    "httpx": _httpx,
    "aiohttp": _aiohttp,
    "httptools, this project's own": _httptools,
    "the agent's pool": _pool,
    "the agent's link, encoding and decoding included": _link,
}


async def _spent(exchange: Exchange, requests: int) -> Spent:
    times_s = []
    cpu_s = time.process_time()
    for _ in range(requests):
        started_s = time.perf_counter()
        await exchange()
        times_s.append(time.perf_counter() - started_s)
    return Spent(float(np.median(times_s)) * 1e6, (time.process_time() - cpu_s) / requests * 1e6)


async def measured(port: int, requests: int, repeats: int) -> list[Figure]:
    """Of each client that there is."""
    there = {name: make for name, make in _CLIENTS.items() if name != "aiohttp" or importlib.util.find_spec("aiohttp")}
    found: dict[str, list[Spent]] = {name: [] for name in there}
    async with contextlib.AsyncExitStack() as opened:
        exchanges = {name: await opened.enter_async_context(make(port)) for name, make in there.items()}
        for exchange in exchanges.values():
            await _spent(exchange, 50)
        for _ in range(repeats):
            for name, exchange in exchanges.items():
                found[name].append(await _spent(exchange, requests))
    figures = []
    for name, spent in found.items():
        figures.append(Figure(f"{name}: p50", round(min(each.p50_us for each in spent), 1), "us"))
        figures.append(Figure(f"{name}: CPU", round(min(each.cpu_us for each in spent), 1), "us"))
    return figures


def main() -> int:
    """Measures and reports; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200, help="of a turn")
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    with subprocess.Popen([sys.executable, str(_RESPONDER), "http"], stdout=subprocess.PIPE, text=True) as responder:
        try:
            port = int(responder.stdout.readline()) if responder.stdout is not None else 0
            return report("escalation", asyncio.run(measured(port, given.requests, given.repeats)))
        finally:
            responder.terminate()


if __name__ == "__main__":
    sys.exit(main())
