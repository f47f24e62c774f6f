"""On budget: do budgets last for a day of bursty traffic, and what do they buy?

Rows of a pool come for three days, at random and in bursts, more of them at noon than at midnight. The shipped `value`
policy says which escalations the contract demands and which are only to be made if they are worth it, and the shipped
account decides, charges and moves its prices. The first day it knows nothing of what a day is like.

What is bought is compared with an offline optimum, which knows the whole day and the same learned values: the best
value for its cost first, until the same budget is spent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bench.figures import Figure
from bench.pools import TRAINSAMPLE, Pool
from bench.routing.arrivals import Floats, Traffic
from bench.routing.deployed import DECLARED, Deployed, deploy
from bench.routing.parts import Effort, Job
from firstline_core.routing.account import Account, Cost
from firstline_core.routing.budget import DAY_S, Budget, Ledger, Meter
from firstline_core.routing.policy import PolicyState, RowEvidence, make_policy, value_of
from firstline_core.tasks.classification import features, score
from firstline_core.types import Tier

RESOURCES = ("bytes", "joules", "money")
SHARES = (0.1, 0.3)
"""The budget, of what it would cost to escalate everything."""

HELD = 0.05
DAYS = 3
TRAFFIC = Traffic(rate_s=0.2, burst_rate_s=3.0, burst_s=20.0, between_s=600.0, day_swing=0.8)
_HEAD_BYTES = 700
_JOULES, _JOULES_A_BYTE = 0.2, 1e-5  # as a device would state them
_MONEY, _MONEY_A_BYTE = 1e-4, 1e-9
_START_S = 1_800_000_000.0 - 1_800_000_000.0 % DAY_S
_SEED = 20261121


@dataclass(frozen=True, slots=True)
class Day:
    """One day under one budget.

    Args:
        contract: a certificate was in force, and what it demands came first.
        share: the budget, of what it would cost to escalate everything.
        number: from 1.
        spent: of the budget.
        hours: moments of the day.
        spent_by, asked_by: what was spent by then, and the share of the day's requests that had come.
        gain: answers corrected, less those spoilt, a request.
        optimum: the same, offline.
    """

    pair: str
    resource: str
    contract: bool
    share: float
    number: int
    spent: float
    hours: Floats
    spent_by: Floats
    asked_by: Floats
    gain: float
    optimum: float

    @property
    def name(self) -> str:
        contract = "contract and value" if self.contract else "value alone"
        return f"{self.pair}: {self.resource} for {self.share:.0%}, {contract}, day {self.number}"


def jobs(pools: Mapping[str, Pool], effort: Effort) -> list[Job]:
    found = []
    for pool in pools.values():
        if pool.name != TRAINSAMPLE.name:
            deployed = deploy(pool, seed=_SEED)
            for resource in RESOURCES:
                found.append(Job(f"on budget: {pool.name}, {resource}", partial(measure, deployed, resource)))
    return found


def measure(deployed: Deployed, resource: str) -> list[Day]:
    """At each size of the budget; that of bytes with a contract as well."""
    contracts = (False, True) if resource == "bytes" else (False,)
    return [day for contract in contracts for share in SHARES for day in _days(deployed, resource, contract, share)]


def _days(deployed: Deployed, resource: str, contract: bool, share: float) -> list[Day]:
    asked, manifest = deployed.asked, deployed.manifest
    random = np.random.default_rng(_SEED)
    costs = [_cost(int(size)) for size in asked.size_bytes]
    of_resource = np.array([getattr(cost, resource) for cost in costs])
    gains, scores = asked.gains(), score(manifest.policy.score.kind, asked.edge)
    learned = manifest.policy.value
    values = [
        value_of(None if learned is None else float(value), float(sure))
        for value, sure in zip(scores if learned is None else learned.losses(features(asked.edge)), scores, strict=True)
    ]
    certificate = manifest.edge[0].certificate if contract else None
    if contract and certificate is None:
        return []
    threshold = DECLARED if certificate is None else certificate.threshold
    policy, state = make_policy("value"), PolicyState()
    days = [TRAFFIC.arrivals(random, DAY_S) for _ in range(DAYS)]
    rows = [random.integers(0, len(values), len(times)) for times in days]
    amount = share * float(np.mean([of_resource[drawn].sum() for drawn in rows]))
    account = Account({resource: Meter(Budget(amount, DAY_S), Ledger())}, worth=1.0, worths=Cost())
    found = []
    for number, (times, drawn) in enumerate(zip(days, rows, strict=True)):
        spent = np.zeros(len(times))
        gained = 0.0
        for at, (passed_s, row) in enumerate(zip(times, drawn, strict=True)):
            now_s = _START_S + number * DAY_S + float(passed_s)
            seen = RowEvidence(
                float(scores[row]), values[row], threshold, certificate is not None, asked.edge[row], now_s
            )
            decision = policy.decide(seen, state)
            if decision.tier is not Tier.CLOUD:
                continue
            if account.decide(values[row], costs[row], now_s, demanded=decision.demanded) is None:
                account.take(costs[row], now_s)
                gained += gains[row]
                spent[at] = of_resource[row]
        thinned = np.linspace(0, len(times) - 1, 200).astype(np.intp)
        found.append(
            Day(
                asked.name,
                resource,
                contract,
                share,
                number + 1,
                float(spent.sum()) / amount,
                times[thinned] / 3600,
                np.cumsum(spent)[thinned] / amount,
                thinned / len(times),
                gained / len(times),
                _offline(np.array(values)[drawn], of_resource[drawn], gains[drawn], amount) / len(times),
            )
        )
    return found


def _cost(size_bytes: int) -> Cost:
    sent = size_bytes + _HEAD_BYTES
    return Cost(bytes=sent, joules=_JOULES + _JOULES_A_BYTE * sent, money=_MONEY + _MONEY_A_BYTE * sent)


def _offline(values: Floats, costs: Floats, gains: Floats, amount: float) -> float:
    """What the best value for its cost wins, until the amount is spent."""
    order = np.argsort(-values / costs, kind="stable")
    return float(gains[order][np.cumsum(costs[order]) <= amount].sum())


def figures(records: Sequence[Day]) -> list[Figure]:
    found = []
    for one in records:
        aim = f"within {HELD:.0%} of the budget"
        found.append(Figure(f"{one.name}: spent", one.spent, "of the budget", aim, abs(one.spent - 1) <= HELD))
        ratio = one.gain / one.optimum if one.optimum > 0 else None
        found.append(Figure(f"{one.name}: accuracy won, of the offline optimum's", ratio, "ratio"))
    return found
