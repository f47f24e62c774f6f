"""How the latest update of a model stands: one small file, on the disk before anything is done that it says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from firstline_core.errors import IntegrityError
from firstline_core.fleet.twin import DesiredModel, Update
from firstline_core.fleet.update import ENDED, UpdateState
from firstline_core.storage.files import make_folder, read_checked, with_checksum, write_whole
from firstline_edge.fleet.updates.pointer import Slot

_MESSAGE_CHARS = 500
_S = UpdateState
_HERE = frozenset({_S.VERIFIED, _S.STAGED, _S.TRIAL, _S.COMMITTED, _S.ROLLED_BACK})


class Record(Struct, frozen=True):
    """Of one model.

    Attributes:
        target: what it is to become.
        state: how far that came.
        reason: code of an error, or another word for a program; "" while all goes well.
        message: a sentence for people, or "".
        slot: that it is put into; "" before that is known.
        total_bytes: of its files; 0 before that is known.
        since_s: wall time of this state.
        tries: starts of the trial so far.
    """

    target: DesiredModel
    state: UpdateState
    reason: str = ""
    message: str = ""
    slot: Slot = ""
    total_bytes: Annotated[int, Meta(ge=0)] = 0
    since_s: float = 0.0
    tries: Annotated[int, Meta(ge=0)] = 0
    format: Literal[1] = 1

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def update(self, received_bytes: int = 0) -> Update:
        """Returns the update as it is reported to the fleet; `received_bytes` grows until the download is complete."""
        return Update(
            self.target.name,
            self.target.version,
            self.state,
            rollout=self.target.rollout,
            reason=self.reason[:64],
            message=self.message[:_MESSAGE_CHARS],
            received_bytes=self.total_bytes if self.state in _HERE else received_bytes,
            total_bytes=self.total_bytes,
            since_s=max(0.0, self.since_s),
            tries=self.tries,
        )


def read_record(folder: Path) -> Record | None:
    """A model's record; None where there never was an update.

    Raises:
        IntegrityError: the file is damaged.
        OSError: the disk refuses.
    """
    path = _path(folder)
    try:
        return msgspec.json.decode(read_checked(path), type=Record)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise IntegrityError(f"{path} does not say how the update stands: {error}.") from error


def write_record(folder: Path, record: Record) -> None:
    """Has the record on the disk when it returns.

    Raises:
        OSError: the disk refuses; the old one stays.
    """
    make_folder(folder)
    write_whole(_path(folder), with_checksum(msgspec.json.encode(record)))


def _path(folder: Path) -> Path:
    return folder / "update"
