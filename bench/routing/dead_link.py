"""A dead link: what it adds to a request that would have been escalated, in real time, and how often it is tried.

The request is one that the edge model is unsure of: over a live link it would travel, before a dead one it is answered
here and its correction promised. What that takes beyond keeping the answer to a sure row is the dead link's cost,
before the promise's fsync: the outbox is in memory.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from figures import Figure
from pools import DIGITS, Pool
from simulation.network import SimulatedLink, Weather

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.ids import new_request_id
from firstline_core.routing.confidence import score
from firstline_core.types import InferRequest, Reason
from firstline_edge.cascade.router import Router
from routing.device import Device, device
from routing.parts import Effort, Job, Table
from routing.replay import NAME, ReplayedGateway, held_model, manifest_of, tensor_of

AIM_MS = 1.0
_REQUESTS = 2000
_WARM_UP = 200
_PROBES_S = 5.0  # patience for the breaker to open


@dataclass(frozen=True, slots=True)
class DeadLink:
    """Medians of one request, in milliseconds, and what the link saw."""

    sure_ms: float
    unsure_ms: float
    requests: int
    probes: int
    probes_at_once: int

    @property
    def added_ms(self) -> float:
        return self.unsure_ms - self.sure_ms


def jobs(pools: Mapping[str, Pool], effort: Effort) -> list[Job]:
    return [Job("on time: a dead link", partial(measure, pools[DIGITS.name], _REQUESTS))]


def measure(pool: Pool, requests: int) -> list[DeadLink]:
    return [asyncio.run(_measure(pool, requests))]


async def _measure(pool: Pool, requests: int) -> DeadLink:
    clock = SYSTEM_CLOCK
    manifest = manifest_of(pool, 0.05, 0.1)
    nobody = ReplayedGateway(manifest, pool, 0.0, clock)
    link = SimulatedLink(Weather("dead", 0.0, 1000.0, off=((0.0, float("inf")),)), nobody, clock, random.Random(0))
    model = held_model(manifest, pool, 0.1, clock)
    router = Router(min_threshold=0.0)
    threshold = router.threshold(model)
    sure_of = score("max_probability", pool.edge)
    async with device(model, router, link, clock, seed=0) as on:
        until_s = time.monotonic() + _PROBES_S
        while on.chain.available and time.monotonic() < until_s:  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.01)
        sure = await _median_ms(on, pool, np.flatnonzero(sure_of >= threshold), Reason.CONFIDENT, requests)
        unsure = await _median_ms(on, pool, np.flatnonzero(sure_of < threshold), Reason.LINK_DOWN, requests)
    return DeadLink(sure, unsure, link.requests, link.probes, link.probes_at_once)


async def _median_ms(on: Device, pool: Pool, rows: Sequence[int], expected: Reason, requests: int) -> float:
    took_s = []
    for number in range(_WARM_UP + requests):
        row = int(rows[number % len(rows)])
        request = InferRequest(NAME, (tensor_of(pool, row),), new_request_id(), deadline_s=time.monotonic() + 2)
        began_s = time.perf_counter()
        response = await on.cascade.infer(request)
        took_s.append(time.perf_counter() - began_s)
        if response.answer is None or response.answer.reason is not expected:
            raise AssertionError(f"Row {row} was answered for another reason than '{expected}'.")
        if not number % 100:
            await asyncio.sleep(0)  # the probes' turn
    return float(np.median(took_s[_WARM_UP:])) * 1000


def figures(records: Sequence[DeadLink]) -> list[Figure]:
    found = []
    for one in records:
        what = "dead link"
        added, probes = one.added_ms, one.probes_at_once
        found += [
            Figure(
                f"{what}: added to a request at p50, before the fsync", added, "ms", f"< {AIM_MS:g}", added < AIM_MS
            ),
            Figure(f"{what}: probes at once, at most", probes, "count", "<= 1", probes <= 1),
            Figure(f"{what}: requests sent into it", one.requests, "count", "0", one.requests == 0),
        ]
    return found


def tables(records: Sequence[DeadLink]) -> list[Table]:
    columns = ("sure row p50 ms", "unsure row p50 ms", "added ms", "sent into it", "probes", "at once")
    rows = [
        (
            f"{one.sure_ms:.3f}",
            f"{one.unsure_ms:.3f}",
            f"{one.added_ms:.3f}",
            str(one.requests),
            str(one.probes),
            str(one.probes_at_once),
        )
        for one in records
    ]
    return [Table("On time: what a dead link adds, in real time, before the promise's fsync", columns, rows)]
