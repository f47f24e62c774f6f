"""A neighbour that takes a control group's memory step by step, beside the real agent: with `[adaptation]` and without.

    PYTHONPATH=tests:bench python bench/bench_hardware.py --only memory

What is real: `edge-agent` as a process with the settings that it has by itself, the kernel's memory limit around it
and its neighbour, and one client that asks again and again, a new row each time. The variants are made for it: 144, 36
and less than 1 MiB of weights. The agent is what the kernel kills first of the group, as where the neighbour is what
the device is there for. Whoever cannot make a control group gets no figures.

The agent reads its sensors each 5 s, and sooner where memory gets short. Whether that is soon enough must not hang on
when the neighbour begins: so there are four runs at each rate at which it takes more than the reserve in those 5 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from figures import Figure
from msgspec import Struct, field
from support.bundles import HEAVY, variant_bundle
from support.control_groups import MIB, ControlGroup, Hog, UnlimitedError, limited
from support.pressure import Client, agent_process

from hardware.asking import Asker, asking
from hardware.parts import Asked, Outcome

LIMIT_MIB = 768
_STEP_MIB = 4
_SLOW_MIB_PER_S = 8
_RATES_MIB_PER_S = (16, 64, 256)
_LATER_S = (0.6, 1.85, 3.1, 4.35)  # of the 5 s between two readings
_HOLD_S = 12.0  # more than two readings of the sensors
_SHRINKS_MIB = 32
_BACK_S = 400.0
_ADAPTING = "adapting"
_OFF = "[hardware]\nsurvey = false\n"
_ON = _OFF + "[adaptation]\nenabled = true\n"
_QUICKLY = _OFF + "period_s = 0.2\n[adaptation]\nenabled = true\nsettle_s = 0.6\ndwell_s = 0.8\n"


class Seen(Struct):
    """A moment at which something changed.

    Args:
        at_s: since the neighbour began.
        neighbour_mib, agent_mib: that both hold.
        came: of the latest request.
    """

    at_s: float
    neighbour_mib: int
    agent_mib: int
    came: str


class Run(Struct):
    """One run.

    Args:
        name: what ran.
        rate_mib_per_s: that the neighbour takes.
        later_s: that the neighbour began after the agent was ready.
        came: how many requests were answered by which variant, refused as what, or lost.
        killed_at_mib: what the neighbour held when the kernel killed the agent, or both; None where it did not.
        back_s: until the best variant answered again, from when the neighbour let go; None where it never did.
    """

    name: str
    rate_mib_per_s: int
    later_s: float = 0.0
    seen: list[Seen] = field(default_factory=list)
    came: dict[str, int] = field(default_factory=dict)
    killed_at_mib: int | None = None
    back_s: float | None = None

    def first(self, came: str) -> Seen | None:
        """When that came of a request for the first time."""
        return next((each for each in self.seen if each.came == came), None)

    @property
    def is_killed(self) -> bool:
        """Whether the kernel killed the agent, or both."""
        return self.killed_at_mib is not None

    @property
    def degrades_first(self) -> bool:
        """Whether the cheapest variant answered before anything was refused."""
        small, shed = self.first("small"), self.first("shedding")
        return small is not None and shed is not None and small.at_s < shed.at_s


def run(_before: Any, asked: Asked) -> Outcome:
    """Its figures, and the runs that they are of; seven minutes. Nothing where no control group can be made."""
    try:
        with limited(LIMIT_MIB * MIB):
            pass
    except UnlimitedError as error:
        return Outcome(missing=(f"memory was not run: {error}",))
    runs = uvloop.run(_quickly() if asked.quick else _measured())
    return Outcome(figures(runs), figures(runs), {"runs": runs})


def figures_of(said: Any) -> list[Figure]:
    """Of a record."""
    return figures(msgspec.convert(said["runs"], list[Run]))


async def _quickly() -> list[Run]:
    """One run, with readings that come so often that the neighbour may take more in a second."""
    return [await _run(Run(_ADAPTING, _RATES_MIB_PER_S[0]), _QUICKLY)]


async def _measured() -> list[Run]:
    adapting = await _run(Run(_ADAPTING, _SLOW_MIB_PER_S), _ON)
    shed = adapting.first("shedding")
    wanted_mib = shed.neighbour_mib if shed is not None else adapting.seen[-1].neighbour_mib
    runs = await asyncio.gather(
        _run(Run("not adapting", _SLOW_MIB_PER_S), _OFF, wanted_mib),
        _run(Run("always the smallest", _SLOW_MIB_PER_S), _OFF, wanted_mib, names=["small"]),
    )
    for rate in _RATES_MIB_PER_S:
        runs += await asyncio.gather(*(_run(Run(_ADAPTING, rate, later_s), _ON, wanted_mib) for later_s in _LATER_S))
    return [adapting, *runs]


def figures(runs: Sequence[Run]) -> list[Figure]:
    """Of all runs; the first is the one that shows everything."""
    first, *others = runs
    small, shed = first.first("small"), first.first("shedding")
    name = _name(first)
    found = [
        _killed([first]),
        Figure(f"{name}: a cheaper variant before none", int(first.degrades_first), "of 1", "1", first.degrades_first),
        Figure(f"{name}: neighbour's memory at the cheapest variant", _held(small), "MiB"),
        Figure(f"{name}: neighbour's memory at the first refusal", _held(shed), "MiB"),
        Figure(f"{name}: agent's memory before", first.seen[0].agent_mib, "MiB"),
        Figure(f"{name}: agent's memory at the first refusal", None if shed is None else shed.agent_mib, "MiB"),
        Figure(f"{name}: answered", sum(first.came.get(variant, 0) for variant in HEAVY), "requests"),
        Figure(f"{name}: refused with Retry-After", first.came.get("shedding", 0), "requests"),
        Figure(f"{name}: lost", _lost(first), "requests", "0", _lost(first) == 0),
        Figure(f"{name}: back on the best variant", first.back_s, "s", "comes back", first.back_s is not None),
    ]
    for name in dict.fromkeys(_name(run) for run in others):
        alike = [run for run in others if _name(run) == name]
        found.append(_killed(alike))
        first_kill = min((run.killed_at_mib for run in alike if run.killed_at_mib is not None), default=None)
        if first_kill is not None:
            found.append(Figure(f"{name}: neighbour's memory at the first kill", first_kill, "MiB"))
        lived_lost = sum(_lost(run) for run in alike if not run.is_killed)
        found.append(Figure(f"{name}: lost by agents that lived", lived_lost, "requests"))
    return found


def _killed(alike: Sequence[Run]) -> Figure:
    """How many of them."""
    run, killed = alike[0], sum(run.is_killed for run in alike)
    label, of = f"{_name(run)}: agents killed", f"of {len(alike)}"
    if run.name != _ADAPTING:
        return Figure(label, killed, of)
    return Figure(label, killed, of, "0", killed == 0)


def _name(run: Run) -> str:
    return f"{run.name}, {run.rate_mib_per_s} MiB/s"


def _lost(run: Run) -> int:
    return run.came.get("lost", 0)


def _held(seen: Seen | None) -> int | None:
    return None if seen is None else seen.neighbour_mib


async def _run(run: Run, settings: str, wanted_mib: int | None = None, names: Sequence[str] = ()) -> Run:
    """The neighbour takes memory up to `wanted_mib`, or until the agent sheds; holds it for a while, and lets go."""
    print(f"memory: {_name(run)}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder, limited(LIMIT_MIB * MIB) as group, contextlib.ExitStack() as opened:
        bundle = variant_bundle(Path(folder) / "bundle", *names, labours=HEAVY)
        hog = opened.enter_context(contextlib.closing(Hog(group)))
        process, url = opened.enter_context(agent_process(Path(folder), settings, group.victim))
        client = Client(url, {variant.digest: variant.id for variant in bundle.manifest.edge})
        asker = Asker(client.asks)
        async with asking(client, asker):
            await _press(run, _Pressed(process, group, hog, asker), wanted_mib)
        run.came = dict(asker.came)
    return run


class _Pressed(Struct):
    process: subprocess.Popen[str]
    group: ControlGroup
    hog: Hog
    asker: Asker

    def seen(self, since_s: float) -> Seen:
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            pages = 0
        return Seen(
            round(time.monotonic() - since_s, 2),
            self.hog.held_mib,
            pages * os.sysconf("SC_PAGE_SIZE") // MIB,
            self.asker.latest,
        )

    @property
    def is_killed(self) -> bool:
        return self.process.poll() is not None


async def _press(run: Run, pressed: _Pressed, wanted_mib: int | None) -> None:
    await asyncio.sleep(run.later_s)
    began_s = time.monotonic()

    async def watch(until_s: float) -> bool:
        """Notes what is seen until then; whether the agent lives."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(pressed.process.wait, max(0.0, until_s - time.monotonic()))
        seen, last = pressed.seen(began_s), run.seen[-1]
        if seen.came != last.came or seen.agent_mib < last.agent_mib - _SHRINKS_MIB:
            run.seen.append(seen)
        if pressed.is_killed:
            run.killed_at_mib = pressed.hog.held_mib
        return not pressed.is_killed

    run.seen.append(pressed.seen(began_s))
    due_s = began_s
    while (pressed.asker.latest != "shedding") if wanted_mib is None else (pressed.hog.held_mib < wanted_mib):
        due_s += _STEP_MIB / run.rate_mib_per_s
        try:
            await asyncio.to_thread(pressed.hog.holds, pressed.hog.held_mib + _STEP_MIB)
        except ChildProcessError:  # the kernel does not always wait for the memory of whom it killed first
            run.killed_at_mib = pressed.hog.held_mib
            return
        if not await watch(due_s):
            return
    if not await watch(time.monotonic() + _HOLD_S) or wanted_mib is not None:
        return
    let_go_s = time.monotonic()
    await asyncio.to_thread(pressed.hog.holds, 0)
    while time.monotonic() < let_go_s + _BACK_S and await watch(time.monotonic() + 0.5):
        if pressed.asker.latest == "large":
            run.back_s = round(time.monotonic() - let_go_s, 1)
            return
