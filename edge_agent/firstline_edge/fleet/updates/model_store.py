"""The models that the fleet installed on this device: which slot of each runs, and the state of its latest update.

On disk each model has a folder with two slots (`a` and `b`) and two small files: `pointer` says which slot runs and
whether it is on trial, `update` is the record of the latest update. The pointer alone decides, as in the boot loaders
of RAUC and Mender. It is replaced as a whole and fsynced before any action that it describes, so that a power cut
leaves the old or the new pointer, and both are true: a slot stops being the rollback target before it is overwritten, a
trial is on the disk before its model answers, and each start during a trial uses up a try before it loads anything.
Without tries left the device rolls back by itself, also without a connection. The record counts the tests before a
trial.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from firstline_core.clock import Clock
from firstline_core.errors import IntegrityError, RequestError, UnknownModelError, UpdateError
from firstline_core.fleet.twin import DesiredModel
from firstline_core.fleet.update import UpdateState
from firstline_core.storage.structs import read_struct, write_struct
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.updates.state_machine import Record, Slot
from firstline_edge.models.models import DeviceModel
from firstline_edge.state import put_aside

log = logger(__name__)

POINTER, RECORD = "pointer", "update"
"""Names of the files in a model's folder."""

_S = UpdateState


class Pointer(Struct, frozen=True, forbid_unknown_fields=True):
    """The slot that runs.

    Attributes:
        slot: runs now.
        previous: ran before, and runs again after a rollback; the same as `slot` if there is nothing to roll back to.
        tries_left: starts that the trial of `slot` may still take; None without a trial.
    """

    slot: Slot = ""
    previous: Slot = ""
    tries_left: Annotated[int, Meta(ge=0, le=100)] | None = None
    format: Literal[1] = 1

    @property
    def in_trial(self) -> bool:
        return self.tries_left is not None

    @property
    def can_roll_back(self) -> bool:
        return self.slot != self.previous

    @property
    def spare(self) -> Slot:
        """The slot that the next update is put into."""
        return "b" if self.slot == "a" else "a"

    def cleared(self) -> Pointer:
        """Returns the pointer before the spare slot is overwritten: it stops being the rollback target."""
        return replace(self, previous=self.slot) if self.previous == self.spare else self

    def begin_trial(self, tries: int) -> Pointer:
        """Returns the pointer to the spare slot, on trial for this many starts.

        Raises:
            ValueError: a trial is in progress, or the slot was not `cleared`.
        """
        if self.in_trial or self.previous == self.spare or tries < 1:
            raise ValueError(f"slot {self.spare!r} cannot be tried with {tries} tries while {self} holds")
        return Pointer(self.spare, self.slot, tries)

    def started(self) -> Pointer:
        """Returns the pointer after a start of the agent: a trial has one try less, and ends without one."""
        if self.tries_left is None:
            return self
        return replace(self, tries_left=self.tries_left - 1) if self.tries_left else self.reverted()

    def committed(self) -> Pointer:
        """Returns the pointer with the trial accepted; the previous slot stays for a rollback."""
        return replace(self, tries_left=None)

    def reverted(self) -> Pointer:
        """Returns the pointer to the previous slot; nothing is left to roll back to."""
        return Pointer(self.previous, self.previous, None)


