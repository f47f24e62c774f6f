"""Devices that update by the agent's own code: only their clock, their line and what applications ask are simulated.

Each has a folder on a disk, and one process of an agent after the other: the updater with its slots, pointer and
record, The Update Framework's client, the model on its runtime, the self test, and what counts starts. Requests and
audits are drawn (`population`), by the model that really runs. A process that crashes is gone between two of its steps,
and the next one begins with what lies on the disk.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from bench.fleet.population import BUNDLE, NEW, Device, DeviceReport
from bench.fleet.shelf import Shelf
from bench.simulation.simulated_time import LoopClock
from firstline_core.bundle.store import open_bundle
from firstline_core.bundle.trust import Trust
from firstline_core.errors import FirstlineError, LinkDownError, NotFoundError
from firstline_core.fleet.target import Hardware
from firstline_core.fleet.telemetry import Telemetry
from firstline_core.fleet.twin import Desired, Reported
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.storage.artefact import SignedFile
from firstline_core.units import HOUR_S
from firstline_edge.audits.certificate_states import CertificateStates
from firstline_edge.fleet.fleet_state import note_start
from firstline_edge.fleet.report import running_models
from firstline_edge.fleet.updater import Updater
from firstline_edge.fleet.updates.installation import Installer, manifest_sha256
from firstline_edge.fleet.updates.model_store import ModelStore, load_installed
from firstline_edge.fleet.updates.state_machine import UpdateServices
from firstline_edge.fleet.updates.trial import AgentServing, RowCounts
from firstline_edge.models.copies import BundleCopies
from firstline_edge.models.loading import load_bundle
from firstline_edge.models.models import DeviceModel, Models
from firstline_edge.models.reloading import Reloading
from firstline_edge.models.workers import Workers
from firstline_edge.state import read_stored, store

_TRIP_S, _TRIP_SPREAD, _PART_BYTES, _BYTES_PER_S = 0.1, 0.5, 512, 20_000.0
_CUTS = 0.02  # of trips, and of parts
_RESTART_S = (5.0, 60.0)
_WORKERS = Workers(1, 1)  # never at work: nothing is really asked
_HARDWARE = Hardware(frozenset({"onnx"}), "aarch64", 3792, 8 << 30)


class Line:
    """One device's way to the registry: slow, and cut now and then. A `SignedFileSource`."""

    def __init__(self, shelf: Shelf, folder: Path, clock: LoopClock, rng: random.Random) -> None:
        self._shelf = shelf
        self._clock = clock
        self._rng = rng
        self._trust = Trust(folder, shelf.repository, anchor=shelf.repository.anchor, now_s=clock.wall_s, clock=clock)

    async def files(self) -> dict[str, SignedFile]:
        """See `SignedFileSource`."""
        await self._trip()
        return self._trust.refresh()

    async def read(self, sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        """See `SignedFileSource`."""
        await self._trip()
        content = self._shelf.blobs.get(sha256)
        if content is None:
            raise NotFoundError("There is no such file.")
        for start in range(offset, len(content), _PART_BYTES):
            part = content[start : start + _PART_BYTES]
            await self._clock.sleep(len(part) / _BYTES_PER_S)
            self._perhaps_cut()
            yield part

    async def _trip(self) -> None:
        await self._clock.sleep(self._rng.lognormvariate(math.log(_TRIP_S), _TRIP_SPREAD))
        self._perhaps_cut()

    def _perhaps_cut(self) -> None:
        if self._rng.random() < _CUTS:
            raise LinkDownError("The line was cut.")


class _Serving(AgentServing):
    """Notes when another model begins to answer."""

    def __init__(self, agent: Agent, **named: Any) -> None:
        super().__init__(**named)
        self._agent = agent

    async def replace(self, name: str, loaded: DeviceModel | None) -> None:
        """See `Serving`."""
        self._agent.live()
        await super().replace(name, loaded)
        self._agent.expect_crash()


class Agent:
    """One device.

    Args:
        habits: rates of requests, crashes and outcomes.
        shelf: source of models.
        setup: folder of the bundle at first start.
        folder: the device's disk.
        clock: clock of the running loop.
    """

    def __init__(self, habits: Device, shelf: Shelf, setup: Path, folder: Path, clock: LoopClock) -> None:
        self.habits = habits
        self.processes = 0
        self._shelf, self._setup, self._folder, self._clock = shelf, setup, folder, clock
        self._rng = random.Random(habits.name)
        self._load_bundle = partial(load_bundle, options=RuntimeOptions(), workers=_WORKERS)
        self._line = Line(shelf, folder / "metadata", clock, self._rng)
        self._lived_to_s = 0.0
        self._running: asyncio.Task[None] | None = None
        self._crash: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts a process as `FleetMember` does."""
        self.processes += 1
        self._session, self._sequence = f"process-{self.processes}", 0
        self._started_s = self._lived_to_s = self._clock.monotonic_s()
        self._starts = note_start(self._folder / "fleet")
        self._desired = read_stored(self._folder / "fleet" / "desired", Desired, "desired state")
        self.store = ModelStore(self._folder / "models")
        self.store.start(self._clock.wall_s())
        self.models = Models([self._held()])
        self.habits.models.clear()
        self._updater = self._updates()
        if self._desired is not None:
            self._updater.receive(self._desired.models)
        self._running = asyncio.get_running_loop().create_task(self._updater.run())
        self.expect_crash()

    def _held(self) -> DeviceModel:
        """What runs from the first moment on; a slot that does not verify makes way for what ran before."""
        opened = load_installed(self.store, self._load_bundle, self._clock)
        path = self.store.running(BUNDLE)
        return self._load_bundle(self._setup) if path is None else opened[path]

    def _updates(self) -> Updater:
        unwatched = SimpleNamespace(watch=lambda _: None, unwatch=lambda _: None)
        certificates, copies = cast(CertificateStates, unwatched), cast(BundleCopies, None)
        reloading = Reloading(self.models, certificates, [self._setup], self._load_bundle, copies)
        path = self.store.running(BUNDLE)
        if path is not None:
            reloading.replacements[BUNDLE] = path
        serving = _Serving(self, reloading=reloading, answered=self._answered, read_hardware=lambda: _HARDWARE)
        services = UpdateServices(self._clock, self._clock.wall_s, self._rng)
        return Updater(self.store, Installer(self._line, services), serving)

    def _answered(self, model: DeviceModel) -> RowCounts:
        counted = self.habits.models.get(model.manifest.version)
        return RowCounts(counted.rows, counted.errors) if counted is not None else RowCounts()

    def live(self) -> None:
        """Requests are answered, until now, by the model that runs."""
        now_s = self._clock.monotonic_s()
        hours, self._lived_to_s = (now_s - self._lived_to_s) / HOUR_S, now_s
        self.habits.version = self.version
        if hours > 0:
            self.habits.live(hours)

    @property
    def version(self) -> int:
        """Of the model that answers."""
        model = self.models.find(BUNDLE)
        return model.manifest.version if model is not None else 0

    def expect_crash(self) -> None:
        """Schedules this process's crash at the running model's rate."""
        if self._crash is not None:
            self._crash.cancel()
        a_day = self.habits.crashing + (self.habits.effect.crashes if self.version == NEW else 0.0)
        if a_day > 0:
            after_s = self._rng.expovariate(a_day / 24 / HOUR_S)
            self._crash = asyncio.get_running_loop().call_later(after_s, self.crash)

    def crash(self) -> None:
        """Stops the process without a report and schedules its restart."""
        assert self._running is not None
        self.live()
        self._running.cancel()
        self._running = None
        self.models.close()
        asyncio.get_running_loop().call_later(self._rng.uniform(*_RESTART_S), self.start)

    def hear(self, desired: Desired) -> None:
        """Stores and applies the desired state if the process runs."""
        if self._running is not None and desired != self._desired:
            store(self._folder / "fleet" / "desired", desired, "desired state")
            self._desired = desired
            self._updater.receive(desired.models)

    def said(self) -> DeviceReport | None:
        """Returns the device's report and its telemetry; None while no process runs."""
        if self._running is None:
            return None
        if self._running.done():
            self._running.result()  # an updater never ends
        self.live()
        self._sequence += 1
        revision = self._desired.revision if self._desired is not None else 0
        counts = tuple(self.habits.models[version] for version in sorted(self.habits.models))
        return DeviceReport(
            self.habits.name,
            Reported(self._session, self._sequence, revision, running_models(self.models), self._updater.updates()),
            Telemetry(
                self._session,
                self._sequence,
                self._clock.monotonic_s() - self._started_s,
                counts,
                starts=self._starts.starts,
                unclean=self._starts.unclean,
            ),
        )

    def verified(self) -> int | None:
        """The version that the disk says runs, where its files are those that were signed; None where they are not."""
        path = self.store.running(BUNDLE) or self._setup
        try:
            manifest = open_bundle(path).manifest
        except FirstlineError:
            return None
        signed = self._shelf.manifest_sha256(manifest.version)
        return manifest.version if manifest_sha256(path) == signed else None

    async def close(self) -> None:
        """Stops the process."""
        if self._crash is not None:
            self._crash.cancel()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self._running = None
            self.models.close()
