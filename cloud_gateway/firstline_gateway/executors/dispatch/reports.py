"""Reports of the pool: counts of executors and servers for the metrics, and the state of each executor."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from firstline_core.telemetry.statistics import OverheadTimes
from firstline_core.types import ModelKey
from firstline_gateway.executors.base import ExecutionReport, ExecutorReport, ModelOnExecutor
from firstline_gateway.executors.dispatch.member import Member


def execution_report(members: Sequence[Member], repeated: Mapping[str, int], now_s: float) -> ExecutionReport:
    """Returns the counts of all executors and servers, and the state of each executor by its name.

    Args:
        members: the executors; the states of those that the settings do not name are left out.
        repeated: batches that ran once more, by the reason; see `ExecutionReport.repeats`.
        now_s: the present.
    """
    overhead: defaultdict[ModelKey, OverheadTimes] = defaultdict(OverheadTimes)
    up: dict[tuple[str, ...], float] = {}
    batches, repeats = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for report in (member.executor.report() for member in members):
        up |= report.up
        batches.update(report.batches)
        repeats.update(report.repeats)
        for key, found in report.overhead.items():
            overhead[key].include(found)
    for member in members:
        if member.url:
            up[member.url,] = float(member.usable)
            batches.update({(member.url, outcome): count for outcome, count in member.outcomes.items()})
            repeats.update({("hedge",): 0, ("retry",): 0})
    repeats.update({(why,): count for why, count in repeated.items()})
    names = dict.fromkeys([member.name for member in members if member.name])
    executors = [_executor(name, [each for each in members if each.name == name], now_s) for name in names]
    return ExecutionReport(up, batches, repeats, overhead, tuple(executors))


def _executor(name: str, members: Sequence[Member], now_s: float) -> ExecutorReport:
    """Returns the state of one executor: of its only member, or of all its servers together."""
    keys, up = sorted(members[0].models), any(member.usable for member in members)
    paces = tuple(_model([member for member in members if key in member.models], key, now_s) for key in keys)
    problem = " ".join(sorted({each.problem for each in paces})) or "It has no model."
    return ExecutorReport(
        name=name,
        up=up,
        problem="" if up else problem,
        slots=sum(member.slots for member in members),
        under_way=sum(len(member.running) for member in members),
        batches=sum((member.outcomes for member in members), Counter()),
        paces=paces,
    )


def _model(members: Sequence[Member], key: ModelKey, now_s: float) -> ModelOnExecutor:
    problems = []
    for member in members:
        health = member.models[key].health
        pause = "" if health.trusted else f"It failed; it is tried again in {health.left_s(now_s):.1f} s."
        problems.append(member.problem_with(key) or pause)
    return ModelOnExecutor(
        model=key.name,
        version=str(key.version),
        pace=round(min(member.models[key].forecast.pace for member in members), 3),
        oldest_s=round(max(member.oldest_s(key, now_s) for member in members), 3),
        problem=" ".join(problems) if all(problems) else "",
    )
