"""On time: what each policy answers by the deadline, over links of every kind.

The agent's own cascade, router, link chain, breaker and delivery run on simulated time; requests come at random and in
bursts. One half of each pool is what the bundle learned and certified on, the requests are of the other.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bench.figures import Figure
from bench.pools import TRAINSAMPLE, Pool
from bench.routing.arrivals import Traffic
from bench.routing.device import Given, device, serve
from bench.routing.parts import Effort, Job
from bench.routing.policies import KINDS, router_of
from bench.routing.replay import Deployed, ReplayedGateway, deploy, held_model
from bench.simulation.network import SimulatedLink, Weather
from bench.simulation.simulated_time import LoopClock, simulate
from firstline_core.routing.policy import PolicyKind
from firstline_core.types import Tier

DEADLINE_S = 0.4
EDGE_MS, FULL_MS = 10.0, 25.0
"""What either model is stated to take."""

_LONG_S = 100_000
WEATHERS = (
    Weather("20 ms, 20 Mbit/s", 20, 20),
    Weather("50 ms, 5 Mbit/s", 50, 5),
    Weather("200 ms, 1 Mbit/s", 200, 1),
    Weather("50 ms, 5 Mbit/s, 2% loss", 50, 5, loss=0.02),
    Weather("50 ms, 5 Mbit/s, stalls", 50, 5, stalls=[(at + 5, at + 7) for at in range(0, _LONG_S, 20)]),
    Weather("50 ms, 5 Mbit/s, off 1/3", 50, 5, off=[(at + 20, at + 40) for at in range(0, _LONG_S, 60)]),
)
ANSWERED = 0.999
"""By the deadline, over any link: the edge answer is always there."""

_SEED = 20261121


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of traffic under one policy, over one link.

    Args:
        answered: share of the requests answered by the deadline.
        p50_ms, p99_ms: until the answer.
        sent_kb: a request, corrections and probes included.
        escalated: share answered by the full model at once.
        correct: share answered correctly by the deadline.
        corrected: the same, once what was promised has come.
        probes_at_once: the most that were ever under way together.
    """

    pair: str
    weather: str
    policy: str
    requests: int
    answered: float
    p50_ms: float
    p99_ms: float
    sent_kb: float
    escalated: float
    correct: float
    corrected: float
    probes_at_once: int


def jobs(pools: Mapping[str, Pool], effort: Effort) -> list[Job]:
    found = []
    for pool in pools.values():
        if pool.name == TRAINSAMPLE.name:
            continue
        deployed = deploy(pool, seed=_SEED)
        for weather in WEATHERS:
            call = partial(measure, deployed, weather, effort.requests)
            found.append(Job(f"on time: {pool.name}, {weather.name}", call))
    return found


def measure(deployed: Deployed, weather: Weather, requests: int) -> list[Stretch]:
    """Every policy over one link, with the same traffic."""
    return [simulate(_stretch(kind, deployed, weather, requests)) for kind in KINDS]


async def _stretch(kind: PolicyKind, deployed: Deployed, weather: Weather, requests: int) -> Stretch:
    clock, random_numbers = LoopClock(), np.random.default_rng(_SEED)
    asked, traffic = deployed.asked, Traffic()
    arrivals = traffic.arrivals(random_numbers, traffic.length_for(requests))
    rows = random_numbers.integers(0, len(asked.labels), len(arrivals))
    gateway = ReplayedGateway(deployed.manifest, asked, FULL_MS, clock)
    link = SimulatedLink(weather, gateway, clock, random.Random(_SEED))
    model = held_model(deployed.manifest, asked, EDGE_MS, clock)
    async with device(model, router_of(kind, model, deployed.fitted, clock), link, clock, _SEED) as on:
        given = await serve(on, asked, rows.tolist(), arrivals, deadline_s=DEADLINE_S, clock=clock)
    return _summary(kind, asked, weather, given, link)


def _summary(kind: str, asked: Pool, weather: Weather, given: Sequence[Given], link: SimulatedLink) -> Stretch:
    took_ms = np.array([one.seconds for one in given]) * 1000
    labels = asked.labels[[one.row for one in given]]
    in_time = took_ms <= DEADLINE_S * 1000
    right = np.array([one.predicted for one in given]) == labels
    return Stretch(
        pair=asked.name,
        weather=weather.name,
        policy=kind,
        requests=len(given),
        answered=float(in_time.mean()),
        p50_ms=float(np.quantile(took_ms, 0.5)),
        p99_ms=float(np.quantile(took_ms, 0.99)),
        sent_kb=link.sent_bytes / len(given) / 1000,
        escalated=float(np.mean([one.tier is Tier.CLOUD for one in given])),
        correct=float((right & in_time).mean()),
        corrected=float((np.array([one.later for one in given]) == labels).mean()),
        probes_at_once=link.probes_at_once,
    )


def figures(records: Sequence[Stretch]) -> list[Figure]:
    found = []
    for one in records:
        what = f"{one.pair}, {one.weather}, {one.policy}"
        aim, holds = (f">= {ANSWERED}", one.answered >= ANSWERED) if one.policy == "certified" else (None, None)
        found += [
            Figure(f"{what}: answered within {DEADLINE_S * 1000:g} ms", one.answered, "share of requests", aim, holds),
            Figure(f"{what}: p50", one.p50_ms, "ms"),
            Figure(f"{what}: p99", one.p99_ms, "ms"),
            Figure(f"{what}: sent", one.sent_kb, "kB a request"),
            Figure(f"{what}: correct by then", one.correct, "share of requests"),
            Figure(f"{what}: correct once corrections came", one.corrected, "share of requests"),
        ]
    most = max((one.probes_at_once for one in records), default=0)
    found.append(Figure("simulated links: probes at once, at most", most, "count", "<= 1", most <= 1))
    return found
