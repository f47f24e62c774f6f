"""What deciding costs on the device: verdict and budget check of one row, given what the edge model said of it.

    python bench/decision.py

Policies, certificates and budgets as the agent uses them, on the digits bundle. What is bought is also paid, but not
timed: that belongs to sending, which takes a thousand times as long. Writes bench/results/decision.json.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from figures import Figure, report

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import BudgetExceededError
from firstline_core.routing import policies
from firstline_core.routing.account import Account
from firstline_core.routing.budget import DAY_S, HOUR_S, Budget, Ledger, Meter
from firstline_core.routing.tariff import LinkTariff, Tariff
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import InferRequest, Tensor, Tier
from firstline_edge.budgets.spending import Spending
from firstline_edge.cascade.router import Router
from firstline_edge.models.held import HeldModel
from firstline_edge.models.loading import hold
from firstline_edge.models.workers import Workers
from firstline_edge.requests.model_output import ModelOutput
from firstline_edge.requests.rows import Row

_DIGITS = Path(__file__).parents[1] / "models" / "digits" / "bundle"
_ROWS = 10_000
_PASSES = 5  # the quietest counts: what else the machine does is not the device's cost
_PAYLOAD_BYTES = 3000
_AIM_US = 5.0

_SENT = InferRequest("digits", (Tensor("image", np.zeros((1, _PAYLOAD_BYTES), np.uint8)),), "")


class Cost(NamedTuple):
    """Of one decision, in microseconds."""

    p50_us: float
    p99_us: float


def rows(count: int, classes: int, seed: int = 0) -> list[Row]:
    """Evidence as edge models give it, sure and unsure."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(count, classes)) * rng.uniform(1, 8, (count, 1))
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = (probabilities / probabilities.sum(axis=1, keepdims=True)).astype(np.float32)
    return [Row(0, b"", ModelOutput(row, float(row.max()), 0.7 * float(1 - row.max()))) for row in probabilities]


def one_budget() -> Spending:
    """A daily limit of bytes."""
    return Spending(Account({"bytes/day": Meter(Budget(4e6, DAY_S), Ledger())}), Tariff(), SYSTEM_CLOCK)


def all_budgets() -> Spending:
    """Every resource by the hour and by the day, over a metered link, so short that prices are above 0."""
    amounts = {"bytes": 4e6, "joules": 4e2, "money": 4.0}
    meters = {
        f"{resource}/{name}": Meter(Budget(amount * share, period_s), Ledger())
        for resource, amount in amounts.items()
        for name, period_s, share in (("hour", HOUR_S, 1.0), ("day", DAY_S, 8.0))
    }
    tariff = Tariff({"http": LinkTariff(1e-4, 1e-4, 1e-6, metered=True)}, money_per_request=1e-4, joules_per_run=1e-3)
    return Spending(Account(meters), tariff, SYSTEM_CLOCK, links=lambda: ["http"])


def decider(router: Router, held: HeldModel, spending: Spending | None) -> Callable[[Row], bool]:
    """What the cascade does with a row between the edge model's answer and either way out: True where it escalates."""

    def decide(row: Row) -> bool:
        verdict = router.verdict(held, row)
        if verdict.tier is Tier.EDGE:
            router.covers(held, row, verdict)
            return False
        return spending is None or spending.denial(_PAYLOAD_BYTES, row.value, demanded=verdict.demanded) is None

    return decide


def measure(decide: Callable[[Row], bool], spending: Spending | None, evidence: Sequence[Row]) -> Cost:
    """Times each decision by itself, less what looking at the clock takes."""
    clock = time.perf_counter_ns
    looking_ns, taken_ns = [], []
    for row in evidence:
        started_ns = clock()
        looked_ns = clock()
        escalates = decide(row)
        ended_ns = clock()
        looking_ns.append(looked_ns - started_ns)
        taken_ns.append(ended_ns - looked_ns)
        if escalates and spending is not None:
            with contextlib.suppress(BudgetExceededError), spending.paid(_SENT):
                pass
    net_us = (np.array(taken_ns[len(taken_ns) // 10 :]) - np.median(looking_ns)) / 1000
    return Cost(float(np.median(net_us)), float(np.quantile(net_us, 0.99)))


def measured() -> list[Figure]:
    """Every policy, without budgets and with one or all of them."""
    workers = Workers(1, 1)
    held = hold(_DIGITS, RuntimeOptions(threads=1), workers)
    workers.close()
    evidence = rows(_ROWS, len(held.manifest.labels))
    figures: list[Figure] = []
    for kind in policies.KINDS:
        for name, spending in (("no budget", None), ("bytes a day", one_budget()), ("all six budgets", all_budgets())):
            chosen = policies.make(kind)
            if not chosen.certifies and spending is not None:
                continue
            decide = decider(Router(min_threshold=0.0, chosen=chosen), held, spending)
            found = min(measure(decide, spending, evidence) for _ in range(_PASSES))
            figures.append(
                Figure(
                    f"one decision, {kind}, {name}: p50",
                    round(found.p50_us, 2),
                    "us",
                    f"< {_AIM_US:g}",
                    found.p50_us < _AIM_US,
                )
            )
            figures.append(Figure(f"one decision, {kind}, {name}: p99", round(found.p99_us, 2), "us"))
    return figures


if __name__ == "__main__":
    sys.exit(report("decision", measured()))
