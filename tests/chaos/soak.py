"""Steady load for minutes: whether memory, descriptors and threads grow, what is written, and how long an end takes."""

import asyncio
import math
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

from chaos.kills import fresh_scans
from chaos.victims import MODEL, Tier, victims

RATE = 20.0
SMALL_CACHE = "[cache]\nmemory_limit_bytes = 262144\ndisk_limit_bytes = 1048576\n"
"""Full before it is looked at."""
_SAMPLE_S = 2.0
_WARM_UP = 0.25  # share of the time whose samples say how it began, and not how it grows
_ROUTES = ("", "", "?route=cloud", "?route=cloud&wait=first")


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at a moment."""

    at_s: float
    rss_bytes: int
    descriptors: int
    threads: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class Soaked:
    """One tier.

    Args:
        slope_bytes_hour: of its resident memory, by least squares.
        bound_bytes_hour: the same, at most, with 97.5 % confidence, as far as the samples are independent.
        descriptors, threads: how many more there were at the fewest, in the last quarter than in the first after the
            warm-up: what is in use comes and goes with what else the machine does, what was lost stays.
        written_bytes: to its disk, for each request.
        end_s: from SIGTERM to its end.
    """

    tier: str
    slope_bytes_hour: float
    bound_bytes_hour: float
    rss_bytes: int
    descriptors: int
    threads: int
    written_bytes: float
    end_s: float
    requests: int
    failures: int


def sample(tier: Tier, began_s: float) -> Sample:
    """What `/proc` says of it."""
    folder = Path(f"/proc/{tier.process.pid}")
    status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if ":\t" in line)
    written = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
    return Sample(
        time.monotonic() - began_s,
        int(status["VmRSS"].split()[0]) * 1024,
        len(list((folder / "fd").iterdir())),
        int(status["Threads"]),
        int(written["write_bytes"]),
    )


async def soak(seconds: float, seed: int, tell: Callable[[float], None] = lambda share: None) -> list[Soaked]:
    """Both tiers over HTTP, at `RATE` requests a second: half stay on the device, a quarter promise a correction."""
    with tempfile.TemporaryDirectory(prefix="firstline-soak-", ignore_cleanup_errors=True) as folder:
        async with victims(Path(folder), seed, mqtt=False, cache=SMALL_CACHE, forked=False) as house:
            tiers = {"agent": house.agent, "gateway": house.gateway}
            for tier in (house.gateway, house.agent):
                tier.start()
                await tier.ready()
            began_s = time.monotonic()
            asking = asyncio.create_task(_ask(house.agent.url, seconds, seed))
            samples: dict[str, list[Sample]] = {name: [] for name in tiers}
            while not asking.done():
                await asyncio.wait({asking}, timeout=_SAMPLE_S)
                for name, tier in tiers.items():
                    samples[name].append(sample(tier, began_s))
                tell((time.monotonic() - began_s) / seconds)
            requests, failures = asking.result()
            ends_s = {name: await _end(tier) for name, tier in tiers.items()}
            return [_soaked(name, samples[name], requests, failures, ends_s[name]) for name in tiers]


async def _ask(url: str, seconds: float, seed: int) -> tuple[int, int]:
    """Requests that were answered, and those that were not; a slow answer delays no other request."""
    contents, failures, count = fresh_scans(seed), 0, int(seconds * RATE)
    began_s = time.monotonic()

    async def one(client: httpx.AsyncClient, number: int) -> None:
        nonlocal failures
        path = f"/firstline/v1/models/{MODEL}/infer{_ROUTES[number % len(_ROUTES)]}"
        try:
            failures += (await client.post(path, content=next(contents))).status_code != 200
        except httpx.HTTPError:
            failures += 1

    limits = httpx.Limits(max_connections=8)
    client = httpx.AsyncClient(base_url=url, timeout=30, trust_env=False, limits=limits)
    async with client, asyncio.TaskGroup() as asking:
        for number in range(count):
            await asyncio.sleep(max(0.0, began_s + number / RATE - time.monotonic()))
            asking.create_task(one(client, number))
    return count, failures


async def _end(tier: Tier) -> float:
    began_s = time.monotonic()
    await tier.kill(signal.SIGTERM)
    return time.monotonic() - began_s


def _soaked(tier: str, samples: list[Sample], requests: int, failures: int, end_s: float) -> Soaked:
    steady = samples[int(len(samples) * _WARM_UP) :]
    quarter = max(1, len(steady) // 4)
    slope, bound = slope_of([one.at_s / 3600 for one in steady], [one.rss_bytes for one in steady])

    def growth(values: list[int]) -> int:
        return min(values[-quarter:]) - min(values[:quarter])

    share = (steady[-1].at_s - steady[0].at_s) / samples[-1].at_s
    return Soaked(
        tier,
        slope,
        bound,
        steady[-1].rss_bytes,
        growth([one.descriptors for one in steady]),
        growth([one.threads for one in steady]),
        (steady[-1].written_bytes - steady[0].written_bytes) / (requests * share),
        end_s,
        requests,
        failures,
    )


def slope_of(at: list[float], values: list[float]) -> tuple[float, float]:
    """Least squares: the slope, and its upper bound at two standard errors."""
    x, y = np.array(at), np.array(values, float)
    spread = float(((x - x.mean()) ** 2).sum())
    if len(at) < 3 or not spread:
        return 0.0, math.inf
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    residuals = y - y.mean() - slope * (x - x.mean())
    error = math.sqrt(float((residuals**2).sum()) / (len(at) - 2) / spread)
    return slope, slope + 2 * error
