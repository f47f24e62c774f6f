"""A full model in two parts, and the process that runs the second part behind a simulated link."""

from __future__ import annotations

import math
import multiprocessing
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from firstline.workbench.splitting.checkpoint import Checkpoint
from firstline.workbench.splitting.measure import full_of, halves
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import Bundle
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import PROBABILITIES, Arrays


@dataclass(frozen=True, slots=True)
class CutAt:
    """A cut: the tensor and the form of its checkpoint."""

    tensor: str
    form: str


class CutModel:
    """A model and its parts, loaded until the process ends.

    Args:
        bundle: bundle that holds the full model.
        cuts: cuts to prepare; later calls name them by index.
    """

    def __init__(self, bundle: Bundle, cuts: tuple[CutAt, ...]) -> None:
        options, stack = RuntimeOptions(threads=1), ExitStack()
        self._whole = load_model(bundle, full_of(bundle), options)
        self._input = bundle.manifest.inputs[0].name
        self._halves = [stack.enter_context(halves(bundle, cut.tensor, options)) for cut in cuts]
        self._forms: list[Checkpoint] = [
            next(form for form in made.checkpoints() if form.form == cut.form)
            for made, cut in zip(self._halves, cuts, strict=True)
        ]
        self._stack = stack

    def whole(self, encoded: bytes) -> int:
        """Returns the class that the whole model predicts."""
        return int(self._whole.run(self._prepared(encoded))[PROBABILITIES].argmax())

    def begin(self, cut: int, encoded: bytes) -> bytes:
        """Runs the first part and returns the checkpoint."""
        return self._forms[cut].pack(self._halves[cut].begin(self._prepared(encoded)))

    def finish(self, cut: int, checkpoint: bytes) -> int:
        """Returns the class that the second part computes from a checkpoint."""
        values = self._forms[cut].unpack(checkpoint)
        answer = self._halves[cut].finish(values, self._whole, {"": values})
        return int(answer[PROBABILITIES].argmax())

    def _prepared(self, encoded: bytes) -> Arrays:
        return self._whole.prepare({self._input: np.array([encoded], np.object_)})


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
    """Starts a process with its own model, which runs the second part."""
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
