"""The state of all model updates on disk, and its evaluation at a start."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from firstline_core.errors import IntegrityError, RequestError, UnknownModelError
from firstline_core.fleet.update import UpdateState
from firstline_core.storage.files import set_aside
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.updates.pointer import Pointer, Slot, read_pointer, write_pointer
from firstline_edge.fleet.updates.record import Record, read_record, write_record
from firstline_edge.fleet.updates.slots import Slots

log = logger(__name__)

ASKED = "asked"
"""The reason of what somebody did on the device itself."""

_S = UpdateState


class History:
    """Of one device. What holds in this process is here; the disk has it too, or is told as soon as it takes it.

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
        self._behind: set[str] = set()  # models of which nobody knows what the disk says
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_dir():
                self._read(path)

    def _read(self, path: Path) -> None:
        record = None
        try:
            if (record := read_record(path)) is not None:
                self.records[path.name] = record
        except (IntegrityError, OSError) as error:
            log.error("how an update stands is not known", error=str(error))
            self._aside(path / "update")
        try:
            self._pointers[path.name] = read_pointer(path)
        except (IntegrityError, OSError) as error:
            # What was committed was so by the pointer; of anything else only the setup is certain.
            slot = record.slot if record is not None and record.state is _S.COMMITTED else ""
            log.error("which slot runs is not known", taken=slot or "what the device was set up with", error=str(error))
            self._aside(path / "pointer")
            self._pointers[path.name] = Pointer(slot, slot)

    def _aside(self, path: Path) -> None:
        try:
            if self._repair and path.exists():
                set_aside(path)
        except OSError as error:
            log.error("cannot put a file aside", path=str(path), error=str(error))

    def start(self, wall_s: float) -> None:
        """A process starts: trials have a try less, and records that a power cut left behind are brought up.

        If the disk refuses to count a start, nothing is tried: the previous model runs, at least in this process.
        """
        for name, before in list(self._pointers.items()):
            record = self.records.get(name)
            # A trial of which nothing is known could never be judged.
            pointer = before.started() if record is not None or not before.in_trial else before.reverted()
            now = _brought_up(record, before, pointer, wall_s) if record is not None else None
            if pointer == before and now == record:
                continue
            try:
                self._hold(name, pointer, now)
            except OSError as error:
                log.error("the disk refuses an update", model=name, error=str(error))
                if now is not None and pointer.in_trial:
                    self._pointers[name] = pointer.reverted()
                    self.records[name] = _ended(now, "disk", f"A start could not be counted: {error.strerror}.", wall_s)

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

    def settle(self, name: str) -> None:
        """Has on the disk what holds, where an earlier refusal left that open.

        Raises:
            OSError: it refuses still.
        """
        if name in self._behind:
            write_pointer(self.folder / name, self.pointer(name))
            if name in self.records:
                write_record(self.folder / name, self.records[name])
            self._behind.discard(name)

    def point(self, name: str, pointer: Pointer) -> None:
        """Has the pointer on the disk when it returns.

        Raises:
            OSError: the disk refuses; the old one holds.
        """
        self.settle(name)
        self._behind.add(name)  # a write that fails may have come to the disk all the same
        write_pointer(self.folder / name, pointer)
        self._behind.discard(name)
        self._pointers[name] = pointer

    def write(self, name: str, record: Record) -> None:
        """Has the record on the disk when it returns.

        Raises:
            OSError: the disk refuses; the old one holds.
        """
        self.settle(name)
        self._behind.add(name)
        write_record(self.folder / name, record)
        self._behind.discard(name)
        self.records[name] = record

    def hold(self, name: str, record: Record) -> None:
        """Has the record hold in this process, of an update that is not tried: `settle` has it on the disk later."""
        self.records[name] = record
        self._behind.add(name)

    def begin_trial(self, name: str, tries: int, record: Record) -> None:
        """Has both on the disk when it returns: the other slot runs, and is being tried.

        Raises:
            OSError: the disk refuses; neither holds.
        """
        before = self.pointer(name)
        self.point(name, before.begin_trial(tries))
        try:
            self.write(name, record)
        except OSError:
            self._pointers[name] = before
            raise

    def give_up(self, name: str, reason: str, message: str, wall_s: float) -> None:
        """Rolls back from a model that cannot run.

        Raises:
            OSError: the disk refuses; it holds all the same, until a restart at least.
        """
        pointer, record = self.pointer(name), self.records.get(name)
        if record is not None and record.state in (_S.TRIAL, _S.COMMITTED):
            record = _ended(record, reason, message, wall_s)
        self._hold(name, pointer.reverted() if pointer.previous != pointer.slot else Pointer(), record)

    def roll_back(self, name: str, wall_s: float) -> None:
        """Rolls a model back on request; the update that was to follow is not tried.

        Raises:
            UnknownModelError: the fleet never updated such a model.
            RequestError: there is nothing to go back to.
            OSError: see `give_up`.
        """
        pointer, record = self.pointer(name), self.records.get(name)
        if name not in self.names:
            raise UnknownModelError(f"No update of a model {name!a} is known on this device; see `edge-agent updates`.")
        if pointer.slot == pointer.previous:
            its = f"; its update is {record.state.value}" if record is not None else ""
            raise RequestError(f"Model {name}: there is nothing to go back to{its}.")
        if record is not None and (record.state in (_S.TRIAL, _S.COMMITTED) or not record.ended):
            state = _S.ROLLED_BACK if record.state in (_S.TRIAL, _S.COMMITTED) else _S.CANCELLED
            record = replace(record, state=state, reason=ASKED, message="Rolled back on the device.", since_s=wall_s)
        self._hold(name, pointer.reverted(), record)

    def _hold(self, name: str, pointer: Pointer, record: Record | None) -> None:
        """Holds from now on; raises OSError where the disk does not have it yet."""
        self._pointers[name] = pointer
        if record is not None:
            self.records[name] = record
        self._behind.add(name)
        self.settle(name)


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
