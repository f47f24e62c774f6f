"""Runs the simulated hour with each variant alone and with the controller, and reports the figures."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import to_builtins

from bench.figures import Figure
from bench.hardware.controller.device import HourResult, Simulated
from bench.hardware.controller.scenario import EPSILON, Scenario, Variant, rungs_of
from bench.hardware.controller.variants import rows_of_variants, variants
from bench.pools import CIFAR10, DATA


def measure() -> tuple[list[Figure], dict[str, Any]]:
    """Returns the figures of this part and its assumptions; no figures if the images are missing."""
    scenario = Scenario()
    record = {"scenario": to_builtins(scenario)}
    if (missing := CIFAR10.missing_in(DATA)) is not None:
        print(f"controller is skipped: missing {missing}.", file=sys.stderr)
        return [], record
    return list(figures(scenario, variants(rows_of_variants(), scenario))), record


def hour(scenario: Scenario, of: Sequence[Variant]) -> dict[str, HourResult]:
    """Returns the results with each variant alone, by its name, and with the controller, under ""."""
    rungs = rungs_of(of, scenario)
    found = {rung.variant: Simulated(scenario, of, at).run() for at, rung in enumerate(rungs)}
    return found | {"": Simulated(scenario, of, None).run()}


def figures(scenario: Scenario, of: Sequence[Variant]) -> Iterator[Figure]:
    """Yields the figures of one hour, with their aims."""
    results = hour(scenario, of)
    controlled, fixed = results.pop(""), results
    for name, each in fixed.items():
        yield Figure(f"always {name}: deadlines met", _share(each.met, each.rows), "share")
        yield Figure(f"always {name}: hottest", round(each.hottest_c, 1), "C")
        yield Figure(f"always {name}: throttled", round(each.throttled_s), "s")
        yield Figure(f"always {name}: energy beyond idle", round(each.energy_j(scenario)), "J")
    best = max(_share(each.met, each.rows) for each in fixed.values())
    met = _share(controlled.met, controlled.rows)
    broken = _share(controlled.disagreed, controlled.kept)
    most_j = fixed[of[0].name].energy_j(scenario)
    saved = round(1 - controlled.energy_j(scenario) / most_j, 4)
    yield Figure("rows in the hour", controlled.rows, "count")
    yield Figure("best fixed variant: deadlines met", best, "share", "<= 0.9", best <= 0.9)
    yield Figure("deadlines met", met, "share", ">= 0.99", met >= 0.99)
    yield Figure("answered in time, provisional ones too", _share(controlled.answered, controlled.rows), "share")
    throttled_s = round(controlled.throttled_s)
    yield Figure("throttled", throttled_s, "s", "0", throttled_s == 0)
    yield Figure("hottest", round(controlled.hottest_c, 1), "C")
    yield Figure("energy beyond idle", round(controlled.energy_j(scenario)), "J")
    yield Figure("energy saved against always the largest", saved, "share", ">= 0.25", saved >= 0.25)
    aim = f"<= {EPSILON:g}"
    yield Figure("edge answers that the full model contradicts", broken, "share", aim, broken <= EPSILON)
    shared_s = round(controlled.shared_s)
    yield Figure("heat had requests shared out for", shared_s, "s", "> 0", shared_s > 0)


def _share(part: int, whole: int) -> float:
    return round(part / max(1, whole), 4)
