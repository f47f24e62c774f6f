"""What it costs to answer each delivery once: beside the same request without a promise, and a bare fsync.

    python bench/deliveries.py [--url postgresql+psycopg://USER@HOST/DATABASE] [--folder DIRECTORY]

One gateway in this process with the digits bundle, asked without a transport between: what is timed is the model, and
for a delivery the hash, the look-up and the commit. The store lies in the working directory, or in --folder: a disk in
memory has no fsync worth timing. Writes bench/results/deliveries.json.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from figures import Figure, report

from firstline_core.ids import new_request_id
from firstline_core.telemetry import logs
from firstline_core.types import InferRequest, Tensor
from firstline_gateway.gateway import Gateway
from firstline_gateway.opening import open_gateway
from firstline_gateway.settings.load import load

_DIGITS = Path(__file__).parents[1] / "models" / "digits" / "bundle"
_REQUESTS = 300
_AT_ONCE = 64
_REPETITIONS = 5  # of which the median counts
_RECORD_BYTES = 1024


def request(*, promised: bool) -> InferRequest:
    pixels = np.random.default_rng().integers(0, 17, (1, 8, 8, 1), np.uint8)
    return InferRequest(
        "digits", (Tensor("image", pixels),), new_request_id(), version="1", principal="device:bench", promised=promised
    )


async def one_by_one_ms(gateway: Gateway, *, promised: bool, again: bool = False) -> float:
    """The median request, each asked once the one before is answered."""
    asked = [request(promised=promised) for _ in range(_REQUESTS)]
    if again:
        await asyncio.gather(*(gateway.plane.infer(one) for one in asked))
    times_ms = []
    for one in asked:
        began_s = time.perf_counter()
        await gateway.plane.infer(one)
        times_ms.append((time.perf_counter() - began_s) * 1000)
    return statistics.median(times_ms)


async def per_second(gateway: Gateway, *, promised: bool) -> float:
    """Requests a second, so many under way at each moment."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def ask() -> None:
        async with room:
            await gateway.plane.infer(request(promised=promised))

    count = 10 * _REQUESTS
    began_s = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(count)))
    return count / (time.perf_counter() - began_s)


def fsync_ms(folder: Path) -> float:
    """The median append of a record's bytes to a file, on the disk."""
    times_ms = []
    with (folder / "bare").open("ab", buffering=0) as file:
        for _ in range(_REQUESTS):
            began_s = time.perf_counter()
            file.write(bytes(_RECORD_BYTES))
            os.fsync(file.fileno())
            times_ms.append((time.perf_counter() - began_s) * 1000)
    return statistics.median(times_ms)


async def measured(folder: Path, url: str) -> list[Figure]:
    overrides = {
        "auth.mode": "off",
        "models.directory": str(_DIGITS),
        "store.url": url or f"sqlite:///{folder / 'gateway.db'}",
        "identity.directory": str(folder / "identity"),
    }
    gateway = open_gateway(load(None, overrides=overrides))
    await gateway.start()
    await one_by_one_ms(gateway, promised=True)  # warm
    found: dict[str, list[float]] = {}
    for _ in range(_REPETITIONS):
        for name, value in (
            ("fsync", fsync_ms(folder)),
            ("live", await one_by_one_ms(gateway, promised=False)),
            ("delivery", await one_by_one_ms(gateway, promised=True)),
            ("repeat", await one_by_one_ms(gateway, promised=True, again=True)),
            ("live_per_s", await per_second(gateway, promised=False)),
            ("delivery_per_s", await per_second(gateway, promised=True)),
        ):
            found.setdefault(name, []).append(value)
    await gateway.close()
    of = {name: statistics.median(values) for name, values in found.items()}
    kind = "PostgreSQL" if url else "SQLite"
    added = (of["delivery"] - of["live"]) / of["fsync"]
    return [
        Figure("a bare fsync of 1 KiB: p50", round(of["fsync"], 3), "ms"),
        Figure("a live request: p50", round(of["live"], 3), "ms"),
        Figure(f"a delivery, {kind}: p50", round(of["delivery"], 3), "ms"),
        Figure(f"a delivery's repeat, {kind}: p50", round(of["repeat"], 3), "ms"),
        Figure(f"a delivery to a live request, {kind}", round(of["delivery"] / of["live"], 2), "times"),
        Figure(f"what a delivery adds, to a bare fsync, {kind}", round(added, 2), "times"),
        Figure(f"live requests, {_AT_ONCE} at once", round(of["live_per_s"]), "per second"),
        Figure(f"deliveries, {_AT_ONCE} at once, {kind}", round(of["delivery_per_s"]), "per second"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="", help="store.url of an empty database, instead of a file of SQLite's")
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk that is to be measured")
    arguments = parser.parse_args()
    logs.configure("error", "text")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        figures = asyncio.run(measured(Path(folder).absolute(), arguments.url))
    return report("deliveries", figures)


if __name__ == "__main__":
    sys.exit(main())
