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
from numpy.typing import NDArray

from bench.fleet.agents import Agent
from bench.fleet.population import BUNDLE, NEW, OLD, DeviceReport, Effect, population
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
from firstline_core.routing.certificate import Histogram
from firstline_core.routing.drift import histogram

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
        await asyncio.sleep(hours * _HOUR_S)
        return [said for agent in self.agents.values() if (said := agent.said()) is not None]

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


FEATURES, CLASSES = 16, 4
_LABELS = tuple("abcd")
_SHARPNESS, _NOISE = 2.5, 0.05
_KEPT, _SAMPLE = 0.8, 4000
_GOLDEN_ROWS = 4

Floats = NDArray[np.float32]


def write_bundle(folder: Path, name: str, version: int, sharpness: float = 1.0) -> Bundle:
    """Writes a bundle with an edge model, a full one, a certificate and golden answers.

    Args:
        folder: created here.
        name: of the bundle.
        version: of the bundle.
        sharpness: factor of the edge model's logits; its answers stay the same, with other confidences.
    """
    sources = folder.with_name(f"{folder.name}-sources")
    full = linear(sources / "full.onnx", _weights())
    edge = linear(sources / "edge.onnx", _edge_weights() * np.float32(sharpness))
    np.savez(sources / "rows.npz", x=sample(1)[:_GOLDEN_ROWS])
    threshold, scores = _certified()
    edge_spec, full_spec = (ModelSpec(file, postprocess=(Softmax(),)) for file in (edge, full))
    spec = BundleSpec(name, version, _LABELS, (edge_spec,), full_spec, PolicySpec(threshold=threshold))
    manifest = create_bundle(spec, folder, golden=[sources / "rows.npz"]).manifest
    certified = with_certificate(manifest.edge[0], manifest, threshold, n=_SAMPLE, kept=_KEPT, histogram=scores)
    (folder / MANIFEST_NAME).write_bytes(encode_manifest(replace(manifest, edge=(certified,))))
    return open_bundle(folder)


def sample(seed: int, rows: int = _SAMPLE) -> Floats:
    """(rows, 16) inputs, as the field has them."""
    return np.random.default_rng(seed).standard_normal((rows, FEATURES)).astype(np.float32)


def _weights() -> Floats:
    found = np.random.default_rng(0).standard_normal((FEATURES, CLASSES)) / np.sqrt(FEATURES)
    weights: Floats = (_SHARPNESS * found).astype(np.float32)
    return weights


def _edge_weights() -> Floats:
    noise = np.random.default_rng(1).standard_normal((FEATURES, CLASSES)) / np.sqrt(FEATURES)
    weights: Floats = (_weights() + _NOISE * _SHARPNESS * noise).astype(np.float32)
    return weights


def _certified() -> tuple[float, Histogram]:
    """The threshold of the first version, and how its scores lie."""
    logits = sample(2) @ _edge_weights()
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores = (powers / powers.sum(axis=1, keepdims=True)).max(axis=1)
    lie = histogram(scores)
    assert lie is not None
    return float(np.quantile(scores, 1 - _KEPT)), lie
