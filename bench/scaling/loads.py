"""What is asked of the processes under test, and what their processors did meanwhile."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from load.models import FEATURES

from firstline_core.ids import new_request_id
from firstline_core.protocol.http import headers_for
from firstline_core.protocol.oip import encode_request
from firstline_core.types import InferRequest, Tensor

HOST = "127.0.0.1"
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_s(pids: Iterable[int]) -> float:
    """Processor time of processes so far, their ended children included."""
    total = 0
    for pid in pids:
        said = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, said[11:15]))
    return total / _TICKS


def resident_bytes(pid: int) -> int:
    """Memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def family(pid: int) -> list[int]:
    """A process and its children."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def request(model: str, *, promised: bool = False) -> InferRequest:
    """One row."""
    rows = np.random.default_rng().normal(size=(1, FEATURES)).astype(np.float32)
    return InferRequest(model, (Tensor("x", rows),), new_request_id(), binary_output=True, promised=promised)


def http_request(asked: InferRequest, token: str) -> bytes:
    """As it goes over a connection."""
    encoded = encode_request(asked)
    headers = headers_for(encoded) | {"Authorization": f"Bearer {token}", "Host": "bench"}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    length = (
        "" if any(name.lower() == "content-length" for name in headers) else f"Content-Length: {len(encoded.body)}\r\n"
    )
    return f"POST /v2/models/{asked.model}/infer HTTP/1.1\r\n{head}{length}\r\n".encode() + encoded.body


async def ask_over_http(port: int, make: Callable[[], bytes], count: int, at_once: int) -> None:
    """So many requests, each connection with one under way.

    Raises:
        RuntimeError: one was not answered with 200.
    """
    left = iter(range(count))

    async def one() -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        for _ in left:
            writer.write(make())
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in head[:20]:
                raise RuntimeError(head.decode() + (await reader.read(500)).decode())
            (length,) = [
                int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
            ]
            await reader.readexactly(length)
        writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(one())


async def handshakes(port: int, authority: Path, count: int) -> None:
    """So many new TLS connections, one after the other, none resumed."""
    for _ in range(count):
        context = ssl.create_default_context(cafile=str(authority))
        _, writer = await asyncio.open_connection(HOST, port, ssl=context)
        writer.transport.abort()


def mqtt_connect(name: str) -> bytes:
    """CONNECT of MQTT 5, which keeps no session and is never asked for a sign of life."""
    payload = _text("MQTT") + bytes([5, 2, 0, 0, 0]) + _text(name)
    return bytes([0x10]) + _length(len(payload)) + payload


def mqtt_subscribe(*topics: str) -> bytes:
    """SUBSCRIBE of MQTT 5, QoS 1."""
    payload = bytes([0, 1, 0]) + b"".join(_text(topic) + b"\x01" for topic in topics)
    return bytes([0x82]) + _length(len(payload)) + payload


async def devices(port: int, count: int, tls: ssl.SSLContext) -> list[asyncio.StreamWriter]:
    """So many connections to a broker, each subscribed to what a device subscribes to."""
    found: list[asyncio.StreamWriter] = []
    for number in range(count):
        reader, writer = await asyncio.open_connection(HOST, port, ssl=tls, server_hostname="localhost")
        writer.write(mqtt_connect(f"device-{number}"))
        await _packet(reader)
        writer.write(mqtt_subscribe(f"firstline/v1/device-{number}/res", f"firstline/v1/device-{number}/desired"))
        await _packet(reader)
        found.append(writer)
        writer.transport.reader = reader  # type: ignore[attr-defined] # kept, for what still comes
    return found


async def ping(connections: list[asyncio.StreamWriter], rounds: int) -> None:
    """Signs of life, each answered by the broker."""
    for _ in range(rounds):
        for writer in connections:
            writer.write(b"\xc0\x00")
        for writer in connections:
            await _packet(writer.transport.reader)  # type: ignore[attr-defined]


async def _packet(reader: asyncio.StreamReader) -> bytes:
    await reader.readexactly(1)
    length = shift = 0
    while True:
        (byte,) = await reader.readexactly(1)
        length |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            return await reader.readexactly(length)


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def _length(number: int) -> bytes:
    assert number < 128
    return bytes([number])
