"""Which configuration runs, which ran before, and how the latest update stands: one small file that alone decides.

As a model's pointer it is replaced whole and fsynced before anything that it says is done; configurations are small
enough to be in it themselves. So a trial is on the disk before what is tried is taken up, each start during a trial has
spent a try before anything is loaded, and without a try left the device goes back by itself.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from firstline_core.errors import IntegrityError
from firstline_core.fleet.twin import DesiredConfiguration, Update
from firstline_core.fleet.update import ENDED, UpdateState, may_follow
from firstline_core.storage.files import make_folder, read_checked, with_checksum, write_whole

_S = UpdateState
_MESSAGE_CHARS = 500


class Held(Struct, frozen=True):
    """A configuration: its name, its version, and its text as it was signed."""

    name: str
    version: int
    text: str

    @property
    def sha256(self) -> str:
        """Of the text that is here, whatever was asked for."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class Record(Struct, frozen=True):
    """How the latest update stands; attributes as of `twin.Update`.

    Attributes:
        target: what the fleet wants.
    """

    target: DesiredConfiguration
    state: UpdateState
    reason: str = ""
    message: str = ""
    since_s: float = 0.0
    tries: Annotated[int, Meta(ge=0)] = 0

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def after(self, state: UpdateState, wall_s: float, reason: str = "", message: str = "") -> Record:
        """The record once it is in another state.

        Raises:
            ValueError: that cannot follow.
        """
        if not may_follow(self.state, state):
            raise ValueError(f"{state} does not follow {self.state}")
        return replace(self, state=state, reason=reason, message=message, since_s=wall_s)

    def update(self) -> Update:
        """Returns the update as it is reported to the fleet."""
        return Update(
            self.target.name,
            self.target.version,
            self.state,
            what="configuration",
            rollout=self.target.rollout,
            reason=self.reason[:64],
            message=self.message[:_MESSAGE_CHARS],
            since_s=max(0.0, self.since_s),
            tries=self.tries,
        )


class Kept(Struct, frozen=True):
    """All that is on the disk.

    Attributes:
        running: None for the device's own settings alone.
        previous: ran before, and runs again when `running` is given up; the same where there is nothing to go back to.
        tries_left: starts that the trial of `running` may still take; None while nothing is tried.
        staged: is here and verified, and waits for its time.
        record: None where there never was an update.
    """

    running: Held | None = None
    previous: Held | None = None
    tries_left: Annotated[int, Meta(ge=0, le=100)] | None = None
    staged: Held | None = None
    record: Record | None = None
    format: Literal[1] = 1

    @property
    def in_trial(self) -> bool:
        return self.tries_left is not None

    @property
    def can_go_back(self) -> bool:
        return self.running != self.previous

    def noted(self, state: UpdateState, wall_s: float, reason: str = "", message: str = "") -> Kept:
        """The update is in another state; one that is over has nothing staged.

        Raises:
            ValueError: that cannot follow, or there is none.
        """
        if self.record is None:
            raise ValueError(f"there is no update that could be {state}")
        record = self.record.after(state, wall_s, reason, message)
        return replace(self, record=record, staged=None if record.ended else self.staged)

    def fetched(self, held: Held, wall_s: float) -> Kept:
        """Returns the state with the fetched and verified configuration; unchanged if the update ended meanwhile."""
        if self.record is None or self.record.state is not _S.DOWNLOADING:
            return self
        return replace(self.noted(_S.VERIFIED, wall_s).noted(_S.STAGED, wall_s), staged=held)

    def begin_trial(self, tries: int, wall_s: float) -> Kept:
        """Returns the state with the staged configuration on trial for this many starts."""
        if self.staged is None or self.in_trial or self.record is None or tries < 1:
            raise ValueError("nothing is staged that could be tried")
        record = replace(self.record.after(_S.TRIAL, wall_s), tries=self.record.tries + 1)
        return replace(self, running=self.staged, previous=self.running, tries_left=tries, staged=None, record=record)

    def started(self, wall_s: float) -> Kept:
        """A process starts: a trial has one try less, and without any left is over."""
        if self.tries_left is None:
            return self
        if not self.tries_left:
            return self.given_up("tries", "The agent was started too often while it was being tried.", wall_s)
        record = replace(self.record, tries=self.record.tries + 1) if self.record is not None else None
        return replace(self, tries_left=self.tries_left - 1, record=record)

    def committed(self, wall_s: float) -> Kept:
        """Returns the state with the trial accepted; the previous configuration stays for a rollback."""
        record = self.record.after(_S.COMMITTED, wall_s) if self.record is not None else None
        return replace(self, tries_left=None, record=record)

    def given_up(self, reason: str, message: str, wall_s: float) -> Kept:
        """Returns the state with the previous configuration; the rejected one is not kept for a rollback."""
        record = self.record
        if record is not None and record.state in (_S.TRIAL, _S.COMMITTED):
            record = record.after(_S.ROLLED_BACK, wall_s, reason, message)
        back = self.previous if self.can_go_back else None
        return replace(self, running=back, previous=back, tries_left=None, record=record)


def read_kept(path: Path) -> Kept:
    """Returns the state on the disk; an empty one if there is no file.

    Raises:
        IntegrityError: the file is damaged.
        OSError: the disk refuses.
    """
    try:
        return msgspec.json.decode(read_checked(path), type=Kept)
    except FileNotFoundError:
        return Kept()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise IntegrityError(f"{path} does not say which configuration runs: {error}.") from error


def write_kept(path: Path, kept: Kept) -> None:
    """Has it on the disk when it returns.

    Raises:
        OSError: the disk refuses; the old one holds.
    """
    make_folder(path.parent)
    write_whole(path, with_checksum(msgspec.json.encode(kept)))


def settle_kept(path: Path, kept: Kept) -> None:
    """Has it on the disk when it returns, and writes nothing where it is there.

    Raises:
        OSError: the disk refuses.
    """
    with suppress(IntegrityError, OSError):
        if read_kept(path) == kept:
            return
    write_kept(path, kept)
