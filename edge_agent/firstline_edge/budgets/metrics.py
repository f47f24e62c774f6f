"""Metrics of the budgets."""

from __future__ import annotations

from functools import partial

from firstline_core.telemetry.metrics import RequestMetrics
from firstline_edge.budgets.spending import Spending


def register_metrics(metrics: RequestMetrics, spending: Spending | None) -> None:
    """Registers spent and remaining amounts and prices by budget."""
    for name, description, key in (
        ("budget_spent", "What was spent in this hour or day.", "spent"),
        ("budget_left", "What may still be spent in it.", "left"),
        ("budget_price", "What a unit is worth at the moment, 0 while the budget is ample.", "price"),
    ):
        metrics.readings(name, description, ("budget",), partial(_by_budget, spending, key))


def _by_budget(spending: Spending | None, key: str) -> dict[tuple[str, ...], float]:
    return {(budget["budget"],): budget[key] for budget in spending.status()} if spending is not None else {}
