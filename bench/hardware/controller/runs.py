"""The hour's figures, and those of others with one constant changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from figures import Figure

from hardware.controller.device import Simulated, Told
from hardware.controller.scenario import EPSILON, HOUR_S, VARIANTS, Stated, rungs_of
from hardware.thermal import Heat, fitted


def hour(stated: Stated, heat: Heat) -> dict[str, Told]:
    """By variant alone, and under the controller (its name is "")."""
    rungs = rungs_of(stated)
    found = {rung.variant: Simulated(stated, heat, rungs, at).run() for at, rung in enumerate(rungs)}
    return found | {"": Simulated(stated, heat, rungs, None).run()}


def figures(heat: Heat, stated: Stated) -> Iterator[Figure]:
    """Of one hour, with what was aimed for."""
    told = hour(stated, heat)
    controlled, fixed = told.pop(""), told
    for name, each in fixed.items():
        yield Figure(f"always {name}: deadlines met", _share(each.met, each.rows), "share")
        yield Figure(f"always {name}: hottest", round(each.hottest_c, 1), "C")
        yield Figure(f"always {name}: throttled", round(each.throttled_s), "s")
        yield Figure(f"always {name}: energy beyond idle", round(each.energy_j(stated)), "J")
    best = max(_share(each.met, each.rows) for each in fixed.values())
    met = _share(controlled.met, controlled.rows)
    broken = _share(controlled.disagreed, controlled.kept)
    most_j = fixed[VARIANTS[0].variant].energy_j(stated)
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
    yield Figure("kept answers that the full model contradicts", broken, "share", aim, broken <= EPSILON)
    yield Figure("switches", controlled.switches, "count")


def sensitivity(heat: Heat, stated: Stated) -> Iterator[Figure]:
    """The same with one constant changed, for a third of the hour: told, and aimed at nothing."""
    changes: dict[str, dict[str, float]] = {
        "2 C warmer": {"warmer_c": stated.warmer_c + 2},
        "4 C warmer": {"warmer_c": stated.warmer_c + 4},
        "6 C cooler": {"warmer_c": stated.warmer_c - 6},
        "rows 20 % slower": {"slower": 1.2 * stated.slower},
        "rows 20 % quicker": {"slower": 0.8 * stated.slower},
        "bursts of half as many again": {"burst_per_s": 1.5 * stated.burst_per_s},
        "half the link": {"link_per_s": stated.link_per_s / 2},
        "twice the link's time": {"link_ms": 2 * stated.link_ms},
        "the core's power halved": {"core_w": stated.core_w / 2},
    }
    for name, changed in changes.items():
        told = hour(replace(stated, hours=1 / 3, **changed), heat)  # type: ignore[arg-type]
        controlled, fixed = told.pop(""), told
        other = replace(stated, **changed)  # type: ignore[arg-type]
        saved = 1 - controlled.energy_j(other) / fixed[VARIANTS[0].variant].energy_j(other)
        yield Figure(f"{name}: deadlines met", _share(controlled.met, controlled.rows), "share")
        yield Figure(f"{name}: best fixed variant", max(_share(t.met, t.rows) for t in fixed.values()), "share")
        yield Figure(f"{name}: energy saved", round(saved, 4), "share")
        yield Figure(f"{name}: throttled", round(controlled.throttled_s), "s")


def _share(part: int, whole: int) -> float:
    return round(part / max(1, whole), 4)


def _idle_j(stated: Stated) -> float:
    return stated.idle_w * stated.hours * HOUR_S


def measure(stated: Stated | None = None) -> list[Figure]:
    """All of this part's figures."""
    fit, stated = fitted(), stated or Stated()
    return [
        Figure("heat model: error of the fit", round(fit.rmse_c, 2), "C"),
        Figure("heat model: error on another board's curve", round(fit.other_rmse_c, 2), "C"),
        *figures(fit.heat, stated),
        *sensitivity(fit.heat, stated),
    ]
