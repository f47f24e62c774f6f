"""Measures how rollouts are judged: false aborts, bad models found, and a thousand simulated devices."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.figures import Figure, at_least, at_most, stored, tell, write
from bench.fleet.alarms import CONTRACTS, alarmed
from bench.fleet.driven import definition, driven
from bench.fleet.judged import DEVICES, Ended, judged, rolled_out
from bench.fleet.population import NEW, NOTHING, OLD, STREET, Effect, Scenery
from bench.fleet.world import world
from bench.page import refill
from firstline_core.telemetry import logs
from firstline_core.units import HOUR_S
from firstline_gateway.rollouts.judgement.verdict import Rules
from firstline_gateway.rollouts.rollout import Stage
from firstline_gateway.settings.settings import StoreSection

PARTS = ("same", "worse", "alarms", "detectors", "devices")
TARGET = "fleet"
WORSE = Effect(disagreement=0.05)
ENOUGH = 1000
"""Rollouts from which on a share of 1 % is judged."""
PROMISED = Rules().alpha + CONTRACTS.delta
"""The promised share of false aborts: of the comparison with the control group, and of the contract."""


class Case(NamedTuple):
    """A model that is brought to simulated devices: what it does there, and whether its bytes are what was signed."""

    effect: Effect
    corrupt: bool = False


GOOD = "good"
_NAMES = {0: "neither", OLD: "old", NEW: "new"}
CASES = {
    GOOD: Case(NOTHING),
    "corrupt": Case(NOTHING, corrupt=True),
    "slow": Case(Effect(latency=math.log(2))),
    "crashing": Case(Effect(crashes=6.0)),
    "crashing within a minute": Case(Effect(crashes=1440.0)),
    "less accurate": Case(Effect(disagreement=0.05)),
    "escalating twice as much": Case(Effect(escalations=2.0)),
    "drifting": Case(Effect(drift=1.0)),
}


class Detector(NamedTuple):
    """A detector without a certificate, which no contract stops: what it does, and what the devices see."""

    effect: Effect
    scenery: Scenery = STREET


RARE = Scenery({"person": 0.001})
"""One in 1,000 frames holds an object."""
UNCHANGED = "changes nothing"
DETECTORS = {
    UNCHANGED: Detector(NOTHING),
    "blind": Detector(Effect(blind=tuple(STREET.objects))),
    "blind, and one in 1,000 frames holds an object": Detector(Effect(blind=tuple(RARE.objects)), RARE),
    "one class lost, which is in one of 50 frames": Detector(Effect(blind=("dog",))),
    "blind at night": Detector(Effect(blind=tuple(STREET.objects), at_night=True)),
    "invents as many objects as there are": Detector(Effect(invented=1.0)),
    "wrong on one board, which a quarter of the devices have": Detector(Effect(wrong=0.9, boards=0.25)),
}


FRESH = 10_000
"""The first seed: the limits of figures were chosen on seeds below it."""


class Effort(NamedTuple):
    """How much is done.

    Attributes:
        rollouts: of a model that changes nothing, and of one that is worse, judged in memory.
        devices: simulated, under the driver.
        processes: that judge and simulate at once.
    """

    rollouts: int
    devices: int
    processes: int


def measure(effort: Effort, only: frozenset[str]) -> dict[str, Any]:
    """Everything that is named in `only`, of `PARTS`."""
    found: dict[str, Any] = {}
    if "same" in only:
        same = partial(judged, treated=50, control=150, stages=3, contract=True)
        found["same_model"] = _many("the same model", same, effort)
    if "worse" in only:
        worse = partial(judged, treated=100, control=100, stages=1, effect=WORSE)
        found["five_points_worse"] = _many("five points worse", worse, effort)
    if "alarms" in only:
        found["alarmed"] = _alarms(effort)
    if "detectors" in only:
        found["detectors"] = {name: _detectors(name, effort) for name in DETECTORS}
    if "devices" in only:
        found["devices"] = _simulated(effort)
    return found


def _many(name: str, one: Callable[[int], Ended], effort: Effort) -> dict[str, Any]:
    ended = []
    with ProcessPoolExecutor(effort.processes) as pool:
        for each in pool.map(one, range(FRESH, FRESH + effort.rollouts), chunksize=4):
            ended.append(each)
            if len(ended) % 100 == 0:
                progress(f"{name}: {len(ended)} of {effort.rollouts} rollouts judged")
    aborted = [each for each in ended if each.aborted]
    return {
        "rollouts": effort.rollouts,
        "aborted": len(aborted),
        "aborted_in_stage_1": sum(each.stage == 0 for each in aborted),
        "rules": dict(Counter(each.rule for each in aborted)),
    }


def _alarms(effort: Effort) -> dict[str, Any]:
    with ProcessPoolExecutor(effort.processes) as pool:
        # Some end before an alarm: they are paused, because they wait for devices or for data.
        seeds = range(FRESH, FRESH + effort.rollouts + effort.rollouts // 2)
        ended = list(pool.map(alarmed, seeds, chunksize=8))
    found = [each for each in ended if each.alarmed][: effort.rollouts]
    progress(f"bad bundles: {len(found)} rollouts alarmed")
    return {
        "alarmed": len(found),
        "promoted_after": sum(each.promoted > 0 for each in found),
        "states": dict(Counter(each.state for each in found)),
    }


def detector(name: str, seed: int) -> Ended:
    """Rolls out one of `DETECTORS`; every second fleet has no full model, so that only its objects can tell."""
    effect, scenery = DETECTORS[name]
    return rolled_out(seed, effect=effect, scenery=replace(scenery, audits_per_hour=0) if seed % 2 else scenery)


def _detectors(name: str, effort: Effort) -> dict[str, Any]:
    with ProcessPoolExecutor(effort.processes) as pool:
        ended = list(pool.map(partial(detector, name), range(FRESH, FRESH + effort.rollouts), chunksize=8))
    promoted = [each for each in ended if each.promoted]
    progress(f"{name}: {len(promoted)} of {len(ended)} promoted")
    return {
        "rollouts": len(ended),
        "promoted": len(promoted),
        "aborted": sum(each.aborted for each in ended),
        "reached": sum(each.reached for each in ended) / len(ended) / DEVICES,
        "rules": dict(Counter(each.rule for each in ended)),
    }


def _simulated(effort: Effort) -> dict[str, Any]:
    found = {}
    with ProcessPoolExecutor(effort.processes) as pool:
        waiting = {name: pool.submit(simulated, name, effort.devices) for name in CASES}
        for name, ended in waiting.items():
            found[name] = ended.result()
            progress(f"{effort.devices} simulated devices, {name}: {found[name]['sentence']}")
    return found


def simulated(name: str, devices: int) -> dict[str, Any]:
    """Runs one of `CASES` on `devices` agents; returns how the rollout ended, and what each device runs then."""
    logs.configure("critical")
    return asyncio.run(_simulate(CASES[name], devices))


async def _simulate(case: Case, devices: int) -> dict[str, Any]:
    stages = Stage(0.1, soak_s=8 * HOUR_S), Stage(1.0, soak_s=8 * HOUR_S)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        store = StoreSection(url=f"sqlite:///{Path(folder) / 'gateway.db'}")
        there = await stack.enter_async_context(world(devices, FRESH, case.effect, corrupt=case.corrupt))
        room = await stack.enter_async_context(driven(store, there))
        ended = await room.run(definition(*stages, manifest_sha256=there.manifest_sha256), 60)
        last = (await room.rollouts.looks(ended.id, (-1, 0), 200)).looks[-1]
        versions = await asyncio.to_thread(there.versions)
        return {
            "devices": devices,
            "state": ended.state,
            "stage": ended.stage + 1,
            "rule": last.rule,
            "verified": {_NAMES[version]: number for version, number in sorted(versions.items())},
            "sentence": ended.sentence,
        }


def progress(what: str) -> None:
    """Prints progress to stderr."""
    print(what, file=sys.stderr, flush=True)


def store(results: dict[str, Any]) -> int:
    """Adds measurements to the stored ones; returns 0 if every aim holds, else 1."""
    merged = {name: part for name, part in (stored(TARGET) | results).items() if name != "figures"}
    shown = figures(merged)
    write(TARGET, shown, merged)
    return tell(shown)


def figures(found: dict[str, Any]) -> list[Figure]:
    """Returns the measurements with their aims."""
    made = []
    if same := found.get("same_model"):
        made.append(_judged("a model that changes nothing, aborted", same["aborted"], same["rollouts"], PROMISED))
    if worse := found.get("five_points_worse"):
        what = "a model that is five points worse, stopped in stage 1"
        made.append(_judged(what, worse["aborted_in_stage_1"], worse["rollouts"], 0.99, at_least))
    if bad := found.get("alarmed"):
        figure = _judged("bad bundles that alarm, promoted after the alarm", bad["promoted_after"], bad["alarmed"], 0)
        if figure.aim is not None:
            stopped = bad["states"] == {"rolled_back": bad["alarmed"]}
            figure = figure._replace(aim="0", holds=bool(figure.holds) and stopped)
        made.append(figure)
    for name, one in found.get("detectors", {}).items():
        counted, aim = ("aborted", Rules().alpha) if name == UNCHANGED else ("promoted", 0.01)
        what, rollouts = f"a detector: {name}", one["rollouts"]
        made.append(_judged(f"{what}, {counted}", one[counted], rollouts, aim))
        reached = f"judged: of {rollouts:,} rollouts of {what}, devices reached"
        made.append(Figure(reached, round(one["reached"], 4), "of them"))
    for name, ended in found.get("devices", {}).items():
        made.append(_ended(name, ended))
    return made


def _ended(name: str, ended: dict[str, Any]) -> Figure:
    """How the rollout of one model ended, and on how many devices as it should."""
    good = name == GOOD
    state, which = ("completed", "new") if good else ("rolled_back", "old")
    right = ended["verified"].get(which, 0)
    stopped = ended["state"] == state and (good or ended["stage"] == 1)
    how = ended["state"].replace("_", " ") + ("" if good else f" in stage {ended['stage']} by '{ended['rule']}'")
    figure = f"simulated: {name}, {how}; on the {which} model, which verifies"
    aim = f"{ended['devices']:,}, {'completed' if good else 'in stage 1'}"
    return Figure(figure, right, "devices", aim, stopped and right == ended["devices"])


def _judged(what: str, count: int, rollouts: int, aim: float, compare: Callable[..., Figure] = at_most) -> Figure:
    """A share of rollouts; of fewer than are asked for nothing can be said of so small an error."""
    figure = compare(f"judged: of {rollouts:,} rollouts of {what}", count / rollouts, aim, "of them", 4)
    return figure if rollouts >= ENOUGH else figure._replace(aim=None, holds=None)


def main() -> int:
    """Returns 0 if every aim holds, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet.run", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=1000, help="of the same model, and of a worse one")
    parser.add_argument("--devices", type=int, default=1000, help="simulated, under the driver")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="that judge and simulate at once")
    parser.add_argument("--only", choices=PARTS, action="append", help="parts that are left out keep their figures")
    options = parser.parse_args()
    effort = Effort(options.rollouts, options.devices, options.processes)
    code = store(measure(effort, frozenset(options.only or PARTS)))
    refill(TARGET)
    return code


if __name__ == "__main__":
    sys.exit(main())
