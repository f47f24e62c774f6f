"""A TCP proxy that makes a bad network: delay, jitter, rate, stall, reset, half-open, black hole and truncation.

It works on every kernel and without rights, which `tc netem` does not. It forwards one loopback port to another, for
whatever runs over TCP; what it does at a moment is its `Network`, and a script changes that over time.
"""

import asyncio
import contextlib
import math
import random
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from firstline.demo.cuttable_link import close_listener

_CHUNK_BYTES = 16 * 1024
_QUEUE_CHUNKS = 64  # on their way, each direction; then the sender is held up
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, for 0 s: closing sends RST


@dataclass(frozen=True, slots=True)
class Network:
    """How the network is.

    Args:
        delay_s: of every byte, one way.
        jitter_s: mean of what comes on top, exponentially distributed; the order is kept.
        rate_bytes_s: of each connection, one way.
        total_bytes_s: of all connections together, one way.
        stalled: nothing moves; what was under way goes on afterwards.
        black_hole: everything is taken and nothing comes out, on new connections too.
        refused: there is no listener.
        truncate_bytes: bytes after which what comes back is cut off, and the connection closed; None for no limit.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    rate_bytes_s: float = math.inf
    total_bytes_s: float = math.inf
    stalled: bool = False
    black_hole: bool = False
    refused: bool = False
    truncate_bytes: int | None = None


FINE = Network()


@dataclass(slots=True, eq=False)
class _Connection:
    near: asyncio.StreamWriter
    server_port: int = 0
    far: asyncio.StreamWriter | None = None
    came_back: int = 0
    carrying: list[asyncio.Task[None]] = field(default_factory=list)


class ChaosProxy:
    """Listens on a loopback port of its own. An async context manager.

    Args:
        server_port: on 127.0.0.1; may be changed, for a server that comes back elsewhere.
        seed: of the jitter.

    Attributes:
        port: the port to connect to.
    """

    def __init__(self, server_port: int, seed: int = 0) -> None:
        self.server_port = server_port
        self.port = 0
        self._rng = random.Random(seed)
        self._network = FINE
        self._moving = asyncio.Event()
        self._moving.set()
        self._all_free_s = [0.0, 0.0]  # when all that was taken so far is through: there, and back
        self._listener: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], _Connection] = {}

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop_listening()
        for task, connection in list(self._connections.items()):
            _abort(connection.near)
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def connections(self) -> int:
        """Those that are open towards the client."""
        return len(self._connections)

    async def become(self, network: Network) -> None:
        """Changes the network, for the connections that there are too."""
        self._network = network
        if network.stalled:
            self._moving.clear()
        else:
            self._moving.set()
        if network.refused:
            await self._stop_listening()
        else:
            await self._listen()

    def reset(self) -> None:
        """Ends every connection with RST, on both sides."""
        for connection in self._connections.values():
            _abort(connection.near)
            if connection.far is not None:
                _abort(connection.far)

    def half_open(self) -> None:
        """The servers see their connections end, the clients do not: their data is dropped."""
        for connection in self._connections.values():
            for task in connection.carrying:
                task.cancel()
            if connection.far is not None:
                _abort(connection.far)

    async def follow(self, script: Sequence[tuple[float, Network | str]]) -> None:
        """Plays a script.

        Args:
            script: seconds from now, ascending, and what the network is from then on, or "reset" or "half_open".
        """
        began_s = asyncio.get_running_loop().time()
        for at_s, what in script:
            await asyncio.sleep(max(0.0, began_s + at_s - asyncio.get_running_loop().time()))
            if isinstance(what, Network):
                await self.become(what)
            elif what == "reset":
                self.reset()
            else:
                self.half_open()

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._listener.sockets[0].getsockname()[1]

    async def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            await close_listener(listener)

    def _accept(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, connection := _Connection(near)))
        self._connections[task] = connection
        task.add_done_callback(self._connections.pop)

    async def _carry(self, reader: asyncio.StreamReader, connection: _Connection) -> None:
        """One connection, until both sides have said all; however it ends before, both are reset."""
        try:
            await self._moving.wait()
            far_reader, connection.far = await self._connect(connection)
            connection.carrying = [
                asyncio.create_task(self._pump(reader, connection.far, None)),
                asyncio.create_task(self._pump(far_reader, connection.near, connection)),
            ]
            ended = await asyncio.gather(*connection.carrying, return_exceptions=True)
            if any(isinstance(end, asyncio.CancelledError) for end in ended):  # half-open
                while await reader.read(_CHUNK_BYTES):
                    pass
        except OSError:
            pass  # the server is gone, or the client is; so is the other
        finally:
            for task in connection.carrying:
                task.cancel()
            for writer in filter(None, (connection.near, connection.far)):
                _abort(writer)

    async def _connect(self, connection: _Connection) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection.server_port = self.server_port
        return await asyncio.open_connection("127.0.0.1", connection.server_port)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: _Connection | None) -> None:
        """One direction: reads as it comes, and gives on when its time has come."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE_CHUNKS)
        giving = asyncio.create_task(self._give(under_way, writer, back))
        time_s = asyncio.get_running_loop().time
        direction = 0 if back is None else 1
        try:
            free_s = 0.0
            while chunk := await reader.read(_CHUNK_BYTES):
                network = self._network
                free_s = max(free_s, time_s()) + len(chunk) / network.rate_bytes_s
                together_s = max(self._all_free_s[direction], time_s()) + len(chunk) / network.total_bytes_s
                self._all_free_s[direction] = together_s
                jitter_s = self._rng.expovariate(1) * network.jitter_s
                await under_way.put((max(free_s, together_s) + network.delay_s + jitter_s, chunk))
            await under_way.put((time_s(), b""))
            await giving
        except OSError:
            _abort(writer)
            raise
        finally:
            giving.cancel()

    async def _give(
        self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, back: _Connection | None
    ) -> None:
        while True:
            due_s, chunk = await under_way.get()
            await asyncio.sleep(max(0.0, due_s - asyncio.get_running_loop().time()))
            await self._moving.wait()
            network = self._network
            if not chunk:
                writer.write_eof()
                return
            if network.black_hole:
                continue
            if back is not None and network.truncate_bytes is not None:
                chunk = chunk[: max(0, network.truncate_bytes - back.came_back)]
                back.came_back += len(chunk)
                if back.came_back >= network.truncate_bytes:
                    writer.write(chunk)
                    writer.close()
                    return
            writer.write(chunk)
            await writer.drain()


