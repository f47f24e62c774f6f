"""On budget, in the field: the agent's own cascade pays for what crosses a link, hour by hour, with promises kept late.

As `on_time.py`, with a budget of bytes an hour in the agent's own `Spending`, over a link that is dead for a third of
the time: live escalations and the redelivery of promises draw on the same purse. The link's own count says what was
really spent. Corrections for which an hour has no room are sent in the next one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bench.figures import Figure
from bench.pools import CIFAR10, Pool
from bench.routing.arrivals import Traffic
from bench.routing.device import device, serve
from bench.routing.kinds import router_of
from bench.routing.on_budget import HELD
from bench.routing.on_time import DEADLINE_S, EDGE_MS, FULL_MS
from bench.routing.parts import Effort, Job, Table
from bench.routing.replay import Deployed, ReplayedGateway, deploy, held_model
from bench.simulation.network import SimulatedLink, Weather
from bench.simulation.simulated_time import LoopClock, simulate
from firstline_core.routing.account import Account
from firstline_core.routing.budget import HOUR_S, Budget, Ledger, Meter
from firstline_core.routing.tariff import Tariff
from firstline_edge.budgets.spending import Spending

HOURS = 3
SHARE = 0.3
"""The budget, of what it would cost to escalate everything."""

TRAFFIC = Traffic(rate_s=0.3, burst_rate_s=3.0, burst_s=20.0, between_s=300.0)
_WEATHER = Weather("50 ms, 5 Mbit/s, off 1/3", 50, 5, off=[(at + 400, at + 600) for at in range(0, 20_000, 600)])
_SEED = 20261121


@dataclass(frozen=True, slots=True)
class Hour:
    """One hour of a device.

    Args:
        booked, counted: of the budget, by the ledger and by the link.
        requests: so many came.
    """

    pair: str
    number: int
    booked: float
    counted: float
    requests: int


def jobs(pools: Mapping[str, Pool], effort: Effort) -> list[Job]:
    pools = {name: pool for name, pool in pools.items() if name == CIFAR10.name}
    return [Job(f"on budget: {pool.name}, in the field", partial(measure, deploy(pool))) for pool in pools.values()]


def measure(deployed: Deployed) -> list[Hour]:
    return simulate(_hours(deployed))


async def _hours(deployed: Deployed) -> list[Hour]:
    clock, numbers, asked = LoopClock(), np.random.default_rng(_SEED), deployed.asked
    hours = [TRAFFIC.arrivals(numbers, HOUR_S) for _ in range(HOURS)]
    gateway = ReplayedGateway(deployed.manifest, asked, FULL_MS, clock)
    link = SimulatedLink(_WEATHER, gateway, clock, random.Random(_SEED))
    amount = (
        SHARE * float(np.mean([len(arrivals) for arrivals in hours])) * link.bytes_of(float(asked.size_bytes.mean()))
    )
    meter = Meter(Budget(amount, HOUR_S), Ledger())
    spending = Spending(Account({"bytes/hour": meter}), Tariff(), clock)
    model = held_model(deployed.manifest, asked, EDGE_MS, clock)
    router = router_of("value", model, deployed.fitted, clock)
    found = []
    async with device(model, router, link, clock, _SEED, spending=spending) as on:
        for number, arrivals in enumerate(hours):
            before = link.paid_bytes
            rows = numbers.integers(0, len(asked.labels), len(arrivals)).tolist()
            await serve(on, asked, rows, arrivals, deadline_s=DEADLINE_S, clock=clock, wait_for_promises=False)
            await clock.sleep((number + 1) * HOUR_S - 1.0 - clock.monotonic_s())
            booked = amount - meter.left(clock.wall_s())
            found.append(Hour(asked.name, number + 1, booked / amount, (link.paid_bytes - before) / amount, len(rows)))
            await clock.sleep((number + 1) * HOUR_S + 0.001 - clock.monotonic_s())
    return found


def figures(records: Sequence[Hour]) -> list[Figure]:
    found = []
    for one in records:
        what = f"{one.pair}: bytes for {SHARE:.0%} in the field, hour {one.number}"
        aim, holds = f"within {HELD:.0%} of the budget", abs(one.counted - 1) <= HELD
        found.append(Figure(f"{what}: spent, by the link's count", one.counted, "of the budget", aim, holds))
        found.append(Figure(f"{what}: spent, by the ledger", one.booked, "of the budget"))
    return found


def tables(records: Sequence[Hour]) -> list[Table]:
    rows = [
        (one.pair, str(one.number), str(one.requests), f"{one.counted:.1%}", f"{one.booked:.1%}") for one in records
    ]
    columns = ("pair", "hour", "requests", "spent, by the link", "by the ledger")
    return [Table("On budget, in the field: bytes of an hour, through the agent's own cascade", columns, rows)]
