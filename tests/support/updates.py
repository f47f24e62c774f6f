"""A device that is updated without a network: real bundles, a registry in memory, and power cuts of its disk."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import hashlib
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import to_builtins
from msgspec.structs import replace
from support.agent import edge_settings

from bench.support.bundles import artefact
from bench.support.onnx_models import linear
from firstline_core.bundle.manifest import Manifest, Model, encode_manifest
from firstline_core.bundle.store import open_bundle
from firstline_core.clock import SimulatedClock
from firstline_core.errors import FirstlineError, IntegrityError, LinkDownError, NotFoundError, SelfTestError
from firstline_core.fleet.configuration import configuration_path
from firstline_core.fleet.target import Hardware, target_fields, target_path
from firstline_core.fleet.twin import DesiredConfiguration, DesiredModel
from firstline_core.fleet.update import ENDED, UpdateState
from firstline_core.processing.steps import InputSpec, ModelInput, Softmax
from firstline_core.storage.artefact import SignedFile
from firstline_core.tasks.classification import Classification
from firstline_edge.fleet.configuration.configurator import Configurator
from firstline_edge.fleet.configuration.installed_configuration import (
    SignedConfiguration,
    open_configuration,
    usable_settings,
)
from firstline_edge.fleet.updater import Updater
from firstline_edge.fleet.updates.installation import Installer
from firstline_edge.fleet.updates.installed import Installed
from firstline_edge.fleet.updates.model_store import ModelStore, Slot
from firstline_edge.fleet.updates.state_machine import UpdateServices
from firstline_edge.settings.settings import EdgeSettings, FleetSection

NAME = "wide"
CONFIGURATION_TEXT = 'name = "{}"\nversion = {}\n[budget]\nbytes_per_day = {}\n'


def bundle_at(folder: Path, version: int, name: str = NAME) -> Path:
    """Writes a real bundle whose weights encode its version."""
    folder.mkdir(parents=True)
    path = linear(folder / "edge.onnx", np.full((4, 2), version, np.float32))
    model = Model("edge", artefact(path, folder), "onnx", "fp32", (ModelInput("x"),), postprocess=(Softmax(),))
    spec = InputSpec("x", "FP32", (-1, 4))
    task = Classification(("yes", "no"))
    manifest = Manifest(name=name, version=version, task=task, inputs=(spec,), edge=(model,))
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))
    return folder


class SignedFiles:
    """A `SignedFileSource` in memory, without a way to publish something.

    Attributes:
        cuts: probability that a read is interrupted before each part.
        cut_off_after: bytes after which every read is interrupted; None for no limit.
        never: digests of files that never arrive.
        pause_s: simulated time before each read.
    """

    def __init__(self, rng: random.Random, clock: HastyClock | None = None) -> None:
        self.clock = clock
        self.signed: dict[str, SignedFile] = {}
        self.blobs: dict[str, bytes] = {}
        self.rng = rng
        self.cuts = 0.0
        self.cut_off_after: int | None = None
        self.never: set[str] = set()
        self.pause_s = 0.0
        self.sent_bytes = 0
        self.error: FirstlineError | None = None

    async def files(self) -> dict[str, SignedFile]:
        if self.error is not None:
            raise self.error
        return self.signed

    async def read(self, sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        if sha256 in self.never:
            await asyncio.Event().wait()
        content = self.blobs.get(sha256)
        if content is None:
            raise NotFoundError("There is no such file.")
        if self.clock is not None:
            self.clock.pass_by(self.pause_s)
        while offset < len(content):
            if self.rng.random() < self.cuts or (self.cut_off_after or self.sent_bytes + 1) <= self.sent_bytes:
                raise LinkDownError("cut")
            part = content[offset : offset + self.rng.randint(1, 400)]
            offset += len(part)
            self.sent_bytes += len(part)
            yield part


class Registry(SignedFiles):
    """A registry of models."""

    def add(self, folder: Path, rollout: str = "") -> DesiredModel:
        """Publishes a bundle; returns the desired state of a fleet."""
        manifest = open_bundle(folder).manifest
        for inside, custom in target_fields(manifest).items():
            content = (folder / inside).read_bytes()
            sha256 = hashlib.sha256(content).hexdigest()
            path = target_path(manifest.name, manifest.version, inside)
            self.signed[path] = SignedFile(path, len(content), sha256, to_builtins(custom))
            self.blobs[sha256] = content
        sha256 = self.signed[target_path(manifest.name, manifest.version, "manifest.json")].sha256
        return DesiredModel(manifest.name, manifest.version, sha256, rollout)

    def relabelled(self, model: DesiredModel, name: str, version: int) -> DesiredModel:
        """Signs the same files as another bundle; returns the desired state of a fleet."""
        folder = target_path(model.name, model.version, "")
        for path, file in list(self.signed.items()):
            inside = path.removeprefix(folder)
            custom = dict(file.custom)
            if inside == "manifest.json":
                custom |= {"bundle": name, "version": version}
            moved = target_path(name, version, inside)
            self.signed[moved] = file._replace(path=moved, custom=custom)
        return replace(model, name=name, version=version)


class FakeServing:
    """A `Serving` that opens and verifies bundles.

    Attributes:
        answers: the folder that was replaced last.
        breaks: versions that fail their self-test.
        kills: versions that kill the process in which they are loaded.
    """

    def __init__(self, setup: Path) -> None:
        self.setup = setup
        self.answers: Path | None = None
        self.versions: list[int] = []
        self.breaks: set[int] = set()
        self.kills: set[int] = set()
        self.fails = False

    def configured_path(self, name: str) -> Path | None:
        return self.setup if name == NAME else None

    async def load_for_trial(self, path: Path) -> Path:
        version = open_bundle(path).manifest.version
        if version in self.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        if version in self.breaks:
            raise SelfTestError(f"version {version} answers otherwise than it should")
        return path

    load_again = load_for_trial

    async def replace(self, name: str, prepared: Any | None) -> None:
        assert prepared is not None
        self.answers = prepared
        self.versions.append(open_bundle(prepared).manifest.version)

    def failed(self, name: str) -> bool:
        return self.fails

    async def hardware(self) -> Hardware:
        return Hardware(frozenset({"onnx"}), "x86_64", None, 1 << 40)


class HastyClock(SimulatedClock):
    """A clock that each sleep advances, for a single task."""

    async def sleep(self, seconds: float) -> None:
        self._now_s += seconds
        await asyncio.sleep(0)

    def pass_by(self, seconds: float) -> None:
        self._now_s += seconds


async def here(call: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in the event loop instead of a thread."""
    return call(*arguments)


