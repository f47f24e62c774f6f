"""The throughput of detectors on the gateway, next to bare ONNX Runtime with the same decoding, on the same cores."""

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
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import Bundle
from firstline_core.runtime.memory import keep_freed_memory
from firstline_core.runtime.select import RuntimeOptions

_MODELS = ("fastestdet", "yolox-nano")
_IN_FLIGHT = 8
_PATH = "/firstline/v1/models/m/infer"
_TURNS, _TURN_S = 9, 2.0


class Turn(NamedTuple):
    """What one side did for some seconds.

    Attributes:
        images_per_s: answered.
        cpu_ms: of the answering process, for each image.
    """

    images_per_s: float
    cpu_ms: float


def figures(data: Path) -> Iterator[Figure]:
    """Yields the throughput of a gateway, of a bare server with the same client, and of a loop in this process.

    The bare server and the loop keep freed memory like the gateway.
    """
    contents = [file.read_bytes() for file in images(data)]
    keep_freed_memory()  # as the gateway does; what the loop takes would depend on earlier parts
    for name in _MODELS:
        with ExitStack() as opened:
            alone = opened.enter_context(undisturbed())
            folder = Path(opened.enter_context(TemporaryDirectory()))
            at = folder / "models" / "m"
            at.mkdir(parents=True)
            bundle = _full_only(recipe_bundle(name, data, at), at)
            model = bundle.manifest.models[0]
            loaded = opened.enter_context(closing(load_model(bundle, model, RuntimeOptions(threads=1))))
            (folder / "gateway.toml").write_text('[auth]\nmode = "off"\n')
            gateway = ("firstline_gateway", "run", "--config", folder / "gateway.toml", "--port")
            bare, ours = (
                opened.enter_context(_server(command, folder, contents[0]))
                for command in (("bench.tasks.bare_server", at), gateway)
            )
            turns = [(_loop(loaded, contents), _asked(bare, contents), _asked(ours, contents)) for _ in range(_TURNS)]
        per_s, cpu_ms = np.median(turns, axis=0).T
        for what, images_per_s, each_ms in zip(("tuned loop", "bare server", "gateway"), per_s, cpu_ms, strict=True):
            yield plain(f"{name}: images a second of a {what}", float(images_per_s), "1/s", 1)
            yield plain(f"{name}: processor time of an image in a {what}", float(each_ms), "ms", 2)
        ratios = np.array([[turn[-1].images_per_s / each.images_per_s for each in turn[:2]] for turn in turns])
        (of_loop, of_bare), spread = np.median(ratios, axis=0), np.subtract(*np.percentile(ratios[:, 0], (75, 25)))
        yield at_least(f"{name}: throughput of a gateway, relative to the tuned loop", float(of_loop), 0.9)
        yield plain(f"{name}: interquartile range of that in {_TURNS} turns", float(spread))
        yield plain(f"{name}: measured before all other work of the machine (1: yes, 0: not allowed)", float(alone))
        yield plain(f"{name}: throughput of a gateway, relative to the bare server", float(of_bare))


def _full_only(bundle: Bundle, folder: Path) -> Bundle:
    """Writes the same bundle with its edge model as the full one."""
    manifest = bundle.manifest
    full = replace(manifest.edge[0], id="full")
    return write_manifest(folder, (), (), full=full, task=manifest.task, policy=manifest.policy, name="m")


@contextmanager
def _server(command: Sequence[str | Path], folder: Path, image: bytes) -> Iterator[Server]:
    """A server on all cores; its defaults hold, except that it needs no key."""
    port = free_port()
    with started(
        [sys.executable, "-m", *command, str(port)],
        port=port,
        on=frozenset(os.sched_getaffinity(0)),
        log=folder / "server.log",
        answers=lambda at: post(at, _PATH, {}, image)[0] == 200,
    ) as server:
        yield server


def _asked(server: Server, contents: Sequence[bytes]) -> Turn:
    """Sends images over some connections, each the next one as soon as the one before is answered."""
    head = f"POST {_PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {{}}\r\n\r\n"
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


def _loop(loaded: LoadedModel, contents: Sequence[bytes]) -> Turn:
    """Decodes and runs images without a client, with one session on each core."""

    def work(until_s: float, numbers: Iterator[int]) -> int:
        done = 0
        while time.monotonic() < until_s:
            content = contents[next(numbers) % len(contents)]
            loaded.run(loaded.prepare({"image": np.array([content], object)}))
            done += 1
        return done

    return _turn(work, len(os.sched_getaffinity(0)), time.process_time)


def _turn(work: Callable[[float, Iterator[int]], int], threads: int, cpu_s: Callable[[], float]) -> Turn:
    numbers, before_s, began_s = count(), cpu_s(), time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(lambda _: work(began_s + _TURN_S, numbers), range(threads)))
    return Turn(done / (time.monotonic() - began_s), 1000 * (cpu_s() - before_s) / done)
