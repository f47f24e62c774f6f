"""Runs the simulated hour with each variant alone and with the controller, and reports the figures."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import to_builtins

from bench.figures import Figure, at_least, at_most
from bench.hardware.controller.device import Simulated
from bench.hardware.controller.scenario import EPSILON, Scenario, Variant, rungs_of
from bench.hardware.controller.variants import variants
from bench.pools import CIFAR10, DATA


def measure() -> tuple[list[Figure], dict[str, Any]]:
    """Returns the figures of this part and its assumptions; no figures if the images are missing."""
    scenario = Scenario()
    record = {"scenario": to_builtins(scenario)}
    if (missing := CIFAR10.missing_in(DATA)) is not None:
        print(f"controller is skipped: missing {missing}.", file=sys.stderr)
        return [], record
    return list(figures(scenario, variants(scenario))), record


def figures(scenario: Scenario, of: Sequence[Variant]) -> Iterator[Figure]:
    """Yields the figures of one hour with each variant alone, and with the controller, with their aims."""
    rungs = rungs_of(of, scenario)
    fixed = {rung.variant: Simulated(scenario, of, at).run() for at, rung in enumerate(rungs)}
    controlled = Simulated(scenario, of, None).run()
    for name, each in fixed.items():
        yield Figure(f"always {name}: deadlines met", _share(each.met, each.rows), "share")
        yield Figure(f"always {name}: hottest", round(each.hottest_c, 1), "C")
        yield Figure(f"always {name}: throttled", round(each.throttled_s), "s")
        yield Figure(f"always {name}: energy beyond idle", round(each.energy_j(scenario)), "J")
    best = max(_share(each.met, each.rows) for each in fixed.values())
    met = _share(controlled.met, controlled.rows)
    broken = _share(controlled.disagreed, controlled.kept)
    saved = 1 - controlled.energy_j(scenario) / fixed[of[0].name].energy_j(scenario)
    yield Figure("rows in the hour", controlled.rows, "count")
    yield at_most("best fixed variant: deadlines met", best, 0.9, "share", 4)
    yield at_least("deadlines met", met, 0.99, "share", 4)
    yield Figure("answered in time, provisional ones too", _share(controlled.answered, controlled.rows), "share")
    throttled_s = round(controlled.throttled_s)
    yield Figure("throttled", throttled_s, "s", "0", throttled_s == 0)
    yield Figure("hottest", round(controlled.hottest_c, 1), "C")
    yield Figure("energy beyond idle", round(controlled.energy_j(scenario)), "J")
    yield at_least("energy saved against always the largest", saved, 0.25, "share", 4)
    yield at_most("edge answers that the full model contradicts", broken, EPSILON, "share", 4)
    shared_s = round(controlled.shared_s)
    yield Figure("heat had requests shared out for", shared_s, "s", "> 0", shared_s > 0)


def _share(part: int, whole: int) -> float:
    return round(part / max(1, whole), 4)
