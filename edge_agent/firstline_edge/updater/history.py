"""What is on the disk of every model's updates, and what a start makes of it."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from firstline_core.errors import IntegrityError
from firstline_core.fleet.update import UpdateState
from firstline_core.storage.files import set_aside
from firstline_core.telemetry.logs import logger
from firstline_edge.updater.pointer import Pointer, Slot, read_pointer, write_pointer
from firstline_edge.updater.record import Record, read_record, write_record
from firstline_edge.updater.slots import Slots

log = logger(__name__)

_S = UpdateState


class History:
    """Of one device.

    Args:
        folder: one folder for each model.
        repair: whether damaged files are set aside; not by who only looks.

    Attributes:
        records: how the latest update of each model stands.
    """

    def __init__(self, folder: Path, *, repair: bool = True) -> None:
        self.folder = folder
        self._repair = repair
        self.records: dict[str, Record] = {}
        self._pointers: dict[str, Pointer] = {}
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_dir():
                self._read(path)

    def _read(self, path: Path) -> None:
        try:
            self._pointers[path.name] = read_pointer(path)
        except (IntegrityError, OSError) as error:
            log.error("which slot runs is not known; what the device was set up with does", error=str(error))
            self._aside(path / "pointer")
            self._pointers[path.name] = Pointer()
        try:
            if (record := read_record(path)) is not None:
                self.records[path.name] = record
        except (IntegrityError, OSError) as error:
            log.error("how an update stands is not known", error=str(error))
            self._aside(path / "update")

    def _aside(self, path: Path) -> None:
        try:
            if self._repair and path.exists():
                set_aside(path)
        except OSError as error:
            log.error("cannot put a file aside", path=str(path), error=str(error))

    def start(self, wall_s: float) -> None:
        """A process starts: trials have a try less, and records that a power cut left behind are brought up.

        Raises:
            OSError: the disk refuses: then nothing of what is tried may run.
        """
        for name, before in list(self._pointers.items()):
            pointer = before.started()
            if pointer != before:
                self.point(name, pointer)
            record = self.records.get(name)
            if record is None:
                continue
            now = _brought_up(record, before, pointer, wall_s)
            if now != record:
                self.write(name, now)

    def bring_up(self, name: str, wall_s: float) -> None:
        """The record says what the pointer has it.

        Raises:
            OSError: the disk refuses.
        """
        pointer = self.pointer(name)
        self.write(name, _brought_up(self.records[name], pointer, pointer, wall_s))

    def pointer(self, name: str) -> Pointer:
        """Which slot of a model runs."""
        return self._pointers.get(name, Pointer())

    def slots(self, name: str) -> Slots:
        """A model's slots."""
        return Slots(self.folder / name)

    def path(self, name: str, slot: Slot) -> Path | None:
        """A slot's folder; None for what the device was set up with."""
        return self.slots(name).path(slot) if slot else None

    @property
    def names(self) -> list[str]:
        """Models that were updated here, or were to be."""
        return sorted({*self._pointers, *self.records})

    def point(self, name: str, pointer: Pointer) -> None:
        """Has the pointer on the disk when it returns.

        Raises:
            OSError: the disk refuses; the old one holds.
        """
        write_pointer(self.folder / name, pointer)
        self._pointers[name] = pointer

    def write(self, name: str, record: Record) -> None:
        """Has the record on the disk when it returns.

        Raises:
            OSError: the disk refuses; the old one holds.
        """
        write_record(self.folder / name, record)
        self.records[name] = record

    def give_up(self, name: str, reason: str, message: str, wall_s: float) -> None:
        """What runs cannot: what ran before does from now on.

        Raises:
            OSError: the disk refuses.
        """
        pointer = self.pointer(name)
        self.point(name, pointer.reverted() if pointer.previous != pointer.slot else Pointer())
        record = self.records.get(name)
        if record is not None and record.state in (_S.TRIAL, _S.COMMITTED):
            self.write(name, _ended(record, reason, message, wall_s))


def _brought_up(record: Record, before: Pointer, now: Pointer, wall_s: float) -> Record:
    """The record as the pointer has it, before and after a start."""
    if now.in_trial:
        return replace(record, state=_S.TRIAL, tries=record.tries + 1)
    if before.in_trial:
        return _ended(record, "tries", "The agent was started too often while it was being tried.", wall_s)
    if record.state is _S.TRIAL and now.slot == record.slot:
        return replace(record, state=_S.COMMITTED, since_s=wall_s)
    if record.state in (_S.TRIAL, _S.COMMITTED) and now.slot != record.slot:
        return _ended(record, "reverted", "What ran before runs again.", wall_s)
    return record


def _ended(record: Record, reason: str, message: str, wall_s: float) -> Record:
    return replace(record, state=_S.ROLLED_BACK, reason=reason, message=message, since_s=wall_s)