class ModelStore:
    """The state of all models of one device: valid in this process, and on the disk as soon as it accepts writes.

    Args:
        folder: one folder for each model.
        repair: whether damaged files are set aside; False for read-only use.

    Attributes:
        records: state of the latest update by model.
    """

    def __init__(self, folder: Path, *, repair: bool = True) -> None:
        self.folder = folder
        self._repair = repair
        self.records: dict[str, Record[DesiredModel]] = {}
        self._pointers: dict[str, Pointer] = {}
        self._unwritten: set[str] = set()  # models whose state on the disk is unknown or outdated
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_dir():
                self._read(path)

    def _read(self, path: Path) -> None:
        record = None
        try:
            record = self.records[path.name] = read_struct(path / RECORD, Record[DesiredModel])
        except FileNotFoundError:
            pass  # the model was never updated
        except (IntegrityError, OSError) as error:
            log.error("update state lost", error=str(error))
            self._set_aside(path / RECORD)
        try:
            self._pointers[path.name] = read_struct(path / POINTER, Pointer)
        except FileNotFoundError:
            self._pointers[path.name] = Pointer()
        except (IntegrityError, OSError) as error:
            # The pointer committed what the record calls committed; otherwise only the original bundle is certain.
            slot = record.slot if record is not None and record.state is _S.COMMITTED else ""
            log.error("running slot lost", assumed=slot or "the bundle in models.directories", error=str(error))
            self._set_aside(path / POINTER)
            self._pointers[path.name] = Pointer(slot, slot)

    def _set_aside(self, path: Path) -> None:
        if self._repair:
            put_aside(path)

    def start(self, wall_s: float) -> None:
        """Notes a start of the agent: trials use up a try, and records that a power cut left behind are corrected.

        If the disk refuses to count a start, nothing is tried: the previous model runs, at least in this process.
        """
        for name, before in list(self._pointers.items()):
            record = self.records.get(name)
            # A trial without a record could never be judged.
            pointer = before.started() if record is not None or not before.in_trial else before.reverted()
            now = _corrected(record, before, pointer, wall_s) if record is not None else None
            if pointer == before and now == record:
                continue
            try:
                self._set_and_store(name, pointer, now)
            except OSError as error:
                log.error("update not stored", model=name, error=str(error))
                if now is not None and pointer.in_trial:
                    self._pointers[name] = pointer.reverted()
                    message = f"A start could not be counted: {error.strerror}."
                    self.records[name] = now.after_rollback("disk", message, wall_s)

    def correct_record(self, name: str, wall_s: float) -> None:
        """Makes the record agree with the pointer.

        Raises:
            OSError: the disk refuses.
        """
        pointer = self.pointer(name)
        self.write(name, _corrected(self.records[name], pointer, pointer, wall_s))

    def pointer(self, name: str) -> Pointer:
        """Returns the pointer of a model."""
        return self._pointers.get(name, Pointer())

    def path(self, name: str, slot: Slot) -> Path | None:
        """Returns a slot's folder; None for the bundle that the device was set up with."""
        return self.folder / name / slot if slot else None

    @property
    def names(self) -> list[str]:
        """The models that have, or should have had, an update."""
        return sorted({*self._pointers, *self.records})

    def retry_write(self, name: str) -> bool:
        """Stores the valid state if an earlier write was refused; returns whether one was.

        Raises:
            OSError: the disk still refuses.
        """
        if name not in self._unwritten:
            return False
        write_struct(self.folder / name / POINTER, self.pointer(name))
        if name in self.records:
            write_struct(self.folder / name / RECORD, self.records[name])
        self._unwritten.discard(name)
        return True

    def point(self, name: str, pointer: Pointer) -> None:
        """Stores a pointer.

        Raises:
            OSError: the disk refuses; the old pointer stays valid.
        """
        self._store(name, POINTER, pointer)
        self._pointers[name] = pointer

    def write(self, name: str, record: Record[DesiredModel]) -> None:
        """Stores a record.

        Raises:
            OSError: the disk refuses; the old record stays valid.
        """
        self._store(name, RECORD, record)
        self.records[name] = record

    def _store(self, name: str, file: str, value: Struct) -> None:
        self.retry_write(name)
        self._unwritten.add(name)  # a refused write may have reached the disk
        write_struct(self.folder / name / file, value)
        self._unwritten.discard(name)

    def set_in_memory(self, name: str, record: Record[DesiredModel]) -> None:
        """Makes the record of an update that is not tried valid in this process; `retry_write` stores it later."""
        self.records[name] = record
        self._unwritten.add(name)

    def begin_trial(self, name: str, tries: int, record: Record[DesiredModel]) -> None:
        """Stores that the spare slot runs and is on trial.

        Raises:
            OSError: the disk refuses; neither pointer nor record is valid.
        """
        before = self.pointer(name)
        self.point(name, before.begin_trial(tries))
        try:
            self.write(name, record)
        except OSError:
            self._pointers[name] = before
            raise

    def check_rollback(self, name: str) -> None:
        """Checks that a rollback on request is possible.

        Raises:
            UnknownModelError: the fleet never updated such a model.
            RequestError: there is no previous version.
        """
        if name not in self.names:
            raise UnknownModelError(
                f"No update of a model {name!a} is known on this device; see `edge-agent update list`."
            )
        if not self.pointer(name).can_roll_back:
            record = self.records.get(name)
            state = f"; its update is {record.state.value}" if record is not None else ""
            raise RequestError(f"Model {name} has no previous version to roll back to{state}.")

    def roll_back(self, name: str, reason: str, message: str, wall_s: float) -> None:
        """Rolls back to the previous slot, or from there to the bundle that the device was set up with.

        Raises:
            OSError: the disk refuses; the rollback is valid all the same, until a restart at least.
        """
        pointer, record = self.pointer(name), self.records.get(name)
        after = record.after_rollback(reason, message, wall_s) if record is not None else None
        self._set_and_store(name, pointer.reverted() if pointer.can_roll_back else Pointer(), after)

    def _set_and_store(self, name: str, pointer: Pointer, record: Record[DesiredModel] | None) -> None:
        """Makes both valid in memory, then stores them; raises OSError if the disk does not have them yet."""
        self._pointers[name] = pointer
        if record is not None:
            self.records[name] = record
        self._unwritten.add(name)
        self.retry_write(name)


def load_installed(
    store: ModelStore, load_bundle: Callable[[Path], DeviceModel], clock: Clock
) -> dict[Path, DeviceModel]:
    """Opens the models that run from a slot when the agent starts; one that cannot run is rolled back.

    Args:
        store: the installed models.
        load_bundle: opens, loads and measures one bundle.
        clock: for the time of a rollback.

    Returns:
        The models by the folders of their bundles.
    """
    opened: dict[Path, DeviceModel] = {}
    for name in store.names:
        while (path := store.path(name, store.pointer(name).slot)) is not None:
            try:
                device_model = load_bundle(path)
                if device_model.edge is None and device_model.manifest.edge:
                    raise UpdateError(device_model.problem)
                opened[path] = device_model
                break
            except UpdateError as error:
                log.error("installed model not runnable", model=name, path=str(path), error=error.message)
                try:
                    store.roll_back(name, "damaged", error.message, clock.wall_s())
                except OSError as refusal:
                    log.error("rollback not stored yet", model=name, error=str(refusal))
    return opened


def _corrected(record: Record[DesiredModel], before: Pointer, now: Pointer, wall_s: float) -> Record[DesiredModel]:
    """Returns the record that agrees with the pointer before and after a start."""
    if now.in_trial:
        tries = record.tries if record.state is _S.TRIAL else 0  # those of a staged model are tests
        return replace(record, state=_S.TRIAL, tries=tries + 1)
    if before.in_trial:
        message = "The agent was started too often while it was being tried."
        return replace(record, state=_S.ROLLED_BACK, reason="tries", message=message, since_s=wall_s)
    if record.state is _S.TRIAL and now.slot == record.slot:
        return replace(record, state=_S.COMMITTED, since_s=wall_s)
    if now.slot != record.slot:
        return record.after_rollback("reverted", "The previous version runs again.", wall_s)
    return record
