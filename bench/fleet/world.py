"""So many agents on one simulated clock, which moves on an hour at a time, as far as their gateway's."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from bench.fleet.agents import Agent
from bench.fleet.bundles import RETRAINED, write_bundle
from bench.fleet.population import BUNDLE, NEW, OLD, Effect, Said, population
from bench.fleet.shelf import Shelf
from bench.simulation.simulated_time import WALL_START_S, LoopClock, SimulatedLoop
from firstline_core.fleet.twin import Desired

_HOUR_S = 3600.0
_MEMORY = Path("/dev/shm")


class World:
    """Agents, and the registry that they fetch from; see `world`.

    Attributes:
        agents: by name.
    """

    def __init__(self, folder: Path, devices: int, seed: int, effect: Effect, *, corrupt: bool) -> None:
        self._runner = asyncio.Runner(loop_factory=SimulatedLoop)
        self._clock = LoopClock()
        old = write_bundle(folder / "old", BUNDLE, OLD)
        new = write_bundle(folder / "new", BUNDLE, NEW, RETRAINED)
        self._shelf = shelf = Shelf(datetime.fromtimestamp(WALL_START_S, UTC))
        for bundle in (old, new):
            shelf.add(bundle)
        if corrupt:
            shelf.damage(new)
        self.manifest_sha256 = shelf.manifest_sha256(NEW)
        self.agents = {
            name: Agent(habits, shelf, old.path, folder / name, self._clock)
            for name, habits in population(devices, seed, effect).items()
        }
        self._runner.run(self._start())

    async def _start(self) -> None:
        for agent in self.agents.values():
            agent.start()

    def pass_time(self, hours: float, desired: Mapping[str, Desired], now_s: float) -> list[Said]:
        """See `driven.Fleet`."""
        return self._runner.run(self._pass_time(hours, desired))

    async def _pass_time(self, hours: float, desired: Mapping[str, Desired]) -> list[Said]:
        self._shelf.renew(datetime.fromtimestamp(self._clock.wall_s(), UTC))
        for name, agent in self.agents.items():
            if name in desired:
                agent.hear(desired[name])
        await asyncio.sleep(hours * _HOUR_S)
        return [said for agent in self.agents.values() if (said := agent.said()) is not None]

    def versions(self) -> Counter[int]:
        """How many devices run which version, by what is on their disks and verifies; 0 for those that do not.

        Each agent is ended and started anew before: what counts is what a device comes up with.
        """
        return self._runner.run(self._versions())

    async def _versions(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for agent in self.agents.values():
            await agent.close()
            agent.start()
            verified = agent.verified()
            found[verified if verified == agent.version else 0] += 1
        return found

    @property
    def processes(self) -> int:
        """That were started so far."""
        return sum(agent.processes for agent in self.agents.values())

    def close(self) -> None:
        """Ends what runs."""
        self._runner.run(self._close())
        self._runner.close()

    async def _close(self) -> None:
        for agent in self.agents.values():
            await agent.close()


@asynccontextmanager
async def world(devices: int, seed: int, effect: Effect, *, corrupt: bool = False) -> AsyncIterator[World]:
    """So many devices with the old version, on a disk in memory where there is one; their time passes in threads.

    Args:
        devices: how many.
        seed: of their habits.
        effect: of the new version.
        corrupt: whether the registry has other bytes of it than were signed.
    """
    folder = Path(tempfile.mkdtemp(prefix="firstline-fleet-", dir=_MEMORY if _MEMORY.is_dir() else None))  # noqa: ASYNC240
    try:
        found = await asyncio.to_thread(World, folder, devices, seed, effect, corrupt=corrupt)
        try:
            yield found
        finally:
            await asyncio.to_thread(found.close)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
