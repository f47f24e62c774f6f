"""The agent as a process: what a request takes over loopback TCP and a Unix socket, its start, and its memory."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.device import small
from bench.device.in_process import Times, request_of, rows
from firstline_core.protocol.http import headers_for
from firstline_core.protocol.oip import encode_request

_RESPONDER, _AGENT = (Path(__file__).parent / name for name in ("responder.py", "agent_alone.py"))
_WARM_UP = 100


class Client:
    """A raw client: one connection, one request at a time, blocking."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")

    def ask(self, row: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
        """The answer's body."""
        request = encode_request(request_of(row), binary=True)
        head = "".join(f"{name}: {value}\r\n" for name, value in headers_for(request).items())
        line = f"POST /v2/models/{small.NAME}/infer HTTP/1.1\r\nHost: localhost\r\n"
        self._connection.sendall(f"{line}{head}Content-Length: {len(request.body)}\r\n\r\n".encode() + request.body)
        status, length = self._file.readline(), 0
        while (header := self._file.readline()) != b"\r\n":
            name, _, value = header.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        body = self._file.read(length)
        if b" 200 " not in status:
            raise RuntimeError(f"{status!r} {body!r}")
        return body

    def close(self) -> None:
        self._file.close()
        self._connection.close()


@contextlib.contextmanager
def running(folder: Path, bundle: Path, gateway: int, *settings: str) -> Iterator[tuple[int, int, Path]]:
    """An agent's process id, its port and its Unix socket; requests are not logged, line by line."""
    path = folder / "agent.sock"
    given = (
        f"agent.state_dir={folder / 'state'}",
        f'models.directories=["{bundle}"]',
        f'links=[{{"kind": "http", "url": "http://127.0.0.1:{gateway}"}}]',
        "log.level=warning",
        *settings,
    )
    command = [sys.executable, str(_AGENT), "run", "--port", "0", "--socket", str(path), "-o", "json"]
    command += [part for setting in given for part in ("--set", setting)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            said = process.stdout.readline() if process.stdout is not None else ""
            yield process.pid, int(json.loads(said)["url"].rpartition(":")[2]), path
        finally:
            process.terminate()


class Process(NamedTuple):
    """How it is to have an agent.

    Attributes:
        first_s: from its start to its first answer.
        loaded_mb: resident memory after that, in megabytes of 10^6.
        remembering_mb: and once its cache holds the answers to all inputs of this measurement.
    """

    first_s: float
    loaded_mb: float
    remembering_mb: float


def measure(folder: Path, requests: int) -> tuple[Times, Process]:
    """Microseconds by way and answer, and the agent as a process."""
    kept, escalated = (folder / name / small.NAME for name in ("kept-s", "escalated-s"))
    small.small_bundle(kept, 0.0)
    small.small_bundle(escalated, 1.1)
    times: Times = {}
    with subprocess.Popen([sys.executable, str(_RESPONDER), "http"], stdout=subprocess.PIPE, text=True) as responder:
        try:
            gateway = int(responder.stdout.readline()) if responder.stdout is not None else 0
            (folder / "a").mkdir()
            started_s = time.perf_counter()
            with running(folder / "a", kept, gateway) as (pid, port, path):
                client = Client(socket.create_connection(("127.0.0.1", port)))
                client.ask(rows(1, 1)[0])
                first_s = time.perf_counter() - started_s
                loaded_mb = _resident_mb(pid)
                client.close()
                for way, connect in _ways(port, path):
                    _confident_and_memory(times, way, Client(connect()), requests)
                process = Process(first_s, loaded_mb, _resident_mb(pid))
            for name, bundle in (("disk hit", kept), ("escalation", escalated)):
                place = folder / name.replace(" ", "-")
                place.mkdir()
                with running(place, bundle, gateway, "cache.memory_limit_bytes=0") as (
                    _,
                    port,
                    path,
                ):
                    for way, connect in _ways(port, path):
                        _one(times, f"over {way}: {name}", Client(connect()), requests, twice=name == "disk hit")
        finally:
            responder.terminate()
    return times, process


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024 / 1e6


def _ways(port: int, path: Path) -> list[tuple[str, Callable[[], socket.socket]]]:
    def tcp() -> socket.socket:
        found = socket.create_connection(("127.0.0.1", port))
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found

    def unix() -> socket.socket:
        found = socket.socket(socket.AF_UNIX)
        found.connect(str(path))
        return found

    return [("TCP", tcp), ("a Unix socket", unix)]


def _confident_and_memory(times: Times, way: str, client: Client, requests: int) -> None:
    seed = len(times)
    for row in rows(_WARM_UP, 50 + seed):
        client.ask(row)
    for row in rows(requests, 70 + seed):
        _timed(times, f"over {way}: confident", client, row)
        _timed(times, f"over {way}: memory hit", client, row)
    client.close()


def _one(times: Times, name: str, client: Client, requests: int, *, twice: bool) -> None:
    known = rows(requests + _WARM_UP, 90 + len(times))
    if twice:
        for row in known:
            client.ask(row)
    for row in known[_WARM_UP:]:
        _timed(times, name, client, row)
    client.close()


def _timed(times: Times, name: str, client: Client, row: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    started_s = time.perf_counter()
    client.ask(row)
    times.setdefault(name, []).append((time.perf_counter() - started_s) * 1e6)
