"""What an idle agent sends: bytes that cross its link although nobody asks it anything, over HTTP and over MQTT.

A TCP proxy between an agent of its own process and a real gateway or a real Mosquitto counts payload bytes,
connections and the reads in which they came. The agent is as it is by default. What comes at the start (probes, the
birth message) is told by itself; a day is what comes after, in as many minutes as are waited, times as often as they
fit into a day. Beside the payload each segment costs headers: 40 bytes of IP and TCP there, and as many for its
acknowledgement, which is estimated from the reads.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from figures import Figure, report

from firstline.demo import assets
from firstline.demo.house import Transport, house
from firstline.demo.processes import mosquitto, tier

_DAY_S = 86_400.0
_HEADERS_BYTES = 80  # a segment's and its acknowledgement's: IPv4 and TCP without options
_SETTLE_S = 5.0
_AGENT = """\
[agent]
device_id = "demo-device"
state_dir = "state-idle-{kind}"
[api]
port = 0
[models]
directories = ["device"]
[[links]]
kind = "{kind}"
"""


@dataclass(frozen=True, slots=True)
class Count:
    """What crossed the proxy so far.

    Attributes:
        up_bytes, down_bytes: payload, from the agent and to it.
        segments: reads in which they came, in both directions.
        connections: opened.
    """

    up_bytes: int = 0
    down_bytes: int = 0
    segments: int = 0
    connections: int = 0

    def since(self, earlier: Count) -> Count:
        return Count(
            self.up_bytes - earlier.up_bytes,
            self.down_bytes - earlier.down_bytes,
            self.segments - earlier.segments,
            self.connections - earlier.connections,
        )

    @property
    def all_bytes(self) -> int:
        """With headers, and the four segments that open and end a connection."""
        return self.up_bytes + self.down_bytes + _HEADERS_BYTES * (self.segments + 4 * self.connections)


class Meter:
    """A TCP proxy that counts."""

    def __init__(self, far_port: int) -> None:
        self._far_port = far_port
        self.count = Count()
        self.port = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Meter]:
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _carry(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        self.count = replace(self.count, connections=self.count.connections + 1)
        far, to_far = await asyncio.open_connection("127.0.0.1", self._far_port)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(self._copy(near, to_far, up=True), self._copy(far, to_near, up=False))

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, up: bool) -> None:
        while chunk := await source.read(65_536):
            before = self.count
            self.count = replace(
                before,
                up_bytes=before.up_bytes + len(chunk) * up,
                down_bytes=before.down_bytes + len(chunk) * (not up),
                segments=before.segments + 1,
            )
            target.write(chunk)
            await target.drain()
        target.close()


async def measure(folder: Path, kind: Transport, far_port: int, seconds: float) -> tuple[Count, Count]:
    """What an agent sends at its start, and in so many seconds thereafter."""
    async with Meter(far_port).listening() as meter:
        way = {
            "http": f'url = "http://127.0.0.1:{meter.port}"\ntoken_file = "device.token"\n',
            "mqtt": f'host = "127.0.0.1"\nport = {meter.port}\n',
        }[kind]
        config = folder / f"idle-{kind}.toml"
        config.write_text(_AGENT.format(kind=kind) + way)
        async with tier("firstline_edge", config, folder / f"idle-{kind}.log"):
            await asyncio.sleep(_SETTLE_S)
            start = meter.count
            await asyncio.sleep(seconds)
            return start, meter.count.since(start)


def figures(kind: str, start: Count, idle: Count, seconds: float) -> list[Figure]:
    day = _DAY_S / seconds
    name = {"http": "HTTP", "mqtt": "MQTT"}[kind]
    return [
        Figure(f"{name}: a start, payload", start.up_bytes + start.down_bytes, "bytes"),
        Figure(f"{name}: an idle day, payload sent", round(idle.up_bytes * day), "bytes"),
        Figure(f"{name}: an idle day, payload received", round(idle.down_bytes * day), "bytes"),
        Figure(f"{name}: an idle day, segments", round(idle.segments * day), ""),
        Figure(f"{name}: an idle day, with headers", round(idle.all_bytes * day / 1000), "kB"),
    ]


async def main_in(folder: Path, minutes: float) -> list[Figure]:
    found: list[Figure] = []
    async with house(folder, assets.digits() / "bundle", mosquitto=mosquitto() is not None) as running:
        kinds, seconds = running.transports, 60 * minutes
        counts = await asyncio.gather(*(measure(folder, kind, running.far_port(kind), seconds) for kind in kinds))
        for kind, (start, idle) in zip(kinds, counts, strict=True):
            found += figures(kind, start, idle, seconds)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="to wait, for each transport")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="firstline-idle-") as folder:
        return report("idle", asyncio.run(main_in(Path(folder), arguments.minutes)))


if __name__ == "__main__":
    sys.exit(main())
