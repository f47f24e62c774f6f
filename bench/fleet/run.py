"""The fleet's figures: false aborts, bad models found, and a thousand devices under the real engine and store."""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from figures import RESULTS, Figure, tell, write

from firstline_gateway.rollouts.stages import Stage
from firstline_gateway.settings import Store
from fleet.driven import HOUR_S, definition, driven
from fleet.judged import Ended, judged
from fleet.population import NEW, NOTHING, OLD, Effect, population

BAD = {
    "corrupt": Effect(failing=1.0),
    "slow": Effect(latency=math.log(2)),
    "crashing": Effect(crashes=6.0),
    "less accurate": Effect(disagreement=0.05),
    "escalates twice as much": Effect(escalations=2.0),
}
TARGET = "bench-fleet"
WORSE = Effect(disagreement=0.05)
ENOUGH = 1000
"""Rollouts from which on a share of 1 % is judged."""


def measure(rollouts: int, devices: int, processes: int, only: frozenset[str]) -> dict[str, Any]:
    """Everything that is named in `only`: "same", "worse", "devices"."""
    found: dict[str, Any] = {}
    if "same" in only:
        found["same_model"] = _many(partial(judged, treated=50, control=150, stages=3), rollouts, processes)
    if "worse" in only:
        worse = partial(judged, treated=100, control=100, stages=1, effect=WORSE)
        found["five_points_worse"] = _many(worse, rollouts, processes)
    if "devices" in only:
        found["devices"] = {
            name: asyncio.run(_driven(effect, devices)) for name, effect in ({"good": NOTHING} | BAD).items()
        }
    return found


def _many(one: Callable[[int], Ended], rollouts: int, processes: int) -> dict[str, Any]:
    started_s = time.monotonic()
    with ProcessPoolExecutor(processes) as pool:
        ended = list(pool.map(one, range(rollouts), chunksize=4))
    aborted = [each for each in ended if each.aborted]
    return {
        "rollouts": rollouts,
        "aborted": len(aborted),
        "aborted_in_stage_1": sum(each.stage == 0 for each in aborted),
        "rules": dict(Counter(each.rule for each in aborted)),
        "looks": dict(sorted(Counter(each.look for each in aborted).items())),
        "seconds": round(time.monotonic() - started_s, 1),
    }


async def _driven(effect: Effect, devices: int) -> dict[str, Any]:
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(url=f"sqlite:///{Path(folder) / 'gateway.db'}")
        async with driven(store, population(devices, 1, effect)) as room:
            stages = Stage(0.1, soak_s=8 * HOUR_S), Stage(1.0, soak_s=8 * HOUR_S)
            ended = await room.run(definition(*stages), 60)
            looks = (await room.rollouts.looks(ended.id)).looks
            return {
                "devices": devices,
                "state": ended.state,
                "stage": ended.stage + 1,
                "rule": looks[-1].rule,
                "look": looks[-1].look,
                "versions": {str(version): number for version, number in room.versions().items()},
                "sentence": ended.sentence,
                "seconds": round(time.monotonic() - started_s, 1),
            }


def keep(found: dict[str, Any]) -> int:
    """Adds what was measured to what is there; 0 where all holds (an exit code)."""
    path = RESULTS / f"{TARGET}.json"
    held = json.loads(path.read_text()) if path.exists() else {}
    beside = {name: part for name, part in (held | found).items() if name != "figures"}
    told = figures(beside)
    write(TARGET, told, beside)
    return tell(told)


def figures(found: dict[str, Any]) -> list[Figure]:
    """What was measured beside what was aimed for."""
    made = []
    if "same_model" in found:
        same = found["same_model"]
        share = same["aborted"] / same["rollouts"]
        name = f"of {same['rollouts']} rollouts of a model that changes nothing: aborted"
        made.append(_judged(name, share, "<= 0.01", share <= 0.01, same["rollouts"]))
    if "five_points_worse" in found:
        worse = found["five_points_worse"]
        share = worse["aborted_in_stage_1"] / worse["rollouts"]
        name = f"of {worse['rollouts']} rollouts of a model that is five points worse: stopped in stage 1"
        made.append(_judged(name, share, ">= 0.99", share >= 0.99, worse["rollouts"]))
    for name, ended in found.get("devices", {}).items():
        wanted, state = (NEW, "completed") if name == "good" else (OLD, "rolled_back")
        stopped = ended["state"] == state and (name == "good" or ended["stage"] == 1)
        right = ended["versions"].get(str(wanted), 0)
        holds = stopped and right == ended["devices"]
        told = f"{name} model, {state} at stage {ended['stage']}: devices that end on version {wanted}"
        made.append(Figure(told, right, "devices", f"{ended['devices']}, {state}", holds))
    return made


def _judged(name: str, share: float, aim: str, holds: bool, rollouts: int) -> Figure:
    """A share of rollouts; of fewer than are asked for nothing can be said of so small an error."""
    enough = rollouts >= ENOUGH
    return Figure(name, share, "share of rollouts", aim if enough else None, holds if enough else None)
