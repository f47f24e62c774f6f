"""A device that is updated without a network: real bundles, a registry in memory, and power cuts of its disk."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from bench.support.bundles import artefact
from bench.support.onnx_models import linear
from firstline_core.bundle.manifest import Manifest, Model, encode_manifest
from firstline_core.bundle.store import open_bundle
from firstline_core.clock import SimulatedClock
from firstline_core.errors import FirstlineError, IntegrityError, LinkDownError, NotFoundError, SelfTestError
from firstline_core.fleet.target import Hardware, target_fields, target_path
from firstline_core.fleet.twin import DesiredModel
from firstline_core.processing.steps import InputSpec, Softmax
from firstline_core.storage.artefact import SignedFile
from firstline_edge.fleet.updates.model_store import ModelStore
from firstline_edge.fleet.updates.model_updates import Updater, UpdateServices
from firstline_edge.fleet.updates.state_machine import TrialLimits

NAME = "wide"


def bundle_at(folder: Path, version: int, name: str = NAME) -> Path:
    """Writes a real bundle whose weights encode its version."""
    folder.mkdir(parents=True)
    path = linear(folder / "edge.onnx", np.full((4, 2), version, np.float32))
    model = Model("edge", artefact(path, folder), "onnx", "fp32", postprocess=(Softmax(),))
    spec = InputSpec("x", "FP32", (-1, 4))
    manifest = Manifest(name=name, version=version, labels=("yes", "no"), input=spec, edge=(model,))
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))
    return folder


class Registry:
    """A `Registry` in memory.

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

    def relabelled(self, wanted: DesiredModel, name: str, version: int) -> DesiredModel:
        """Signs the same files as another bundle; returns the desired state of a fleet."""
        folder = target_path(wanted.name, wanted.version, "")
        for path, file in list(self.signed.items()):
            inside = path.removeprefix(folder)
            custom = dict(file.custom)
            if inside == "manifest.json":
                custom |= {"bundle": name, "version": version}
            moved = target_path(name, version, inside)
            self.signed[moved] = file._replace(path=moved, custom=custom)
        return replace(wanted, name=name, version=version)

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


class FakeServing:
    """A `Serving` that opens and verifies bundles; `answers` is the folder that was exchanged last."""

    def __init__(self, setup: Path) -> None:
        self.setup = setup
        self.answers: Path | None = None
        self.versions: list[int] = []
        self.breaks: set[int] = set()
        self.fails = False

    def place(self, name: str) -> Path | None:
        return self.setup if name == NAME else None

    async def prepare(self, path: Path, *, trial: bool) -> Path:
        version = open_bundle(path).manifest.version
        if version in self.breaks:
            raise SelfTestError(f"version {version} answers otherwise than it should")
        return path

    async def exchange(self, name: str, prepared: Any | None) -> None:
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
        while (path := store.path(NAME, store.pointer(NAME).slot)) is not None:
            try:
                open_bundle(path)
                self.serving.answers = path
                break
            except IntegrityError as error:
                with suppress(OSError):
                    store.roll_back(NAME, "damaged", error.message, self.clock.wall_s())
        services = UpdateServices(
            store,
            self.registry,
            self.serving,
            clock=self.clock,
            now_s=self.clock.wall_s,
            rng=random.Random(1),
            limits=TrialLimits(self.tries, 60.0),
            off_loop=here,
        )
        self.updater = Updater(services)

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

    async def run(self, steps: int = 200) -> None:
        """Runs steps until the update has ended."""
        for _ in range(steps):
            record = self.store.records.get(NAME)
            wait_s = await self.step()
            if record is not None and record.ended and record == self.store.records[NAME]:
                return
            if wait_s > 0:
                self.clock.pass_by(wait_s)
        raise AssertionError(f"never ended: {self.store.records.get(NAME)}")


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
