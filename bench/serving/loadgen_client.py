"""MLPerf's LoadGen in one scenario against a V2 server; runs in LoadGen's own environment, which has numpy and no more.

    .venv-loadgen/bin/python loadgen_client.py plan.json

Queries are sent over kept connections, as made before but for the input's last number, by which no input comes twice:
MLPerf allows no cache of results, and both tiers may have one. The plan is a JSON object, see `loadgen.Plan`; the
logs go to its folder.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import socket
import struct
import sys
import threading
from pathlib import Path

import mlperf_loadgen as lg

SCENARIOS = {
    "SingleStream": lg.TestScenario.SingleStream,
    "Server": lg.TestScenario.Server,
    "Offline": lg.TestScenario.Offline,
}


_ONE, _FRACTION = 0x3F800000, 0x007FFFFF  # of FP32: the bits of 1.0, and those that number what comes after it


def whole(received: bytes) -> bool:
    """Whether an answer has come in; every answer has a length.

    Raises:
        RuntimeError: its status is no success.
    """
    head, found, rest = received.partition(b"\r\n\r\n")
    if not found:
        return False
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"answered {received[:300]!r}")
    fields = head.lower().split(b"\r\ncontent-length: ", 1)[1]
    return len(rest) >= int(fields.split(b"\r\n", 1)[0])


class Messages:
    """Whole requests that end with an FP32 tensor, whose last number is another one each time, in [1, 2)."""

    def __init__(self, files: list[str], first: int) -> None:
        self._made = [Path(file).read_bytes()[:-4] for file in files]
        self._numbers = itertools.count(first)

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, index: int) -> bytes:
        return self._made[index] + struct.pack("<I", _ONE | next(self._numbers) & _FRACTION)


def done(sample) -> None:
    """LoadGen looks at no answer's content in performance mode."""
    lg.QuerySamplesComplete([lg.QuerySampleResponse(sample, 0, 0)])


class OneByOne:
    """SingleStream: in LoadGen's own thread, over one connection."""

    def __init__(self, port: int, messages: Messages) -> None:
        self._messages = messages
        self._connection = socket.create_connection(("127.0.0.1", port))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def issue(self, samples) -> None:
        for sample in samples:
            self._connection.sendall(self._messages[sample.index])
            received = self._connection.recv(1 << 16)
            while not whole(received):
                received += self._connection.recv(1 << 16)
            done(sample.id)


class AtOnce:
    """Server and Offline: what comes waits for a free connection, on an event loop in a thread of its own."""

    def __init__(self, port: int, messages: Messages, connections: int) -> None:
        self._messages = messages
        self._waiting = collections.deque()
        self._idle = []
        self._woken = False
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        for _ in range(connections):
            made = self._loop.create_connection(lambda: Connection(self), "127.0.0.1", port)
            asyncio.run_coroutine_threadsafe(made, self._loop).result()

    def issue(self, samples) -> None:
        self._waiting.extend((sample.id, sample.index) for sample in samples)
        if not self._woken:  # one wake-up is enough for all that came before it
            self._woken = True
            self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        self._woken = False
        while self._idle and self._waiting:
            self.next(self._idle.pop())

    def next(self, connection) -> None:
        """Gives a free connection its next query."""
        try:
            sample, index = self._waiting.popleft()
        except IndexError:
            self._idle.append(connection)
            return
        connection.ask(sample, self._messages[index])


class Connection(asyncio.Protocol):
    """One query at a time."""

    def __init__(self, sut: AtOnce) -> None:
        self._sut = sut
        self._received = b""

    def connection_made(self, transport) -> None:
        self._transport = transport
        self._sut.next(self)

    def ask(self, sample, message: bytes) -> None:
        self._sample = sample
        self._transport.write(message)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if whole(self._received):
            self._received = b""
            done(self._sample)
            self._sut.next(self)


def settings_of(plan) -> lg.TestSettings:
    """Performance mode; what is below MLPerf's own minima is the plan's doing."""
    found = lg.TestSettings()
    found.scenario = SCENARIOS[plan["scenario"]]
    found.mode = lg.TestMode.PerformanceOnly
    found.min_duration_ms = plan["min_duration_ms"]
    found.min_query_count = plan["min_query_count"]
    found.server_target_qps = plan["target_qps"]
    found.server_target_latency_ns = int(plan["target_latency_ms"] * 1e6)
    found.offline_expected_qps = plan["target_qps"]
    # So many queries are made beforehand that they last for the duration; with LoadGen's 1 ms they would not.
    found.single_stream_expected_latency_ns = int(1e9 / plan["target_qps"])
    return found


def main() -> None:
    """Runs one test."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    messages = Messages(plan["messages"], plan["first"])
    if plan["scenario"] == "SingleStream":
        sut = OneByOne(plan["port"], messages)
    else:
        sut = AtOnce(plan["port"], messages, plan["connections"])
    logs = lg.LogSettings()
    logs.log_output.outdir = plan["folder"]
    tested = lg.ConstructSUT(sut.issue, lambda: None)
    library = lg.ConstructQSL(len(messages), len(messages), lambda _: None, lambda _: None)
    lg.StartTestWithLogSettings(tested, library, settings_of(plan), logs)
    lg.DestroyQSL(library)
    lg.DestroySUT(tested)


if __name__ == "__main__":
    main()
