"""Requests at a given rate, whether or not the ones before were answered: an open loop, as independent devices are.

Runs as a process of its own (`python -m load.generator < plan.json > records.json`), so that it has a core of its own.
A closed loop would slow down with the gateway that it measures, and hide what it does under overload.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import time
from collections import deque
from typing import Any, NamedTuple, cast

import uvloop

# What comes after this many connections are busy is not sent; it is reported, for it would be the generator's fault.
_CONNECTIONS = 2000
# After the last request.
_PATIENCE_S = 10.0


class Stream(NamedTuple):
    """One client's requests.

    Attributes:
        client: name for the figures.
        rate: requests a second on average; their distances are exponential (a Poisson process).
        start_s: after the plan's start.
        seconds: duration.
        timeout_s: deadline of each request; 0 for none.
        path: of the URL.
        headers: in addition to Host and Content-Length.
        body: of every request.
    """

    client: str
    rate: float
    start_s: float
    seconds: float
    timeout_s: float
    path: str
    headers: dict[str, str]
    body: str


class Record(NamedTuple):
    """What became of one request; times in seconds from the plan's start.

    Attributes:
        status: of HTTP; 0 where the connection ended first, -1 where no answer came, -2 where it was not sent.
        late_s: how long after its time it was sent: the generator's own slowness.
    """

    client: str
    sent_s: float
    late_s: float
    seconds: float
    status: int
    retry_after_s: float


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, one request at a time."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._received = b""
        self.transport: asyncio.Transport
        self.asked: tuple[Stream, float, float] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def ask(self, stream: Stream, message: bytes, due_s: float) -> None:
        sent_s = self._plan.now_s()
        self.asked = (stream, sent_s, sent_s - due_s)
        self.transport.write(message)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.lower().split(b"\r\n")
        fields = dict(line.split(b": ", 1) for line in lines[1:])
        if len(rest) < int(fields.get(b"content-length", b"0")):
            return
        self._received = b""
        self.end(int(lines[0].split(b" ")[1]), float(fields.get(b"retry-after", b"0")))
        if fields.get(b"connection") == b"close":
            self.transport.close()
        else:
            self._plan.idle.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._plan.connections.discard(self)
        if self in self._plan.idle:
            self._plan.idle.remove(self)
        self.end(0)

    def end(self, status: int, retry_after_s: float = 0.0) -> None:
        if self.asked is not None:
            stream, sent_s, late_s = self.asked
            self.asked = None
            seconds = self._plan.now_s() - sent_s
            self._plan.records.append(Record(stream.client, sent_s, late_s, seconds, status, retry_after_s))


class Plan:
    """What is sent when, and what came of it."""

    def __init__(self, host: str, port: int, streams: list[Stream], seed: int) -> None:
        self._host, self._port = host, port
        self._streams = streams
        self._random = random.Random(seed)
        self.start_s = 0.0
        self.idle: deque[Connection] = deque()
        self.connections: set[Connection] = set()
        self.records: list[Record] = []

    def now_s(self) -> float:
        return time.monotonic() - self.start_s

    async def run(self) -> None:
        self.start_s = time.monotonic()
        await asyncio.gather(*(self._send(stream) for stream in self._streams))
        end_s = self.now_s() + _PATIENCE_S
        while len(self.idle) < len(self.connections) and self.now_s() < end_s:  # noqa: ASYNC110 (for a moment, at the end)
            await asyncio.sleep(0.01)
        for connection in tuple(self.connections):
            connection.end(-1)
            connection.transport.abort()

    async def _send(self, stream: Stream) -> None:
        headers = {"Host": self._host, "Content-Length": str(len(stream.body)), **stream.headers}
        lines = [f"POST {stream.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        message = "\r\n".join(lines).encode() + stream.body.encode()
        due_s, end_s = stream.start_s, stream.start_s + stream.seconds
        connecting: set[asyncio.Task[None]] = set()
        while True:
            due_s += self._random.expovariate(stream.rate)
            if due_s >= end_s:
                break
            if (wait_s := due_s - self.now_s()) > 0:
                await asyncio.sleep(wait_s)
            if self.idle:
                self.idle.pop().ask(stream, message, due_s)
            elif len(self.connections) + len(connecting) < _CONNECTIONS:
                task = asyncio.create_task(self._connect(stream, message, due_s))
                connecting.add(task)
                task.add_done_callback(connecting.discard)
            else:
                self.records.append(Record(stream.client, self.now_s(), self.now_s() - due_s, 0.0, -2, 0.0))
        await asyncio.gather(*connecting)

    async def _connect(self, stream: Stream, message: bytes, due_s: float) -> None:
        connection = Connection(self)
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection, self._host, self._port)
        except OSError:
            self.records.append(Record(stream.client, self.now_s(), self.now_s() - due_s, 0.0, 0, 0.0))
            return
        self.connections.add(connection)
        connection.ask(stream, message, due_s)


def main() -> None:
    order: dict[str, Any] = json.load(sys.stdin)
    plan = Plan(order["host"], order["port"], [Stream(**stream) for stream in order["streams"]], order["seed"])
    uvloop.run(plan.run())
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = used.ru_utime + used.ru_stime
    json.dump({"records": plan.records, "start_s": plan.start_s, "cpu_s": cpu_s}, sys.stdout)


if __name__ == "__main__":
    main()