class Device:
    """Successive processes of an agent with one disk.

    Args:
        folder: its disk.
        registry: of the models.
        clock: simulated.
        tries: starts that a trial may take.
    """

    def __init__(self, folder: Path, registry: Registry, clock: HastyClock, tries: int = 3) -> None:
        self.folder = folder
        self.registry = registry
        self.clock = clock
        self.tries = tries
        self.setup = folder / "setup"
        self.breaks: set[int] = set()

    def start(self) -> None:
        """Starts a process, as `EdgeAgent` does."""
        store = ModelStore(self.folder / "models")
        store.start(self.clock.wall_s())
        self.store, self.serving = store, FakeServing(self.setup)
        self.serving.breaks = self.breaks
        self.serving.answers = self.setup
        while (path := store.running(NAME)) is not None:
            try:
                open_bundle(path)
                self.serving.answers = path
                break
            except IntegrityError as error:
                store.file(NAME).roll_back("damaged", error.message, self.clock.wall_s())
        shared = services(self.clock, self.tries)
        self.updater = Updater(store, Installer(self.registry, shared), self.serving)

    @property
    def installed(self) -> Installed[Slot, DesiredModel]:
        """What the device has, and the state of its update."""
        return self.store.file(NAME).state

    def publish(self, version: int) -> DesiredModel:
        """Signs a bundle."""
        return self.registry.add(bundle_at(self.folder / "published" / str(version), version), f"r{version}")

    def receive(self, desired: DesiredModel) -> None:
        """Receives the desired state of the fleet."""
        self.updater.receive([desired])

    @property
    def state(self) -> tuple[UpdateState, str]:
        """Returns the state and the reason of the latest update."""
        (update,) = self.updater.updates()
        return update.state, update.reason

    @property
    def fails(self) -> bool:
        """Whether a trial must end, because too many requests fail."""
        return self.serving.fails

    @fails.setter
    def fails(self, fails: bool) -> None:
        self.serving.fails = fails

    @property
    def version(self) -> int:
        """Returns the version that answers; raises `IntegrityError` without a valid bundle."""
        assert self.serving.answers is not None
        return open_bundle(self.serving.answers).manifest.version

    async def step(self) -> float:
        """Runs one step; returns the seconds until the next one."""
        return await self.updater.model(NAME).step()

    async def roll_back(self) -> None:
        """On request, while it runs."""
        await asyncio.gather(self.updater.roll_back(NAME), self.step())

    async def run(self, desired: DesiredModel | None = None) -> None:
        """Runs steps until the update has ended; `desired` is received first."""
        if desired is not None:
            self.receive(desired)
        for _ in range(200):
            record = self.installed.record
            wait_s = await self.step()
            if record is not None and record.ended and record == self.installed.record:
                return
            if wait_s > 0:
                self.clock.pass_by(wait_s)
        raise AssertionError(f"never ended: {self.installed.record}")


