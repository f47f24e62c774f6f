"""The hour's figures."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from bench.figures import Figure
from bench.hardware.controller.device import Simulated, Told
from bench.hardware.controller.scenario import EPSILON, HOUR_S, Stated, Variant, rungs_of
from bench.hardware.controller.variants import Measured, measured, rows_of_variants, variants
from bench.hardware.thermal import Heat, fitted
from bench.pools import CIFAR10, DATA


def measure(stated: Stated | None = None) -> tuple[list[Figure], Measured | None]:
    """All of this part's figures, and what was measured for them; none where the images are not here."""
    if (missing := CIFAR10.missing_in(DATA)) is not None:
        print(f"controller is left out: there is no {missing}.", file=sys.stderr)
        return [], None
    fit, stated, said = fitted(), stated or Stated(), rows_of_variants()
    found = variants(said, stated.row_ms)
    return [
        Figure("heat model: error of the fit", round(fit.rmse_c, 2), "C"),
        Figure("heat model: error on another board's curve", round(fit.other_rmse_c, 2), "C"),
        *figures(fit.heat, stated, found),
    ], measured(said, found)


def hour(stated: Stated, heat: Heat, of: Sequence[Variant]) -> dict[str, Told]:
    """By variant alone, and under the controller (its name is "")."""
    rungs = rungs_of(of, stated)
    found = {rung.variant: Simulated(stated, heat, of, at).run() for at, rung in enumerate(rungs)}
    return found | {"": Simulated(stated, heat, of, None).run()}


def figures(heat: Heat, stated: Stated, of: Sequence[Variant]) -> Iterator[Figure]:
    """Of one hour, with what was aimed for."""
    told = hour(stated, heat, of)
    controlled, fixed = told.pop(""), told
    for name, each in fixed.items():
        yield Figure(f"always {name}: deadlines met", _share(each.met, each.rows), "share")
        yield Figure(f"always {name}: hottest", round(each.hottest_c, 1), "C")
        yield Figure(f"always {name}: throttled", round(each.throttled_s), "s")
        yield Figure(f"always {name}: energy beyond idle", round(each.energy_j(stated)), "J")
    best = max(_share(each.met, each.rows) for each in fixed.values())
    met = _share(controlled.met, controlled.rows)
    broken = _share(controlled.disagreed, controlled.kept)
    most_j = fixed[of[0].name].energy_j(stated)
    saved = round(1 - controlled.energy_j(stated) / most_j, 4)
    yield Figure("rows in the hour", controlled.rows, "count")
    yield Figure("best fixed variant: deadlines met", best, "share", "<= 0.9", best <= 0.9)
    yield Figure("deadlines met", met, "share", ">= 0.99", met >= 0.99)
    yield Figure("answered in time, provisional ones too", _share(controlled.answered, controlled.rows), "share")
    throttled_s = round(controlled.throttled_s)
    yield Figure("throttled", throttled_s, "s", "0", throttled_s == 0)
    yield Figure("hottest", round(controlled.hottest_c, 1), "C")
    yield Figure("energy beyond idle", round(controlled.energy_j(stated)), "J")
    yield Figure("energy saved against always the largest", saved, "share", ">= 0.25", saved >= 0.25)
    whole = 1 - (controlled.energy_j(stated) + _idle_j(stated)) / (most_j + _idle_j(stated))
    yield Figure("the same with the idle board's", round(whole, 4), "share")
    aim = f"<= {EPSILON:g}"
    yield Figure("edge answers that the full model contradicts", broken, "share", aim, broken <= EPSILON)
    yield Figure("heat had requests shared out for", round(controlled.shared_s), "s")


def _share(part: int, whole: int) -> float:
    return round(part / max(1, whole), 4)


def _idle_j(stated: Stated) -> float:
    return stated.idle_w * stated.hours * HOUR_S
