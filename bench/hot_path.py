"""What a request costs the gateway's process, without a network: repeatable, whatever else the machine does.

The server's own protocol is fed the bytes of so many connections at once, and their answers are counted, with the
default settings, keys, limits, metrics and the log on; beside it the raw limit (`load/raw_asgi.py`), fed the same. What
the system's calls cost is left out on both sides; `make bench` has it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import uvicorn
import uvloop
from load.raw_asgi import RawAsgi
from serving import bodies, ours
from serving.models import KINDS, rows
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from firstline_core.telemetry import logs
from firstline_gateway import server
from firstline_gateway.opening import open_gateway
from firstline_gateway.settings.load import load

_WARM_UP = 2000


class Cost(NamedTuple):
    """Of one request: processor time, calls of Python functions, and calls of others from Python."""

    us: float
    calls: float
    others: float


class Sink(asyncio.Transport):
    """A connection without a network: what is written is counted."""

    written = 0
    last = b""

    def write(self, data: Any) -> None:
        Sink.written += 1
        Sink.last = data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"sockname": ("127.0.0.1", 80), "peername": ("127.0.0.1", 1)}.get(name, default)

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


async def asked(connections: list[Any], data: bytes, requests: int, beside: int = 1) -> None:
    """Asks on every connection, and again once all are answered."""
    for _ in range(requests // len(connections)):
        due = Sink.written + beside * len(connections)
        for connection in connections:
            connection.data_received(data)
        while Sink.written < due:  # noqa: ASYNC110 (it is the loop that is measured)
            await asyncio.sleep(0)
    await asyncio.sleep(0)


async def cost(make: Callable[[], Any], data: bytes, in_flight: int, requests: int, writes: int) -> Cost:
    """What a request costs, asked in turns of so many."""
    connections = [make() for _ in range(in_flight)]
    for connection in connections:
        connection.connection_made(Sink())
    await asked(connections, data, max(_WARM_UP, requests // 10), writes)
    if not bytes(Sink.last if writes > 1 else Sink.last[:15]).startswith(b"HTTP/1.1 200") and writes == 1:
        raise SystemExit(f"answered {Sink.last!r}")
    taken = []
    for _ in range(5):
        before_s = time.process_time()
        await asked(connections, data, requests, writes)
        taken.append((time.process_time() - before_s) / requests * 1e6)
    counted: Counter[str] = Counter()
    names: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: object) -> None:
        counted[event] += 1
        if event == "call":
            names[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            names[f"  {getattr(argument, '__qualname__', argument)}"] += 1

    some = 64 * in_flight
    sys.setprofile(note)
    try:
        await asked(connections, data, some, writes)
    finally:
        sys.setprofile(None)
    if os.environ.get("NAMES"):
        for name, times in names.most_common(200):
            print(f"{times / some:8.2f} {name}", file=sys.stdout)
    for connection in connections:
        connection.connection_lost(None)
    return Cost(min(taken), counted["call"] / some, counted["c_call"] / some)


def message(body: bodies.Body, headers: dict[str, str]) -> bytes:
    """A request as wrk sends it."""
    lines = ["POST /v2/models/s/infer HTTP/1.1", "Host: 127.0.0.1:8000", f"Content-Length: {len(body.content)}"]
    lines += [f"{name}: {value}" for name, value in (body.headers | headers).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body.content


async def measured(folder: Path, headers: dict[str, str], requests: int, only: str) -> None:
    """Prints it."""
    gateway = open_gateway(load(folder / "gateway.toml"))
    await gateway.start()
    running = server.http_server(gateway, 5)
    running.config.load()
    running.lifespan = running.config.lifespan_class(running.config)
    ours_made = partial(
        running.config.http_protocol_class, config=running.config, server_state=running.server_state, app_state={}
    )
    raw = uvicorn.Config(
        RawAsgi(folder / "models" / "s" / "model.onnx"), lifespan="off", log_config=None, access_log=False
    )
    raw.load()
    raw_made = partial(HttpToolsProtocol, config=raw, server_state=uvicorn.server.ServerState(), app_state={})
    for form, made in (("binary", bodies.v2_binary), ("JSON", bodies.v2_json)):
        for in_flight in (32, 1):
            body = made(rows(KINDS["s"]))
            for who, make, said, writes in (("gateway", ours_made, headers, 1), ("raw ASGI", raw_made, {}, 2)):
                what = f"{who}, {form}, {in_flight} in flight"
                if only in what:
                    found = await cost(make, message(body, said), in_flight, requests, writes)
                    print(
                        f"{what:36} {found.us:7.1f} us  {found.calls:6.1f} calls  {found.others:6.1f} others",
                        file=sys.stdout,
                    )
    await gateway.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000, help="measured at a time (default: %(default)s)")
    parser.add_argument("--only", default="", help="what of it, by a part of its name")
    said = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="firstline-bench-") as name:
        folder = Path(name)
        headers = ours.gateway_folder(folder, KINDS)
        os.chdir(folder)
        sys.stderr = (folder / "gateway.log").open("w", buffering=1)
        logs.configure("info", "text")
        uvloop.run(measured(folder, headers, said.requests // 32 * 32, said.only))


if __name__ == "__main__":
    main()