class Balancer(ChaosProxy):
    """Gives each new connection to one of several servers on 127.0.0.1, and skips those that refuse it.

    It is the one with the fewest open connections; of several such, the one that was chosen least recently. If each
    connection went to the next server, a few short ones in between could leave a server without any that stay open.
    """

    def __init__(self, server_ports: Sequence[int]) -> None:
        super().__init__(server_ports[0])
        self._least_recent = list(server_ports)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _connect(self, connection: _Connection) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        opened = Counter(each.server_port for each in self._connections.values())
        for port in sorted(self._least_recent, key=opened.__getitem__):
            self._least_recent.remove(port)
            self._least_recent.append(port)
            self.server_port = port
            with contextlib.suppress(OSError):
                return await super()._connect(connection)
        raise ConnectionRefusedError


def _abort(writer: asyncio.StreamWriter) -> None:
    bound = writer.get_extra_info("socket")
    if bound is not None and bound.fileno() >= 0:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


def drawn(seed: int, length_s: float, mean_s: float = 0.7) -> list[tuple[float, Network | str]]:
    """A script of `length_s` seconds: half of the time fine, else anything that this proxy can do; fine at its end."""
    rng = random.Random(seed)
    script: list[tuple[float, Network | str]] = []
    at_s = 0.0
    while at_s < length_s:
        bad: list[Network | str] = [
            Network(delay_s=rng.uniform(0.001, 0.2), jitter_s=0.02),
            Network(rate_bytes_s=rng.uniform(2_000, 50_000)),
            Network(stalled=True),
            Network(black_hole=True),
            Network(refused=True),
            Network(truncate_bytes=rng.randint(0, 400)),
            "reset",
            "half_open",
        ]
        script += [(at_s, FINE), (at_s := at_s + rng.expovariate(1 / mean_s), rng.choice(bad))]
        at_s += rng.expovariate(1 / mean_s)
    return [*((when_s, what) for when_s, what in script if when_s < length_s), (length_s, FINE)]