class ConfigurationRegistry(SignedFiles):
    """A registry of configurations."""

    def add(self, version: int, bytes_per_day: int, *, name: str = "quiet", text: str = "") -> DesiredConfiguration:
        content = (text or CONFIGURATION_TEXT.format(name, version, bytes_per_day)).encode()
        sha256 = hashlib.sha256(content).hexdigest()
        path = configuration_path(name, version)
        self.signed[path] = SignedFile(path, len(content), sha256, {})
        self.blobs[sha256] = content
        return DesiredConfiguration(name, version, sha256, f"r{version}")


class Adoption:
    """Applies settings to a device, and says whether it fails."""

    def __init__(self, device: ConfigurationDevice) -> None:
        self.device = device

    def adopt(self, settings: EdgeSettings) -> None:
        self.device.adopt(settings)

    def failed(self) -> bool:
        return self.device.fails


def services(clock: HastyClock, tries: int) -> UpdateServices:
    """What the updates of a device share."""
    limits = FleetSection(trial_tries=tries, trial_s=60.0, download_jitter_s=0.0)
    return UpdateServices(clock, clock.wall_s, random.Random(1), limits, off_loop=here)


class ConfigurationDevice:
    """Successive processes of an agent that the fleet configures, with one disk.

    Attributes:
        reported: the version that ran at each report of a change; None for the device's own settings.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "fleet" / "configuration"
        self.own = edge_settings(folder)
        self.clock = HastyClock(1.8e9)
        self.registry = ConfigurationRegistry(random.Random(1), self.clock)
        self.fails = False
        self.reported: list[int | None] = []
        self.start()

    def start(self) -> None:
        self.file = open_configuration(self.path)
        self.file.start(self.clock.wall_s())
        self.settings = usable_settings(self.file, self.own, self.clock)
        self.configurator = Configurator(
            self.file,
            self.own,
            self.registry,
            Adoption(self),
            dataclasses.replace(services(self.clock, 2), changed=self._note),
        )

    def adopt(self, settings: EdgeSettings) -> None:
        self.settings = settings

    def _note(self) -> None:
        running = self.file.state.running
        self.reported.append(running.version if running is not None else None)

    async def roll_back(self) -> None:
        """Rolls back on request, while the agent runs."""
        await asyncio.gather(self.configurator.roll_back(), self.configurator.step())

    def publish(self, version: int) -> DesiredConfiguration:
        """Signs a configuration that sets 100 bytes per day for each version."""
        return self.registry.add(version, 100 * version)

    def receive(self, desired: DesiredConfiguration) -> None:
        """Receives the desired state of the fleet."""
        self.configurator.receive(desired)

    async def step(self) -> float:
        """Runs one step; returns the seconds until the next one."""
        return await self.configurator.step()

    @property
    def installed(self) -> Installed[SignedConfiguration, DesiredConfiguration]:
        """What the device has, and the state of its update."""
        return self.file.state

    @property
    def version(self) -> int:
        """Returns the version that `publish` signed; 1 for the device's own settings."""
        return self.bytes_per_day // 100 or 1

    @property
    def bytes_per_day(self) -> int:
        return self.settings.budget.bytes_per_day

    @property
    def state(self) -> tuple[UpdateState, str]:
        record = self.installed.record
        return record.state, record.reason

    async def run(self, desired: DesiredConfiguration, until: frozenset[UpdateState] = ENDED) -> None:
        """Runs steps until the update is in one of these states."""
        await run_update(self, desired, until)


async def run_update(
    device: Device | ConfigurationDevice,
    desired: DesiredModel | DesiredConfiguration,
    until: frozenset[UpdateState] = ENDED,
) -> None:
    """Runs steps of a device until its update is in one of these states."""
    device.receive(desired)
    for _ in range(100):
        pause_s = await device.step()
        if device.state[0] in until:
            return
        device.clock.pass_by(pause_s)
    raise AssertionError(f"the update stays in {device.state}")


@contextmanager
def full_disk(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Refuses every write to the disk."""

    def refused(_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with patch.context() as within:
        within.setattr(os, "fsync", refused)
        yield


class Cut(BaseException):
    """Raised at a power cut."""


@contextmanager
def cut_after(operations: int, patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Cuts the power after this many ordered operations of the disk; yields the names of those that were done."""
    done: list[str] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            done.append(name)
            if len(done) > operations:
                raise Cut
            return call(*arguments, **named)

        return wrapped

    with patch.context() as within:
        for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir")):
            within.setattr(owner, name, counted(name, getattr(owner, name)))
        yield done
