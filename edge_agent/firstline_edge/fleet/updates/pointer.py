"""Which of a model's two slots runs, and whether it is being tried: one small file that alone decides.

It is replaced whole and fsynced before anything that it says is done, as RAUC's and Mender's boot loaders have it. So
a power cut at any moment leaves the old word or the new one, and both are true: a slot is no longer gone back to before
anything in it is overwritten, a trial is on the disk before what is tried is loaded, and each start during a trial has
spent a try before it loads anything. Without a try left the device rolls back by itself, also without a connection.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from firstline_core.errors import IntegrityError
from firstline_core.storage.files import make_folder, read_checked, with_checksum, write_whole

Slot = Literal["", "a", "b"]
"""A folder of its own, or "" for the bundle that the device was set up with, in `models.directories`."""


class Pointer(Struct, frozen=True, forbid_unknown_fields=True):
    """The slot that runs.

    Attributes:
        slot: runs now.
        previous: ran before, and runs again when `slot` is given up; the same as `slot` where nothing else is known to
            be good.
        tries_left: starts that the trial of `slot` may still take; None while nothing is tried.
    """

    slot: Slot = ""
    previous: Slot = ""
    tries_left: Annotated[int, Meta(ge=0, le=100)] | None = None
    format: Literal[1] = 1

    @property
    def in_trial(self) -> bool:
        return self.tries_left is not None

    @property
    def spare(self) -> Slot:
        """The slot that the next update is put into."""
        return "b" if self.slot == "a" else "a"

    def cleared(self) -> Pointer:
        """The spare slot is about to be overwritten, and is nothing to go back to."""
        return replace(self, previous=self.slot) if self.previous == self.spare else self

    def begin_trial(self, tries: int) -> Pointer:
        """The spare slot runs from now on, and has so many starts to prove itself.

        Raises:
            ValueError: something is being tried already, or the slot was not `cleared`.
        """
        if self.in_trial or self.previous == self.spare or tries < 1:
            raise ValueError(f"slot {self.spare!r} cannot be tried with {tries} tries while {self} holds")
        return Pointer(self.spare, self.slot, tries)

    def started(self) -> Pointer:
        """A process starts: a trial has one try less, and without any left is over."""
        if self.tries_left is None:
            return self
        return replace(self, tries_left=self.tries_left - 1) if self.tries_left else self.reverted()

    def committed(self) -> Pointer:
        """Returns the pointer with the trial accepted; the previous slot stays for a rollback."""
        return replace(self, tries_left=None)

    def reverted(self) -> Pointer:
        """Returns the pointer to the previous slot. The slot that is left is nothing to go back to."""
        return Pointer(self.previous, self.previous, None)


def read_pointer(folder: Path) -> Pointer:
    """Reads a model's pointer; without a file, the pointer of a device that never had an update.

    Raises:
        IntegrityError: the file is damaged.
        OSError: the disk refuses.
    """
    path = _path(folder)
    try:
        return msgspec.json.decode(read_checked(path), type=Pointer)
    except FileNotFoundError:
        return Pointer()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise IntegrityError(f"{path} does not say which slot runs: {error}.") from error


def write_pointer(folder: Path, pointer: Pointer) -> None:
    """Has the pointer on the disk when it returns.

    Raises:
        OSError: the disk refuses; the old one stays.
    """
    make_folder(folder)
    write_whole(_path(folder), with_checksum(msgspec.json.encode(pointer)))


def _path(folder: Path) -> Path:
    return folder / "pointer"
