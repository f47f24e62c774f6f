"""Measures what four connections that send costly images do to the latency of another key.

The gateway is a process of its own on one core; both clients are on another core. The hostile key sends a new image as
soon as the last one is answered: one of the most costly that are allowed, one of half a megapixel, or one of 8x8
pixels. wrk sends them, so that its work does not hold the interpreter of the other client, whose latency counts. The
other key sends small images, or photos of 3 megapixels, at a steady rate. In each round it sends first alone and then
next to the hostile key, so that other work on the machine affects both alike.
"""

from __future__ import annotations

import argparse
import http.client
import io
import math
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image

from bench.figures import Figure
from bench.page import report
from bench.serving import ours
from bench.serving.bodies import Body, plan
from bench.serving.processes import Cores, Server, cores, prefer
from bench.serving.wrk import Load, load

CHECKOUT = Path(__file__).parents[1]
MODEL = "digits"
_PATH = f"/firstline/v1/models/{MODEL}/infer"
CONNECTIONS = 4
_PAUSE_S = 2.0  # until images are decoded whose clients have left
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
    connection.request("POST", _PATH, body, {"Authorization": f"Bearer {key}"})
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


def flood(server: Server, key: str, image: bytes, seconds: float, on: Cores) -> Load:
    """Sends an image repeatedly over some connections, for `seconds`."""
    with tempfile.TemporaryDirectory(prefix="firstline-images-") as folder:
        headers = {"Authorization": f"Bearer {key}"}
        script = plan(Path(folder), "hostile", _PATH, Body({}, image), headers)
        return load(server, script, in_flight=CONNECTIONS, seconds=math.ceil(seconds), on=on)


def p95_ms(latencies: list[float]) -> float:
    return float(np.quantile(latencies, 0.95)) * 1000


def measured(victim: str, hostile_kind: str, on: tuple[Cores, Cores], *, seconds: float, repeats: int) -> list[Figure]:
    """Returns the latencies of a key that sends small images or photos, alone and next to the hostile one.

    Args:
        victim: what the other key sends.
        hostile_kind: what the hostile key sends.
        on: the cores of the gateway and of the clients.
        seconds: of each load.
        repeats: of both loads.
    """
    body, rate = (small_image() if victim == "small" else photo()), _RATES[victim]
    image = hostile_image(hostile_kind)
    with tempfile.TemporaryDirectory(prefix="firstline-images-") as name:
        config = Path(name) / "gateway.toml"
        (Path(name) / "models").symlink_to(CHECKOUT / "models" / "digits")
        config.write_text('[log]\nlevel = "warning"\n')
        polite, hostile = ours.create_key(config, "polite"), ours.create_key(config, "hostile")
        quiet, loaded, loads, refused = [], [], [], 0
        with ours.gateway(config, on[0]) as running, ThreadPoolExecutor(1) as pool:
            steady(running.port, polite, body, rate, _PAUSE_S)
            idle_mb, most_mb = running.rss_mb(), 0.0
            for _ in range(repeats):
                steady(running.port, polite, body, rate, _PAUSE_S)
                latencies, bad = steady(running.port, polite, body, rate, seconds)
                quiet.append(p95_ms(latencies))
                refused += bad
                flooding = pool.submit(flood, running, hostile, image, seconds, on[1])
                latencies, bad = steady(running.port, polite, body, rate, seconds)
                most_mb = max(most_mb, running.rss_mb())
                loads.append(flooding.result())
                loaded.append(p95_ms(latencies))
                refused += bad
    factor = statistics.median(loaded) / statistics.median(quiet)
    figures = [
        Figure("p95 of a key alone (median of the runs)", round(statistics.median(quiet), 2), "ms"),
        Figure("p95 next to four hostile connections", round(statistics.median(loaded), 2), "ms"),
        Figure("factor", round(factor, 2), "", f"at most {FACTOR:g}", factor <= FACTOR),
        Figure("requests of that key that were not answered", refused, "", "0", refused == 0),
        Figure("hostile images answered", sum(each.requests - each.bad for each in loads), ""),
        Figure("hostile images refused", sum(each.bad for each in loads), ""),
        Figure("memory that they add, as last seen", round(most_mb - idle_mb), "MB"),
    ]
    return [figure._replace(figure=f"{victim} next to {hostile_kind}: {figure.figure}") for figure in figures]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--repeats", type=int, default=3, help="of both loads (default: %(default)s)")
    options = parser.parse_args()
    on = cores()[:2]
    prefer(os.getpid())
    os.sched_setaffinity(0, on[1])
    figures = [
        figure
        for victim, hostile_kind in product(_RATES, _SIDES)
        for figure in measured(victim, hostile_kind, on, seconds=options.seconds, repeats=options.repeats)
    ]
    return report("hostile-images", figures)


if __name__ == "__main__":
    sys.exit(main())
