"""Whom to let in under overload: the predicted wait, beside the limits that others put on what is in flight.

The same scheduling on simulated time, with another rule at its door each: none, a fixed queue, a limit that grows by
one and shrinks by a tenth (AIMD), and one that follows the ratio of latencies (Gradient2; both as in Netflix's
concurrency-limits, with its defaults), each first come, first served. A row takes 10 ms; half of the requests allow
60 ms, half 500. The unsteady machine is half as fast for half a second, every other second.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from figures import Figure, report
from support.simulated_load import Asked, Ended, Load

from firstline_core.errors import QueueFullError
from firstline_core.types import InferRequest, ModelKey
from firstline_gateway.serving.scheduling.admission import Admission, Before, Bounds
from firstline_gateway.serving.scheduling.waiting import Queue, Waiting

MODEL = ModelKey("m", 1)
ROW_S, SECONDS, SEEDS = 0.010, 6.0, 3
TIMEOUTS_S = (0.06, 0.5)
TIMES_CAPACITY = (0.95, 2.0, 10.0)


class Limit(Protocol):
    """How many requests may be in flight."""

    limit: float

    def learn(self, latency_s: float, in_flight: int, *, late: bool) -> None: ...


class Fixed:
    """Never learns."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def learn(self, latency_s: float, in_flight: int, *, late: bool) -> None:
        pass


class Aimd:
    """One more for each round of answers in time, a tenth less for one that is late (Netflix's AIMDLimit)."""

    def __init__(self) -> None:
        self.limit = 20.0

    def learn(self, latency_s: float, in_flight: int, *, late: bool) -> None:
        if late:
            self.limit = max(1.0, 0.9 * self.limit)
        elif 2 * in_flight >= self.limit:
            self.limit = min(200.0, self.limit + 1 / self.limit)


class Gradient:
    """Follows how latency compares with its long mean (Netflix's Gradient2Limit)."""

    def __init__(self) -> None:
        self.limit = 20.0
        self._long_s = 0.0
        self._seen = 0

    def learn(self, latency_s: float, in_flight: int, *, late: bool) -> None:
        self._seen += 1
        weight = 1 / self._seen if self._seen < 10 else 2 / 601
        self._long_s += weight * (latency_s - self._long_s)
        if self._long_s > 2 * latency_s:
            self._long_s *= 0.95
        if in_flight < self.limit / 2:
            return
        gradient = max(0.5, min(1.0, 1.5 * self._long_s / latency_s))
        new = self.limit * gradient + 4.0
        self.limit = min(200.0, max(20.0, 0.8 * self.limit + 0.2 * new))


class Limited(Admission):
    """Lets in what fits under a limit, first come, first served."""

    def __init__(self, queue: Queue, bounds: Bounds, limit: Limit) -> None:
        super().__init__(queue, bounds)
        self._limit = limit
        self._asked_s: dict[int, float] = {}

    def let_in(self, key: ModelKey, request: InferRequest, now_s: float, before: Before, *, idle: bool) -> Waiting:
        if len(self._asked_s) >= self._limit.limit:
            raise QueueFullError("There is no room.", retry_after_s=0.0)
        item = self._foresee(key, request, now_s, begins_s=now_s, due_s=now_s)
        self._asked_s[id(item)] = now_s
        return item

    def learn(self, item: Waiting, now_s: float) -> None:
        asked_s = self._asked_s.pop(id(item))
        self._limit.learn(now_s - asked_s, len(self._asked_s) + 1, late=now_s >= item.latest_s)


class Rule(NamedTuple):
    name: str
    limit: Callable[[], Limit] | None  # None: what the gateway does


RULES = (
    Rule("no limit", partial(Fixed, math.inf)),
    Rule("a queue of 32", partial(Fixed, 33)),
    Rule("AIMD", Aimd),
    Rule("gradient", Gradient),
    Rule("predicted wait", None),
)


def requests(seed: int, rate: float) -> list[Asked]:
    draw, plan, at_s = random.Random(seed), [], 0.0
    while (at_s := at_s + draw.expovariate(rate)) < SECONDS:
        plan.append(Asked(at_s, MODEL, timeout_s=draw.choice(TIMEOUTS_S)))
    return plan


async def play(rule: Rule, plan: list[Asked], *, steady: bool) -> list[Ended]:
    load = Load({MODEL: (0.0, ROW_S)})
    if rule.limit is not None:
        batcher = load.batcher
        batcher._admission = Limited(batcher._queue, batcher._bounds, rule.limit())
    await load.warm(1, 2, 4)
    now_s = load.clock.monotonic_s()
    for start_s in () if steady else range(1, int(SECONDS), 2):
        for at_s, slowness in ((start_s, 2.0), (start_s + 0.5, 1.0)):
            load.clock.call_at(now_s + at_s, partial(setattr, load.executor, "slowness", slowness))
    return await load.play(plan)


def measure() -> list[Figure]:
    found = []
    for steady, times in itertools.product((True, False), TIMES_CAPACITY):
        where = f"{'steady' if steady else 'unsteady'} machine at {times:g} times capacity"
        goodput: dict[str, float] = {}
        for rule in RULES:
            runs = [asyncio.run(play(rule, requests(seed, times / ROW_S), steady=steady)) for seed in range(SEEDS)]
            in_time = [sum(not each.refused and not each.late for each in run) for run in runs]
            late = [sum(each.late for each in run) for run in runs]
            goodput[rule.name] = statistics.median(in_time) / SECONDS
            late_share = statistics.median(
                too_late / max(1, too_late + good) for too_late, good in zip(late, in_time, strict=True)
            )
            found += [
                Figure(f"{where}, {rule.name}: answered in time", round(goodput[rule.name], 1), "/s"),
                Figure(f"{where}, {rule.name}: of what was let in, late", round(100 * late_share, 2), "%"),
            ]
            print(f"{where}: {rule.name}", file=sys.stderr, flush=True)
        best = max(value for name, value in goodput.items() if name != RULES[-1].name)
        ratio = goodput[RULES[-1].name] / best
        found.append(
            Figure(
                f"{where}: predicted wait over the best other", round(ratio, 2), "times", "at least 0.90", ratio >= 0.9
            )
        )
    return found


if __name__ == "__main__":
    sys.exit(report("admission", measure()))
