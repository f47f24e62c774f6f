"""Measures the line between the tiers on this machine: round trips, corrections, promises, start and memory.

Both tiers run as processes of their own on loopback, over HTTP and, where Mosquitto is installed, over MQTT. Times of
one machine say little of another's, so nothing is aimed for. The outbox lies where temporary files do (TMPDIR).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from figures import Figure, report

from firstline.client.async_client import AsyncClient
from firstline.demo import assets
from firstline.demo.house import Device, House, Transport, house
from firstline.demo.processes import mosquitto
from firstline.workbench.dataset import open_dataset
from firstline_core.ids import new_request_id
from firstline_core.types import Answer, InferRequest, InferResponse, Reason, Status, Tensor, Tier
from firstline_edge.outbox.item import OutboxItem
from firstline_edge.outbox.store import Outbox

MODEL = "digits"
WARM_UP = 20
# Long enough for a busy machine: what the agent expects to be late is not asked of the gateway.
TIMEOUT_MS = 30_000


@dataclass
class Measured:
    """One value a repetition, by what was measured."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def figure(self, name: str, unit: str) -> Figure:
        """The median of the repetitions."""
        found = self.values.get(name)
        return Figure(name, round(statistics.median(found), 3) if found else None, unit)


def scans() -> Iterator[bytes]:
    """Pictures that no cache has seen: a PNG's readers stop at its end, a digest does not."""
    contents = [content for content, _ in open_dataset(assets.digits() / "heldout", 50).read()]
    for number, content in enumerate(itertools.cycle(contents)):
        yield content + b"%d" % number


async def round_trip_ms(client: AsyncClient, content: bytes, route: Literal["edge", "cloud"]) -> float:
    """From an application to the tier that answers, and back."""
    started_s = time.perf_counter()
    found = await client.infer_file(MODEL, content, route=route, timeout_ms=TIMEOUT_MS)
    ms = (time.perf_counter() - started_s) * 1000
    expected = Tier.CLOUD if route == "cloud" else Tier.EDGE
    if found.answer.tier is not expected:
        raise RuntimeError(f"answered by {found.answer.tier}, not by {expected}: {found.answer}")
    return ms


async def correction_ms(client: AsyncClient, content: bytes) -> float:
    """From the provisional answer to the final one, as an application sees them come."""
    told: list[tuple[Status, float]] = []
    async for found in client.stream_file(MODEL, content, route="cloud", timeout_ms=TIMEOUT_MS):
        told.append((found.answer.status, time.perf_counter()))
    if [status for status, _ in told] != [Status.PROVISIONAL, Status.FINAL]:
        raise RuntimeError(f"answered as {[status.value for status, _ in told]}")
    return (told[1][1] - told[0][1]) * 1000


