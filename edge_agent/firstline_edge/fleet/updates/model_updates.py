"""Updates of the models of a device: installed in the spare slot, tried, and committed or rolled back.

The pointer of the model (`model_store`) alone decides which slot runs. It is stored before any action that it
describes; only a rollback does not wait for the disk: the previous model answers at once, and a restart that does not
know of the rollback uses up one more try. The record counts the tests before the trial in the same way: a try is stored
before the model is loaded.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, UnknownModelError
from firstline_core.fleet.target import find_bundle
from firstline_core.fleet.twin import DesiredModel, Update
from firstline_core.fleet.update import UpdateState
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.updates.installation import Installer, Progress, SlotFiles, manifest_sha256, required_files
from firstline_edge.fleet.updates.model_store import ModelStore
from firstline_edge.fleet.updates.state_machine import Record, Slot, TrialLimits, UpdateStateMachine
from firstline_edge.fleet.updates.trial import Serving

log = logger(__name__)

_S = UpdateState
_COMPLETE = (_S.VERIFIED, _S.STAGED)


@dataclass(frozen=True)
class UpdateServices:
    """The collaborators of all model updates of a device.

    Args:
        store: the installed models.
        installer: fills slots with signed bundles.
        serving: the models that answer.
        clock: for durations.
        now_s: returns the wall time in seconds, for windows and expiry.
        rng: for jitter.
        limits: of trials.
        changed: called whenever the state of an update changes.
    """

    store: ModelStore
    installer: Installer
    serving: Serving
    clock: Clock
    now_s: Callable[[], float]
    rng: random.Random
    limits: TrialLimits
    changed: Callable[[], None] = lambda: None


class ModelUpdates(UpdateStateMachine[DesiredModel]):
    """The updates of one model.

    Args:
        name: of the model.
        services: of the device.
    """

    def __init__(self, name: str, services: UpdateServices) -> None:
        super().__init__(name, clock=services.clock, now_s=services.now_s, rng=services.rng, limits=services.limits)
        self._name = name
        self._services = services
        self._store = services.store
        self._files = SlotFiles(services.store.folder / name)
        self._off_loop = services.installer.off_loop
        self._progress: Progress | None = None

    @property
    def record(self) -> Record[DesiredModel] | None:
        return self._store.records.get(self._name)

    @property
    def can_roll_back(self) -> bool:
        return self._store.pointer(self._name).can_roll_back

    def _running_slot(self) -> Slot:
        return self._store.pointer(self._name).slot

    def update(self) -> Update | None:
        """Returns the state of the latest update; None if there was none."""
        record = self.record
        if record is None or self._progress is None:
            return None if record is None else record.update()
        return replace(record, message=self._progress.problem).update(self._progress.received_bytes)

    def _check_rollback(self) -> None:
        self._store.check_rollback(self._name)

    async def _runs(self, desired: DesiredModel) -> bool:
        path = self._store.path(self._name, self._running_slot()) or self._services.serving.place(self._name)
        return path is not None and await self._off_loop(manifest_sha256, path) == desired.sha256

    async def _install(self, record: Record[DesiredModel], desired: DesiredModel) -> None:
        """Fills the spare slot and verifies it; stopped if the fleet desires something else meanwhile."""
        services, name = self._services, self._name
        files = await self._inbox.while_desired(services.installer.files(), desired)
        device = await services.serving.hardware()
        required = required_files(find_bundle(files, name, desired.version), desired, device)
        pointer = self._store.pointer(name)
        slot = pointer.spare
        if pointer.cleared() != pointer:
            await self._off_loop(self._store.point, name, pointer.cleared())
        if record.state is not _S.DOWNLOADING or record.slot != slot:
            begun = replace(record, state=_S.DOWNLOADING, slot=slot, total_bytes=required.size_bytes)
            await self._write(replace(begun, reason="", message="", since_s=services.now_s()))
        elsewhere = (self._store.path(name, "a" if slot == "b" else "b"), services.serving.place(name))
        self._progress = progress = Progress()
        filling = services.installer.fill(
            self._files,
            slot,
            required,
            elsewhere=[path for path in elsewhere if path is not None],
            free_bytes=device.free_bytes,
            progress=progress,
        )
        try:
            await self._inbox.while_desired(filling, desired)
        finally:
            self._progress = None
        await self._note(_S.VERIFIED)

    async def _begin_trial(self) -> None:
        """Tests the model in the spare slot, and makes it answer requests; rejects it without tries left.

        A model can kill the process that loads it, so each test uses up a try before it loads anything. A test that
        ends with an error gives the try back.

        Raises:
            UpdateError: it failed the test.
            OSError: the disk refuses; the previous model runs.
        """
        services, name, record = self._services, self._name, self.record
        assert record is not None  # noqa: S101 (it is staged)
        if record.tries >= services.limits.tries:
            await self._end(_S.REJECTED, "tries", "The agent ended too often while it loaded and tested the model.")
            return
        await self._off_loop(self._store.write, name, replace(record, tries=record.tries + 1))
        try:
            prepared = await services.serving.prepare(self._files.path(record.slot), trial=True)
        except Exception:  # the process lives
            await self._off_loop(self._store.write, name, record)
            raise
        on_trial = replace(record, tries=0).after(_S.TRIAL, services.now_s())
        await self._off_loop(self._store.begin_trial, name, services.limits.tries, on_trial)
        self._report()
        await services.serving.exchange(name, prepared)

    async def _check_trial(self) -> float:
        if not self._store.pointer(self._name).in_trial:  # the disk took the commit and refused the record
            await self._off_loop(self._store.correct_record, self._name, self._services.now_s())
            self._report()
            return 0.0
        return await super()._check_trial()

    def _trial_failed(self) -> bool:
        return self._services.serving.failed(self._name)

    async def _commit(self) -> None:
        committed = self._store.pointer(self._name).committed()
        await self._off_loop(self._store.point, self._name, committed)
        await self._note(_S.COMMITTED)

    async def _restore(self, reason: str, message: str) -> None:
        """Loads the previous model; if it cannot run, the bundle that the device was set up with."""
        services, name = self._services, self._name
        try:
            await self._off_loop(self._store.roll_back, name, reason, message, services.now_s())
        except OSError as error:
            log.error("rollback not stored yet", model=name, error=str(error))
        self._report()
        prepared = None
        for path in (self._store.path(name, self._running_slot()), services.serving.place(name)):
            if path is None or prepared is not None:
                continue
            try:
                prepared = await services.serving.prepare(path, trial=False)
            except (FirstlineError, OSError) as error:
                log.error("previous model not runnable", model=name, error=str(error))
        await services.serving.exchange(name, prepared)

    async def _write(self, record: Record[DesiredModel]) -> None:
        await self._off_loop(self._store.write, self._name, record)
        self._report()

    def _set_in_memory(self, record: Record[DesiredModel]) -> None:
        self._store.set_in_memory(self._name, record)
        self._report()

    async def _retry_write(self) -> None:
        stored, record = await self._off_loop(self._store.retry_write, self._name), self.record
        if stored and record is not None and record.ended:  # the disk also refused to delete files then
            await self._free_space(record.state)

    def _ends_on_disk_error(self, record: Record[DesiredModel]) -> bool:
        return record.state not in _COMPLETE  # a complete bundle waits until the disk takes a small file

    def _is_stale(self, record: Record[DesiredModel]) -> bool:
        """Returns whether the running slot was rolled back meanwhile, so that the filled slot is not the spare one."""
        return record.state in _COMPLETE and record.slot != self._store.pointer(self._name).spare

    async def _end(self, state: UpdateState, reason: str, message: str) -> None:
        """Ends an update that was not tried, and frees the disk space that it took."""
        await self._free_space(state)
        await super()._end(state, reason, message)

    async def _free_space(self, state: UpdateState) -> None:
        """Deletes unfinished downloads, and the filled slot of an update that failed."""
        record, pointer = self.record, self._store.pointer(self._name)
        await self._off_loop(self._files.delete_partial)
        if state is _S.FAILED and record is not None and record.slot not in ("", pointer.slot, pointer.previous):
            await self._off_loop(self._files.clear, record.slot)

    def _report(self) -> None:
        """Logs the state of the update, and reports it to the fleet."""
        record = self.record
        if record is not None:
            log.info(
                "update state changed",
                model=self._name,
                version=record.target.version,
                state=record.state.value,
                reason=record.reason,
            )
        self._services.changed()


class Updater:
    """The updates of all models of a device, which do not wait for each other.

    Args:
        services: the collaborators of updates.
    """

    def __init__(self, services: UpdateServices) -> None:
        self._services = services
        self._models: dict[str, ModelUpdates] = {}
        self._added = asyncio.Event()
        for name in services.store.names:
            self.model(name)

    def model(self, name: str) -> ModelUpdates:
        """Returns the updates of a model, which may have none yet."""
        updates = self._models.get(name)
        if updates is None:
            updates = self._models[name] = ModelUpdates(name, self._services)
            self._added.set()
        return updates

    def receive(self, models: Sequence[DesiredModel]) -> None:
        """Takes the models that the fleet desires now; a model that is not named stays as it is."""
        desired = {model.name: model for model in models}
        for name in sorted({*desired, *self._models}):
            self.model(name).receive(desired.get(name))

    def updates(self) -> tuple[Update, ...]:
        """Returns the state of the latest update of each model."""
        states = (self._models[name].update() for name in sorted(self._models))
        return tuple(update for update in states if update is not None)

    async def roll_back(self, name: str) -> None:
        """Rolls a model back on request.

        Raises:
            UnknownModelError: the fleet never updated such a model.
            RequestError: there is no previous version.
        """
        if name not in self._models:
            raise UnknownModelError(
                f"No update of a model {name!a} is known on this device; see `edge-agent update list`."
            )
        await self._models[name].roll_back()

    async def run(self) -> None:
        """Works until it is cancelled."""
        started: set[str] = set()
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._added.clear()
                for name in self._models.keys() - started:
                    started.add(name)
                    tasks.create_task(self._models[name].run(), name=f"updates of {name}")
                await self._added.wait()
