"""Updates of the models of a device: installed in the spare slot, tried, and committed or rolled back.

The state file of the model (`installed`) alone decides which slot runs. It is stored before any action that it
describes; only a rollback does not wait for the disk: the previous model answers at once, and a restart that does not
know of the rollback uses up one more try. The tests before the trial are counted in the same way: a try is stored
before the model is loaded.
"""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from firstline_core.errors import FirstlineError
from firstline_core.fleet.target import find_bundle
from firstline_core.fleet.twin import DesiredModel, Update
from firstline_core.fleet.update import UpdateState
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.updates.installation import UNFINISHED, Installer, SlotFiles, manifest_sha256, required_files
from firstline_edge.fleet.updates.installed import UpdateRecord
from firstline_edge.fleet.updates.model_store import ModelStore, Slot
from firstline_edge.fleet.updates.state_machine import COMPLETE, UpdateStateMachine
from firstline_edge.fleet.updates.trial import AgentServing

log = logger(__name__)

_S = UpdateState
_delete = partial(shutil.rmtree, ignore_errors=True)


class ModelUpdates(UpdateStateMachine[Slot, DesiredModel]):
    """The updates of one model.

    Args:
        name: of the model.
        store: the installed models.
        installer: fills slots with signed bundles.
        serving: the models that answer.
    """

    def __init__(self, name: str, store: ModelStore, installer: Installer, serving: AgentServing) -> None:
        super().__init__(f"Model {name}", store.file(name), installer.services)
        self._name = name
        self._store_of_models = store
        self._installer = installer
        self._serving = serving
        self._filling: SlotFiles | None = None

    def update(self) -> Update | None:
        """See `UpdateStateMachine`; a download in progress adds its bytes and its problem."""
        record, filling = self.record, self._filling
        if record is None or filling is None:
            return super().update()
        return replace(record, message=filling.problem).update(filling.received_bytes)

    @property
    def _slot(self) -> Slot:
        """The slot that an update fills: the staged one, or the spare one."""
        state = self._file.state
        return state.staged or ("b" if state.running == "a" else "a")

    @property
    def _folder(self) -> Path:
        """The folder with the slots of the model."""
        return self._store_of_models.folder / self._name

    @property
    def _running(self) -> Path | None:
        """The folder of the bundle that runs; None if there is none."""
        return self._store_of_models.running(self._name) or self._serving.configured_path(self._name)

    async def _runs(self, desired: DesiredModel) -> bool:
        path = self._running
        return path is not None and await self._services.off_loop(manifest_sha256, path) == desired.sha256

    async def _installed_sha256(self) -> str:
        path = self._store_of_models.running(self._name)
        return "" if path is None else await self._services.off_loop(manifest_sha256, path)

    async def _install(self, record: UpdateRecord[DesiredModel], desired: DesiredModel) -> None:
        """Fills the spare slot and verifies it; stopped if the fleet desires something else meanwhile."""
        name, slot = self._name, self._slot
        files = await self._requests.while_desired(self._installer.registry.files(), desired)
        device = await self._serving.hardware()
        required = required_files(find_bundle(files, name, desired.version), desired, device)
        if record.state is not _S.DOWNLOADING:
            begun = replace(record, state=_S.DOWNLOADING, total_bytes=required.size_bytes, reason="", message="")
            await self._store(self._file.state.begin_install(slot, replace(begun, since_s=self._now_s())))
        elsewhere = (self._store_of_models.path(name, "a" if slot == "b" else "b"), self._serving.configured_path(name))
        others = [path for path in elsewhere if path is not None]
        self._filling = filling = SlotFiles(self._folder / slot, required)
        try:
            work = self._installer.fill(filling, elsewhere=others, free_bytes=device.free_bytes)
            await self._requests.while_desired(work, desired)
        finally:
            self._filling = None
        await self._note(_S.VERIFIED)

    async def _begin_trial(self) -> None:
        """Tests the model in the staged slot, and makes it answer requests; rejects it without tries left.

        A model can kill the process that loads it, so each test uses up a try before it loads anything. A test that
        ends with an error, or with a signal to the agent to stop, gives the try back.

        Raises:
            UpdateError: it failed the test.
            OSError: the disk refuses; the previous model runs.
        """
        write, before, record = self._file.write, self._file.state, self.record
        assert record is not None  # noqa: S101 (it is staged)
        if record.tries >= self._limits.trial_tries:
            await self._end(_S.REJECTED, "tries", "The agent ended too often while it loaded and tested the model.")
            return
        tested = replace(before, record=replace(record, tries=record.tries + 1))
        await self._services.off_loop(write, tested)
        try:
            loaded = await self._serving.load_for_trial(self._folder / self._slot)
        except (Exception, asyncio.CancelledError):  # the process lives, or an operator ends it
            await self._services.off_loop(write, before)
            raise
        await self._store(tested.begin_trial(self._limits.trial_tries, self._now_s()))
        await self._serving.replace(self._name, loaded)

    def _trial_failed(self) -> bool:
        return self._serving.failed(self._name)

    async def _run_previous(self) -> None:
        """Loads the previous model; if it cannot run, the bundle that the device was set up with."""
        loaded = None
        for path in (self._store_of_models.running(self._name), self._serving.configured_path(self._name)):
            if path is None or loaded is not None:
                continue
            try:
                loaded = await self._serving.load_again(path)
            except (FirstlineError, OSError) as error:
                log.error("previous model not runnable", model=self._name, error=str(error))
        await self._serving.replace(self._name, loaded)

    async def _retry_write(self) -> None:
        stored, record = await self._services.off_loop(self._file.retry_write), self.record
        if stored and record is not None and record.ended:  # the disk also refused to delete files then
            await self._free_space(record.state)

    def _ends_on_disk_error(self, record: UpdateRecord[DesiredModel]) -> bool:
        return record.state not in COMPLETE  # a complete bundle waits until the disk takes a small file

    async def _end(self, state: UpdateState, reason: str, message: str) -> None:
        """Ends an update that was not tried, and frees the disk space that it took."""
        await self._free_space(state)
        await super()._end(state, reason, message)

    async def _free_space(self, state: UpdateState) -> None:
        """Deletes unfinished downloads, and the filled slot of an update that failed."""
        await self._services.off_loop(_delete, self._folder / UNFINISHED)
        if state is _S.FAILED and self._slot != self._file.state.previous:
            await self._services.off_loop(_delete, self._folder / self._slot)
