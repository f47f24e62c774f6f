"""Agents on one simulated clock, which advances with that of their gateway, and the two bundles that they run."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from bench.fleet.agents import Agent
from bench.fleet.population import BUNDLE, MEMORY, NEW, OLD, DeviceReport, Effect, population
from bench.fleet.shelf import Shelf
from bench.simulation.simulated_time import WALL_START_S, LoopClock, SimulatedLoop
from bench.support.bundles import with_certificate
from bench.support.onnx_models import linear
from firstline.workbench.bundle import create_bundle
from firstline.workbench.spec import BundleSpec, ModelSpec, PolicySpec
from firstline_core.bundle.manifest import MANIFEST_NAME, encode_manifest
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.fleet.twin import Desired
from firstline_core.processing.steps import Softmax
from firstline_core.units import HOUR_S


class World:
    """Agents, and the registry that they fetch from; see `world`.

    Attributes:
        agents: by name.
    """

    def __init__(self, folder: Path, devices: int, seed: int, effect: Effect, *, corrupt: bool) -> None:
        self._runner = asyncio.Runner(loop_factory=SimulatedLoop)
        self._clock = LoopClock()
        old = write_bundle(folder / "old", BUNDLE, OLD)
        new = write_bundle(folder / "new", BUNDLE, NEW, sharpness=1.01)
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

    def pass_time(self, hours: float, desired: Mapping[str, Desired], now_s: float) -> list[DeviceReport]:
        """See `driven.Fleet`."""
        return self._runner.run(self._pass_time(hours, desired))

    async def _pass_time(self, hours: float, desired: Mapping[str, Desired]) -> list[DeviceReport]:
        self._shelf.renew(datetime.fromtimestamp(self._clock.wall_s(), UTC))
        for name, agent in self.agents.items():
            if name in desired:
                agent.hear(desired[name])
        await asyncio.sleep(hours * HOUR_S)
        return [message for agent in self.agents.values() if (message := agent.said()) is not None]

    def versions(self) -> Counter[int]:
        """Counts devices by the version that their disks hold and that verifies; 0 for the others.

        Each agent is restarted first, because the version that a device starts with counts.
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

    def close(self) -> None:
        """Ends what runs."""
        self._runner.run(self._close())
        self._runner.close()

    async def _close(self) -> None:
        for agent in self.agents.values():
            await agent.close()


@asynccontextmanager
async def world(devices: int, seed: int, effect: Effect, *, corrupt: bool = False) -> AsyncIterator[World]:
    """Yields devices with the old version, on a disk in memory if there is one; their time passes in threads.

    Args:
        devices: how many.
        seed: of their habits.
        effect: of the new version.
        corrupt: whether the registry has other bytes of it than were signed.
    """
    folder = Path(tempfile.mkdtemp(prefix="firstline-fleet-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        found = await asyncio.to_thread(World, folder, devices, seed, effect, corrupt=corrupt)
        try:
            yield found
        finally:
            await asyncio.to_thread(found.close)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_LABELS = tuple("abcd")
_FEATURES, _GOLDEN_ROWS = 16, 4


def write_bundle(folder: Path, name: str, version: int, sharpness: float = 1.0) -> Bundle:
    """Writes a bundle with an edge model, a full one, a certificate and golden answers.

    Args:
        folder: created here.
        name: of the bundle.
        version: of the bundle.
        sharpness: factor of the edge model's logits; its answers stay the same, with other confidences.
    """
    sources, random = folder.with_name(f"{folder.name}-sources"), np.random.default_rng(0)
    weights = random.standard_normal((_FEATURES, len(_LABELS))).astype(np.float32)
    files = linear(sources / "edge.onnx", weights * np.float32(sharpness)), linear(sources / "full.onnx", weights)
    np.savez(sources / "rows.npz", x=random.standard_normal((_GOLDEN_ROWS, _FEATURES)).astype(np.float32))
    edge, full = (ModelSpec(file, postprocess=(Softmax(),)) for file in files)
    spec = BundleSpec(name, version, _LABELS, (edge,), full, PolicySpec(threshold=0.9))
    manifest = create_bundle(spec, folder, golden=[sources / "rows.npz"]).manifest
    certified = with_certificate(manifest.edge[0], manifest)
    (folder / MANIFEST_NAME).write_bytes(encode_manifest(replace(manifest, edge=(certified,))))
    return open_bundle(folder)
