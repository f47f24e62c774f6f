"""The budgets of the settings, and the sensors whose readings raise prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from firstline_core.clock import Clock
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import Snapshot, measured
from firstline_core.hardware.sensors import Sensors
from firstline_core.routing.account import Account, Conditions, Cost, LinkTariff, Tariff
from firstline_core.routing.budget import Budget, Ledger, Meter
from firstline_core.units import DAY_S, HOUR_S, MIB
from firstline_edge.budgets.spending import AROUND_BYTES, Spending, SpendingFile, StoredSpending
from firstline_edge.hardware.sampler import Sampler
from firstline_edge.settings.settings import BudgetSection, EdgeSettings, link_names


def open_spending(
    settings: EdgeSettings, path: Path, clock: Clock, *, links: Callable[[], Sequence[str]], sampler: Sampler
) -> Spending:
    """Returns the spending as it was stored; nothing has a price until the settings limit it or decide by it.

    Args:
        settings: budgets and costs.
        path: file of the ledgers.
        clock: its wall time starts the hours and days of the budgets.
        links: returns the names of the links that a request would try now, in order.
        sampler: reads battery and heat.
    """
    costs, file = settings.costs, SpendingFile(path)
    stored = file.read() if budgets_of(settings.budget) else StoredSpending()
    return Spending(
        _account(settings, stored.ledgers),
        tariff_of(settings),
        clock,
        file=file,
        around_bytes=stored.around_bytes,
        links=links,
        sense=lambda: conditions_of(sampler.latest, costs.heat_limit_c),
        metered_factor=costs.metered_factor,
    )


def replace_budgets(spending: Spending, settings: EdgeSettings) -> None:
    """Replaces budgets and costs; a budget that remains keeps its spending."""
    ledgers = {name: meter.ledger for name, meter in spending.account.meters.items()}
    account = _account(settings, ledgers)
    spending.adopt(account, tariff_of(settings), settings.costs.metered_factor)


def _account(settings: EdgeSettings, ledgers: Mapping[str, Ledger]) -> Account:
    """Returns the account; without budgets and a policy by value, resources have no price."""
    budgets, costs = budgets_of(settings.budget), settings.costs
    priced = bool(budgets) or settings.policy.kind == "value"
    return Account(
        {name: Meter(budget, ledgers.get(name) or Ledger()) for name, budget in budgets.items()},
        worth=costs.worth,
        worths=Cost(joules=costs.money_per_joule, money=1.0) if priced else Cost(),
    )


def budgets_of(section: BudgetSection) -> dict[str, Budget]:
    """Returns budgets by name, such as "bytes/day"; an amount of 0 means no budget."""
    return {
        f"{resource}/{period}": Budget(float(amount), period_s)
        for resource in Cost._fields
        for period, period_s in (("hour", HOUR_S), ("day", DAY_S))
        if (amount := getattr(section, f"{resource}_per_{period}"))
    }


def tariff_of(settings: EdgeSettings) -> Tariff:
    """Returns the prices of traffic and runs."""
    links = {
        name: LinkTariff(
            section.joules_per_mib_sent / MIB,
            section.joules_per_mib_received / MIB,
            settings.costs.money_per_mib / MIB if section.metered else 0.0,
            section.metered,
        )
        for name, section in zip(link_names(settings.links), settings.links, strict=True)
    }
    costs = settings.costs
    return Tariff(links, costs.money_per_request, costs.joules_per_run, costs.joules_per_core_second, costs.watts_idle)


def escalation_mj(settings: EdgeSettings, links: Callable[[], Sequence[str]]) -> Callable[[float], float]:
    """Returns the stated energy of an escalation, in millijoules by the bytes of a row.

    Args:
        settings: costs and links.
        links: names of the links that a request would try now, in order.
    """
    tariff = tariff_of(settings)
    return lambda size_bytes: 1000 * tariff.of_link(next(iter(links()), "")).cost(size_bytes, AROUND_BYTES).joules


def conditions_of(now: Snapshot, heat_limit_c: float) -> Conditions:
    """Returns the measured conditions; a value without a sensor is unknown.

    Args:
        now: the latest snapshot.
        heat_limit_c: limit of the hottest part.
    """
    battery, hottest_c = measured(now.battery_share), measured(now.hottest_c)
    powered = battery is None or measured(now.powered) == 1
    return Conditions(battery, powered, None if hottest_c is None else hottest_c - heat_limit_c)


def device_sensors(settings: EdgeSettings, queue: Callable[[], float] | None = None) -> Sensors:
    """Returns the device's sensors.

    Args:
        settings: the agent's settings.
        queue: number of waiting runs; None if no agent runs.
    """
    return Sensors(
        Tree(Path(settings.hardware.root)),
        tariff=tariff_of(settings),
        power_rails=settings.hardware.power_rails,
        queue=queue,
    )
