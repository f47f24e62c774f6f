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
import subprocess
import sys
import tempfile
import threading
import time
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image

from bench.figures import Figure, report, tell
from bench.load import run
from bench.page import refill
from bench.serving.processes import Cores, prefer

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


class Hostile:
    """Connections that send costly images without a pause, within its `with`."""

    def __init__(self, port: int, key: str, image: bytes) -> None:
        self._port, self._key, self._image = port, key, image
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._send) for _ in range(CONNECTIONS)]
        self.statuses: list[int] = []

    def __enter__(self) -> Hostile:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._ended.is_set():
            self.statuses.append(post(connection, self._key, self._image))


def key_of(config: Path, name: str) -> str:
    command = [sys.executable, "-m", "firstline_gateway", "key", "create", name, "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


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
        polite, hostile = key_of(config, "polite"), key_of(config, "hostile")
        quiet, loaded, statuses, refused = [], [], [], 0
        with run.gateway(config, gateway_core) as running:
            steady(running.port, polite, body, rate, 2.0)
            idle_mb, most_mb = running.rss_mb(), 0.0
            for _ in range(repeats):
                latencies, bad = steady(running.port, polite, body, rate, seconds)
                quiet.append(p95_ms(latencies))
                refused += bad
                with Hostile(running.port, hostile, image) as attack:
                    latencies, bad = steady(running.port, polite, body, rate, seconds)
                    most_mb = max(most_mb, running.rss_mb())
                loaded.append(p95_ms(latencies))
                refused += bad
                statuses += attack.statuses
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
    parser.add_argument("--victim", choices=_RATES, help="images of the other key; without it, one after the other")
    parser.add_argument("--hostile", choices=_SIDES, help="images of the hostile key; without it, one after the other")
    options = parser.parse_args()
    gateway_core, core = run.cores()
    prefer(os.getpid())
    os.sched_setaffinity(0, core)
    victims = [options.victim] if options.victim else [*_RATES]
    figures = [
        figure
        for victim, hostile_kind in product(victims, [options.hostile] if options.hostile else _SIDES)
        for figure in measured(victim, hostile_kind, gateway_core, options.seconds, options.repeats)
    ]
    if options.victim or options.hostile:
        return tell(figures)
    code = report("hostile-images", figures)
    refill("hostile-images")
    return code


if __name__ == "__main__":
    sys.exit(main())
