"""The throughput of detectors on the gateway, next to ONNX Runtime in a process of its own, on the same cores."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from bench.figures import Figure, at_least, plain
from bench.serving.processes import Server, free_port, post, started, undisturbed
from bench.support.bundles import write_manifest
from bench.tasks.detection import images, recipe_bundle
from firstline_core.bundle.loading import LoadedModel, load_model
from firstline_core.bundle.store import Bundle
from firstline_core.runtime.select import RuntimeOptions

_MODELS = ("fastestdet", "yolox-nano")
_IN_FLIGHT = 8
_TURNS, _TURN_S = 11, 2.0


class Turn(NamedTuple):
    """What one side did for some seconds.

    Attributes:
        images_per_s: answered.
        cpu_ms: of the answering process, for each image.
    """

    images_per_s: float
    cpu_ms: float


def figures(data: Path) -> Iterator[Figure]:
    """Yields the throughput of both sides, which take turns, and its ratio."""
    contents = [file.read_bytes() for file in images(data)]
    cores = frozenset(os.sched_getaffinity(0))
    for name in _MODELS:
        with ExitStack() as opened:
            opened.enter_context(undisturbed())
            folder = Path(opened.enter_context(TemporaryDirectory()))
            at = folder / "models" / "m"
            at.mkdir(parents=True)
            bundle = _full_only(recipe_bundle(name, data, at), at)
            model = bundle.manifest.models[0]
            loaded = opened.enter_context(closing(load_model(bundle, model, RuntimeOptions(threads=1))))
            server = opened.enter_context(_gateway(folder, cores, contents[0]))
            turns = [(_bare(loaded, contents, len(cores)), _asked(server, contents)) for _ in range(_TURNS)]
        bare, ours = (np.median([turn[side] for turn in turns], axis=0) for side in (0, 1))
        yield plain(f"{name}: images a second in a bare process", float(bare[0]), "1/s", 1)
        yield plain(f"{name}: images a second of a gateway", float(ours[0]), "1/s", 1)
        yield plain(f"{name}: processor time of an image in a bare process", float(bare[1]), "ms", 2)
        yield plain(f"{name}: processor time of an image in a gateway", float(ours[1]), "ms", 2)
        ratio = float(np.median([found.images_per_s / raw.images_per_s for raw, found in turns]))
        yield at_least(f"{name}: throughput of a gateway, relative to the bare process", ratio, 0.9)


def _full_only(bundle: Bundle, folder: Path) -> Bundle:
    """Writes the same bundle with its edge model as the full one."""
    manifest = bundle.manifest
    full = replace(manifest.edge[0], id="full")
    return write_manifest(folder, (), (), full=full, task=manifest.task, policy=manifest.policy, name="m")


@contextmanager
def _gateway(folder: Path, cores: frozenset[int], image: bytes) -> Iterator[Server]:
    """A gateway with its defaults, except that it needs no key."""
    (folder / "gateway.toml").write_text('[auth]\nmode = "off"\n')
    port = free_port()
    command = [sys.executable, "-m", "firstline_gateway", "run", "--config", folder / "gateway.toml", "--port", port]
    with started(
        [str(part) for part in command],
        port=port,
        on=cores,
        log=folder / "gateway.log",
        answers=lambda at: post(at, "/firstline/v1/models/m/infer", {}, image)[0] == 200,
    ) as server:
        yield server


def _asked(server: Server, contents: Sequence[bytes]) -> Turn:
    """Sends images over some connections, each the next one as soon as the one before is answered."""
    head = "POST /firstline/v1/models/m/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n"
    requests = [head.format(len(content)).encode() + content for content in contents]

    def ask(until_s: float, numbers: Iterator[int]) -> int:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            done = 0
            while time.monotonic() < until_s:
                connection.sendall(requests[next(numbers) % len(requests)])
                _read_answer(connection)
                done += 1
            return done

    return _turn(ask, _IN_FLIGHT, server.cpu_s)


def _read_answer(connection: socket.socket) -> None:
    """Reads one answer with little work: the client uses the same cores."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(1 << 16)
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
    while len(body) < length:
        body += connection.recv(1 << 16)
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"the gateway answered: {body.decode()}")


def _bare(loaded: LoadedModel, contents: Sequence[bytes], threads: int) -> Turn:
    """Decodes and runs images with one session on each core."""

    def work(until_s: float, numbers: Iterator[int]) -> int:
        done = 0
        while time.monotonic() < until_s:
            content = contents[next(numbers) % len(contents)]
            loaded.run(loaded.prepare({"image": np.array([content], object)}))
            done += 1
        return done

    return _turn(work, threads, time.process_time)


def _turn(work: Callable[[float, Iterator[int]], int], threads: int, cpu_s: Callable[[], float]) -> Turn:
    numbers, before_s, began_s = count(), cpu_s(), time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(lambda _: work(began_s + _TURN_S, numbers), range(threads)))
    return Turn(done / (time.monotonic() - began_s), 1000 * (cpu_s() - before_s) / done)
