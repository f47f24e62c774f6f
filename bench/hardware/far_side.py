"""A gateway that finishes what a device began, behind a link of a given bandwidth and round trip. A process."""

from __future__ import annotations

import math
import multiprocessing
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.hardware.cut_model import CutModel

_HEAD = struct.Struct("<iI")  # which cut (-1: the input itself), and how many bytes follow
_ANSWER = struct.Struct("<i")  # the class
_PROBE = -2
_PROBES = 5


class FarSide:
    """The device's end of the link.

    Args:
        connection: TCP connection to the process that finishes the model.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._bytes_per_s, self._delay_s = math.inf, 0.0

    def become(self, bytes_per_s: float, round_trip_ms: float) -> float:
        """Changes the link and returns the round trip measured over it, in ms: median of five without a body."""
        self._bytes_per_s, self._delay_s = bytes_per_s, round_trip_ms / 1000
        took_s = []
        for _ in range(_PROBES):
            began_s = time.perf_counter()
            self.ask(_PROBE, b"")
            took_s.append(time.perf_counter() - began_s)
        return 1000 * statistics.median(took_s)

    def ask(self, cut: int, body: bytes) -> int:
        """Returns the class of a checkpoint or of an encoded input, once the link has carried it."""
        content = _HEAD.pack(cut, len(body)) + body
        time.sleep(self._delay_s + (len(content) + _ANSWER.size) / self._bytes_per_s)
        self._socket.sendall(content)
        return int(_ANSWER.unpack(_exactly(self._socket, _ANSWER.size))[0])


@contextmanager
def far_side(make: Callable[[], CutModel]) -> Iterator[FarSide]:
    """Starts a process with a model of its own that finishes what the device began."""
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = context.Process(target=_serve, args=(make, listener.getsockname()[1]), daemon=True)
        process.start()
        connection, _ = listener.accept()
    with connection:
        yield FarSide(connection)
    process.join()


def _serve(make: Callable[[], CutModel], port: int) -> None:
    model = make()
    with socket.create_connection(("127.0.0.1", port)) as connection, suppress(ConnectionResetError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while head := connection.recv(_HEAD.size, socket.MSG_WAITALL):
            cut, size_bytes = _HEAD.unpack(head)
            body = _exactly(connection, size_bytes)
            connection.sendall(_ANSWER.pack(_class(model, cut, body)))


def _class(model: CutModel, cut: int, body: bytes) -> int:
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
