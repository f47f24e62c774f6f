"""Runs each executor alone, both in round robin and both dispatched; also with one stopped, and at full load."""

from __future__ import annotations

import asyncio
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import uvloop

from bench.figures import Figure
from bench.hardware.scheduler.load import answered_per_s, batched, in_turns, play
from bench.hardware.scheduler.site import Gateway, Site, engine, site
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher

REPEATS, _FULL_REPEATS = 3, 2
_WARM_S, _RUN_S, _STOPPED_S = 1.0, 6.0, (1.0, 3.5)
_LOAD = 0.6
# Clients for each executor that never pause: with four, the rate of the other runs; with sixteen, full load.
_FEW, _MANY = 4, 16


@dataclass(frozen=True)
class Run:
    """The measurements of one run, or the medians of several.

    Args:
        lost: requests that were refused, or had no answer within their five seconds.
        shares: share of the batches by executor; only for the dispatcher.
    """

    policy: str
    rate_per_s: float
    requests: int
    lost: int
    p50_ms: float
    p99_ms: float
    mean_ms: float
    shares: dict[str, float]


@dataclass(frozen=True)
class Results:
    """All measurements.

    Args:
        capacity_per_s: answers per second by executor, with four clients that never pause.
        full_per_s: the same with sixteen clients for each executor; also of both at once, dispatched and "apart": each
            with sixteen clients of its own, so dispatching costs nothing.
    """

    cores: int
    repeats: int
    capacity_per_s: dict[str, float]
    full_per_s: dict[str, float]
    runs: list[Run]


def measure() -> tuple[list[Figure], dict[str, object]]:
    """Returns the figures and their measurements. Limits this process to one core meanwhile."""
    with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as found:
        results = uvloop.run(_measure(found))
    return figures(results.runs, results.full_per_s), msgspec.to_builtins(results)


async def _measure(found: Site) -> Results:
    few = {name: await _full(found, [name], _FEW) for name in ("here", "far")}
    steady, stopped = round(_LOAD * sum(few.values()), 1), round(0.5 * few["here"], 1)
    runs: list[Run] = []
    full: dict[str, list[float]] = {}
    for repeat in range(REPEATS):
        print(f"scheduler: {repeat + 1} of {REPEATS}", file=sys.stderr, flush=True)
        runs += [await _run(found, policy, steady) for policy in ("dispatcher", "here", "far", "turns")]
        runs += [await _run(found, policy, stopped, stops=True) for policy in ("dispatcher", "far", "turns")]
        for _ in range(_FULL_REPEATS):
            for name, names in (("here", ["here"]), ("far", ["far"]), ("dispatcher", ["here", "far"])):
                full.setdefault(name, []).append(await _full(found, names, _MANY))
            full.setdefault("apart", []).append(await _apart(found))
    policies = dict.fromkeys(run.policy for run in runs)
    return Results(
        cores=len(found.cores),
        repeats=REPEATS,
        capacity_per_s=few,
        full_per_s={name: round(statistics.median(each), 1) for name, each in full.items()},
        runs=[_median([run for run in runs if run.policy == name]) for name in policies],
    )


async def _full(found: Site, names: Sequence[str], clients: int) -> float:
    async with engine(found, names) as opened:
        return await answered_per_s(batched(opened), clients * len(names))


async def _apart(found: Site) -> float:
    async with engine(found, ["here"]) as here, engine(found, ["far"]) as far:
        both = (batched(opened) for opened in (here, far))
        return sum(await asyncio.gather(*(answered_per_s(ask, _MANY) for ask in both)))


async def _run(found: Site, policy: str, rate_per_s: float, *, stops: bool = False) -> Run:
    names = [policy] if policy in ("here", "far") else ["here", "far"]
    async with engine(found, names) as opened:
        ask = batched(in_turns(opened) if policy == "turns" else opened)
        await play(ask, rate_per_s, _WARM_S)
        before = _batches(opened)
        stopping = asyncio.create_task(_stop(found.far)) if stops else None
        took_s, lost = await play(ask, rate_per_s, _RUN_S)
        if stopping is not None:
            await stopping
            await asyncio.sleep(1.0)  # until the gateway works again
        given = {name: count - before[name] for name, count in _batches(opened).items()}
    milliseconds = 1000 * np.array(took_s)
    return Run(
        policy=policy + (", one stopped" if stops else ""),
        rate_per_s=rate_per_s,
        requests=len(took_s) + lost,
        lost=lost,
        p50_ms=round(float(np.quantile(milliseconds, 0.5)), 2),
        p99_ms=round(float(np.quantile(milliseconds, 0.99)), 2),
        mean_ms=round(float(milliseconds.mean()), 2),
        shares={name: round(count / max(1, sum(given.values())), 3) for name, count in given.items()}
        if policy == "dispatcher"
        else {},
    )


def _median(runs: Sequence[Run]) -> Run:
    """Returns the medians of all numbers, and the largest number of lost requests."""

    def of(name: str) -> float:
        return float(statistics.median(getattr(run, name) for run in runs))

    return replace(
        runs[0],
        lost=max(run.lost for run in runs),
        p50_ms=of("p50_ms"),
        p99_ms=of("p99_ms"),
        mean_ms=of("mean_ms"),
        shares={name: statistics.median(run.shares[name] for run in runs) for name in runs[0].shares},
    )


def _batches(opened: Dispatcher) -> dict[str, int]:
    return {each.name: sum(each.batches.values()) for each in opened.report().executors}


async def _stop(far: Gateway) -> None:
    await asyncio.sleep(_STOPPED_S[0])
    far.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(_STOPPED_S[1] - _STOPPED_S[0])
    far.process.send_signal(signal.SIGCONT)


_STOPPED = ", one stopped"


def figures(runs: Sequence[Run], full_per_s: Mapping[str, float]) -> list[Figure]:
    """Returns all figures.

    Args:
        runs: runs of each policy, with and without one executor stopped.
        full_per_s: see `Results`.
    """
    steady = {run.policy: run for run in runs if not run.policy.endswith(_STOPPED)}
    stopped = {run.policy.removesuffix(_STOPPED): run for run in runs if run.policy.endswith(_STOPPED)}
    return [*_steady(steady), *_stopped(stopped), *_full_load(full_per_s)]


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


def _full_load(full_per_s: Mapping[str, float]) -> list[Figure]:
    both, apart, alone = full_per_s["dispatcher"], full_per_s["apart"], (full_per_s["here"], full_per_s["far"])
    found = [Figure(f"full, {name} alone", full_per_s[name], "requests/s") for name in ("here", "far")]
    found.append(Figure("full, both", both, "requests/s", "more than the better one alone", both > max(alone)))
    share = round(100 * both / sum(alone), 1)
    found.append(Figure("full, both to the sum of each alone", share, "%", "at least 90", share >= 90))
    found.append(Figure("full, both at once, each with its own clients", apart, "requests/s"))
    return [*found, Figure("full, both to both with their own clients", round(100 * both / apart, 1), "%")]
