"""The figures of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bench.figures import Figure

if TYPE_CHECKING:
    from bench.hardware.scheduler.runs import Run

_STOPPED = ", one stopped"


def figures(runs: Sequence[Run], full_per_s: Mapping[str, float]) -> list[Figure]:
    """All of them.

    Args:
        runs: each policy's, with and without one stopped.
        full_per_s: what is answered where clients never pause: by each executor alone, by both, and by both apart.
    """
    steady = {run.policy: run for run in runs if not run.policy.endswith(_STOPPED)}
    stopped = {run.policy.removesuffix(_STOPPED): run for run in runs if run.policy.endswith(_STOPPED)}
    return [*_steady(steady), *_stopped(stopped), *_full(full_per_s)]


def _steady(runs: Mapping[str, Run]) -> list[Figure]:
    ours, single = runs["dispatcher"], min((runs["here"], runs["far"]), key=lambda run: (run.lost, run.p99_ms))
    least_ms, found = min(single.p99_ms, runs["turns"].p99_ms), []
    for name, run in (("dispatcher", ours), ("the best single one", single), ("taking turns", runs["turns"])):
        found.append(Figure(f"steady, {name}: p50", run.p50_ms, "ms"))
        aim = ("no more than the others', within 5 %", run.p99_ms <= 1.05 * least_ms) if run is ours else (None, None)
        found.append(Figure(f"steady, {name}: p99", run.p99_ms, "ms", *aim))
        found.append(Figure(f"steady, {name}: lost", run.lost, "requests"))
    return found


def _stopped(runs: Mapping[str, Run]) -> list[Figure]:
    found = []
    for name, run in runs.items():
        aim = ("none", run.lost == 0) if name == "dispatcher" else (None, None)
        found.append(Figure(f"one stopped for 2.5 s of 6, {name}: p99", run.p99_ms, "ms"))
        found.append(Figure(f"one stopped for 2.5 s of 6, {name}: lost", run.lost, "requests", *aim))
    return found


def _full(full_per_s: Mapping[str, float]) -> list[Figure]:
    both, apart, alone = full_per_s["dispatcher"], full_per_s["apart"], (full_per_s["here"], full_per_s["far"])
    found = [Figure(f"full, {name} alone", full_per_s[name], "requests/s") for name in ("here", "far")]
    found.append(Figure("full, both", both, "requests/s", "more than the better one alone", both > max(alone)))
    share = round(100 * both / sum(alone), 1)
    found.append(Figure("full, both to the sum of each alone", share, "%", "at least 90", share >= 90))
    found.append(Figure("full, both at once, each with its own clients", apart, "requests/s"))
    return [*found, Figure("full, both to both with their own clients", round(100 * both / apart, 1), "%")]