def rss_mb(process: asyncio.subprocess.Process) -> float:
    """Resident memory of a process, in megabytes of 10^6 bytes."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return kib * 1024 / 1e6


@asynccontextmanager
async def started(running: House, transport: Transport, scan: bytes, measured: Measured) -> AsyncIterator[Device]:
    """A device that has answered once; how long that took is noted."""
    started_s = time.perf_counter()
    async with running.device(transport) as device:
        await round_trip_ms(device.client, scan, "edge")
        measured.note("agent: from its start to the first answer", time.perf_counter() - started_s)
        yield device


async def measure_line(transport: Transport, repeats: int, requests: int, measured: Measured) -> None:
    """Everything that needs both tiers."""
    name = {"http": "HTTP", "mqtt": "MQTT QoS 1"}[transport]
    contents = scans()
    with tempfile.TemporaryDirectory(prefix="firstline-line-") as folder:
        async with house(Path(folder), assets.digits() / "bundle", mosquitto=transport == "mqtt") as running:
            for _ in range(repeats):
                async with started(running, transport, next(contents), measured) as device:
                    client = device.client
                    for _ in range(WARM_UP):
                        await round_trip_ms(client, next(contents), "cloud")
                        await round_trip_ms(client, next(contents), "edge")
                    spent = {
                        "on the device alone, p50": [
                            await round_trip_ms(client, next(contents), "edge") for _ in range(requests)
                        ],
                        f"through both tiers over {name}, p50": [
                            await round_trip_ms(client, next(contents), "cloud") for _ in range(requests)
                        ],
                        f"from a provisional answer to the final one over {name}, p50": [
                            await correction_ms(client, next(contents)) for _ in range(requests)
                        ],
                    }
                    for what, ms in spent.items():
                        measured.note(what, statistics.median(ms))
                    measured.note(f"agent: resident memory with a link over {name}", rss_mb(device.process))


def promise(content: bytes) -> OutboxItem:
    """A picture that is answered provisionally."""
    image = np.empty(1, dtype=np.object_)
    image[0] = content
    asked = InferRequest(MODEL, (Tensor("image", image),), new_request_id(), version="1", principal="local")
    answer = Answer(asked.request_id, Status.PROVISIONAL, False, True, Tier.EDGE, Reason.LINK_DOWN, 0.5, "f" * 64)
    probabilities = Tensor("probabilities", np.full((1, 10), 0.1, np.float32))
    return OutboxItem(asked, (0,), InferResponse(MODEL, "1", (probabilities,), answer=answer), time.time())


async def measure_outbox(repeats: int, requests: int, measured: Measured) -> None:
    """Promises a second, each on the disk before the next is made, and many at once."""
    contents = scans()
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="firstline-line-") as folder:
            outbox = Outbox(Path(folder) / "outbox.db")
            items = [promise(next(contents)) for _ in range(6 * requests)]
            started_s = time.perf_counter()
            for item in items[:requests]:
                await outbox.put(item)
            serial_s = time.perf_counter()
            await asyncio.gather(*(outbox.put(item) for item in items[requests:]))
            grouped_s = time.perf_counter()
            outbox.close()
        measured.note("outbox: promises one after the other, each fsynced", requests / (serial_s - started_s))
        measured.note("outbox: promises at once, fsynced in groups", 5 * requests / (grouped_s - serial_s))


def load() -> float:
    """Processes that wanted to run in the last minute, for each processor; some 1 where these two tiers are alone."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def figures(measured: Measured, transports: list[Transport]) -> list[Figure]:
    """In the order in which a reader asks for them."""
    names = [{"http": "HTTP", "mqtt": "MQTT QoS 1"}[transport] for transport in transports]
    return [
        measured.figure("on the device alone, p50", "ms"),
        *(measured.figure(f"through both tiers over {name}, p50", "ms") for name in names),
        *(measured.figure(f"from a provisional answer to the final one over {name}, p50", "ms") for name in names),
        measured.figure("outbox: promises one after the other, each fsynced", "/s"),
        measured.figure("outbox: promises at once, fsynced in groups", "/s"),
        measured.figure("agent: from its start to the first answer", "s"),
        *(measured.figure(f"agent: resident memory with a link over {name}", "MB") for name in names),
        # A machine that does other work besides makes every time above longer.
        Figure("load of this machine meanwhile, for each processor", round(load(), 2), ""),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="of everything; the figures are medians")
    parser.add_argument("--requests", type=int, default=100, help="of each kind in a repetition")
    arguments = parser.parse_args()
    transports: list[Transport] = ["http", *(["mqtt"] if mosquitto() else [])]
    if "mqtt" not in transports:
        print("mosquitto is not installed: MQTT is left out", file=sys.stderr)
    measured = Measured()
    for transport in transports:
        asyncio.run(measure_line(transport, arguments.repeats, arguments.requests, measured))
    asyncio.run(measure_outbox(arguments.repeats, arguments.requests, measured))
    return report("line", figures(measured, transports))


if __name__ == "__main__":
    sys.exit(main())
