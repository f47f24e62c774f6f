"""Measures what four connections that send costly images do to the latency of another key.

The gateway is a process of its own on one core; both clients are on another core. The hostile key sends a new image as
soon as the last one is answered: one of the most costly that are allowed, one of half a megapixel, or one of 8x8
pixels. The other key sends small images, or photos of 3 megapixels, at a steady rate. In each round it sends first
alone and then next to the hostile key, so that other work on the machine affects both alike.
"""

from __future__ import annotations

import argparse
import http.client
import io
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image

from bench.figures import Figure, report
from bench.page import refill
from bench.serving import ours
from bench.serving.processes import Cores, cores, prefer

CHECKOUT = Path(__file__).parents[1]
MODEL = "digits"
CONNECTIONS = 4
FACTOR = 2.0
_RATES = {"small": 50.0, "photo": 5.0}  # requests per second of the other key
_SIDES = {"costly": 5600, "medium": 700, "tiny": 8}  # 31 million pixels are within the limit of memory


def hostile_image(kind: str) -> bytes:
    """A greyscale PNG of 16 bits; the costly one has 62 MB, which compress to about 60 KB."""
    return _encoded(Image.new("I;16", (_SIDES[kind], _SIDES[kind])), "PNG")


def small_image() -> bytes:
    return _encoded(Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)), "PNG")


def photo() -> bytes:
    """A JPEG of 3 megapixels."""
    return _encoded(Image.radial_gradient("L").resize((2000, 1500)), "JPEG")


def _encoded(image: Image.Image, kind: str) -> bytes:
    with io.BytesIO() as file:
        image.save(file, kind)
        return file.getvalue()


def post(connection: http.client.HTTPConnection, key: str, body: bytes) -> int:
    """Sends one image, and returns the status."""
    connection.request("POST", f"/firstline/v1/models/{MODEL}/infer", body, {"Authorization": f"Bearer {key}"})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def steady(port: int, key: str, body: bytes, rate: float, seconds: float) -> tuple[list[float], int]:
    """Returns the latencies (s) at a steady rate, and the number of other answers than 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    latencies, refused = [], 0
    start_s = time.monotonic()
    for number in range(int(seconds * rate)):
        due_s = start_s + number / rate
        time.sleep(max(0.0, due_s - time.monotonic()))
        refused += post(connection, key, body) != 200
        latencies.append(time.monotonic() - due_s)  # of an open loop: a late answer delays the next ones too
    return latencies, refused


@contextmanager
def hostile_connections(port: int, key: str, image: bytes) -> Iterator[list[int]]:
    """Sends an image again and again over some connections; yields the statuses of the answers."""
    ended = threading.Event()
    statuses: list[int] = []

    def send(_: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while not ended.is_set():
            statuses.append(post(connection, key, image))

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        sending = pool.map(send, range(CONNECTIONS))
        try:
            yield statuses
        finally:
            ended.set()
        list(sending)  # raises an error of a connection


def p95_ms(latencies: list[float]) -> float:
    return float(np.quantile(latencies, 0.95)) * 1000


def measured(victim: str, hostile_kind: str, gateway_core: Cores, seconds: float, repeats: int) -> list[Figure]:
    """Returns the latencies of a key that sends small images or photos, alone and next to the hostile one."""
    body, rate = (small_image() if victim == "small" else photo()), _RATES[victim]
    image = hostile_image(hostile_kind)
    with tempfile.TemporaryDirectory(prefix="firstline-images-") as name:
        config = Path(name) / "gateway.toml"
        (Path(name) / "models").symlink_to(CHECKOUT / "models" / "digits")
        config.write_text('[log]\nlevel = "warning"\n')
        polite, hostile = ours.create_key(config, "polite"), ours.create_key(config, "hostile")
        quiet, loaded, statuses, refused = [], [], [], 0
        with ours.gateway(config, gateway_core) as running:
            steady(running.port, polite, body, rate, 2.0)
            idle_mb, most_mb = running.rss_mb(), 0.0
            for _ in range(repeats):
                latencies, bad = steady(running.port, polite, body, rate, seconds)
                quiet.append(p95_ms(latencies))
                refused += bad
                with hostile_connections(running.port, hostile, image) as answered:
                    latencies, bad = steady(running.port, polite, body, rate, seconds)
                    most_mb = max(most_mb, running.rss_mb())
                loaded.append(p95_ms(latencies))
                refused += bad
                statuses += answered
    factor = statistics.median(loaded) / statistics.median(quiet)
    figures = [
        Figure("p95 of a key alone (median of the runs)", round(statistics.median(quiet), 2), "ms"),
        Figure("p95 next to four hostile connections", round(statistics.median(loaded), 2), "ms"),
        Figure("factor", round(factor, 2), "", f"at most {FACTOR:g}", factor <= FACTOR),
        Figure("requests of that key that were not answered", refused, "", "0", refused == 0),
        Figure("hostile images answered", statuses.count(200), ""),
        Figure("hostile images refused", len(statuses) - statuses.count(200), ""),
        Figure("memory that they add, as last seen", round(most_mb - idle_mb), "MB"),
    ]
    return [figure._replace(figure=f"{victim} next to {hostile_kind}: {figure.figure}") for figure in figures]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--repeats", type=int, default=3, help="of both loads (default: %(default)s)")
    options = parser.parse_args()
    gateway_core, core, _ = cores()
    prefer(os.getpid())
    os.sched_setaffinity(0, core)
    figures = [
        figure
        for victim, hostile_kind in product(_RATES, _SIDES)
        for figure in measured(victim, hostile_kind, gateway_core, options.seconds, options.repeats)
    ]
    code = report("hostile-images", figures)
    refill("hostile-images")
    return code


if __name__ == "__main__":
    sys.exit(main())
