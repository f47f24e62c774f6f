"""A gateway that finishes what a device began, behind a link of a given bandwidth and round trip. A process."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from bench.support.proxy import ChaosProxy, Network

if TYPE_CHECKING:
    from bench.hardware.cut_model import CutModel

_HEAD = struct.Struct("<iI")  # which cut (-1: the input itself), and how many bytes follow
_ANSWER = struct.Struct("<i")  # the class
_PROBE = -2
_PROBES = 5


class FarSide:
    """The device's end.

    Args:
        control: to the process.
        port: of the link.
    """

    def __init__(self, control: Connection, port: int) -> None:
        self._control = control
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def become(self, bytes_per_s: float, round_trip_ms: float) -> float:
        """Changes the link; what a round trip really takes over it, in ms: median of five without a body."""
        self._control.send(Network(delay_s=round_trip_ms / 2000, rate_bytes_s=bytes_per_s))
        self._control.recv()
        took_s = []
        for _ in range(_PROBES):
            began_s = time.perf_counter()
            self.ask(_PROBE, b"")
            took_s.append(time.perf_counter() - began_s)
        return 1000 * statistics.median(took_s)

    def ask(self, cut: int, body: bytes) -> int:
        """The class, of a checkpoint or of an encoded input."""
        self._socket.sendall(_HEAD.pack(cut, len(body)) + body)
        return int(_ANSWER.unpack(_exactly(self._socket, _ANSWER.size))[0])

    def close(self) -> None:
        self._socket.close()
        self._control.send(None)


@contextmanager
def far_side(make: Callable[[], CutModel]) -> Iterator[FarSide]:
    """Starts it with a model of its own."""
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    process = context.Process(target=_serve, args=(make, far), daemon=True)
    process.start()
    side = FarSide(near, near.recv())
    try:
        yield side
    finally:
        side.close()
        process.join()


def _serve(make: Callable[[], CutModel], control: Connection) -> None:
    model = make()
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_answer, args=(listener, model), daemon=True).start()
    asyncio.run(_link(listener.getsockname()[1], control))


async def _link(server_port: int, control: Connection) -> None:
    loop = asyncio.get_running_loop()
    async with ChaosProxy(server_port) as proxy:
        control.send(proxy.port)
        while (network := await loop.run_in_executor(None, control.recv)) is not None:
            await proxy.become(network)
            control.send(None)


def _answer(listener: socket.socket, model: CutModel) -> None:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, suppress(ConnectionResetError):  # as the link ends it
        while head := connection.recv(_HEAD.size, socket.MSG_WAITALL):
            cut, size_bytes = _HEAD.unpack(head)
            body = _exactly(connection, size_bytes)
            connection.sendall(_ANSWER.pack(_said(model, cut, body)))


def _said(model: CutModel, cut: int, body: bytes) -> int:
    if cut == _PROBE:
        return 0
    return model.finish(cut, body) if cut >= 0 else model.whole(body)


def _exactly(connection: socket.socket, size_bytes: int) -> bytes:
    parts = bytearray()
    while len(parts) < size_bytes:
        part = connection.recv(size_bytes - len(parts))
        if not part:
            raise ConnectionError("the other side is gone")
        parts += part
    return bytes(parts)
