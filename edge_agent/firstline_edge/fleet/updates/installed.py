"""The installed versions of one model, or of the configuration, and the state of its latest update: one small file.

A copy of the file replaces it if it is damaged. The file alone decides what runs, as in the boot loaders of RAUC and
Mender. It is replaced as a whole and fsynced before any action that it describes, so that a power cut leaves the old or
the new state, and both are true: a version stops being the rollback target before it is overwritten, a trial is on the
disk before its version runs, and each start during a trial uses up a try before it loads anything. Without tries left
the device rolls back by itself, also without a connection.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from firstline_core.errors import IntegrityError, RequestError
from firstline_core.fleet.twin import SENTENCE_CHARACTERS, DesiredConfiguration, DesiredModel, Update
from firstline_core.fleet.update import ENDED, UpdateKind, UpdateState, may_follow
from firstline_core.storage.files import system_reason
from firstline_core.storage.structs import read_struct, write_struct
from firstline_core.telemetry.logs import logger
from firstline_edge.state import put_aside

log = logger(__name__)

COPY = ".copy"
"""Suffix of the copy of the file."""
BY_REQUEST = "asked"
"""The reason of a rollback that was requested on the device."""

_S = UpdateState
_DOWNLOADED = frozenset({_S.VERIFIED, _S.STAGED, _S.TRIAL, _S.COMMITTED, _S.ROLLED_BACK})

Target = TypeVar("Target", DesiredModel, DesiredConfiguration)
Version = TypeVar("Version")
"""What is installed: a model's slot, or the signed text of a configuration."""


class UpdateRecord(Struct, Generic[Target], frozen=True):
    """The state of the latest update of a model or of the configuration.

    Attributes:
        target: the desired version.
        reason: code of an error, or another machine-readable word; "" without a problem.
        message: one sentence, or "".
        total_bytes: size of a model's files; 0 before it is known.
        since_s: wall time at which this state began.
        tries: starts of the trial so far; before it, tests of the model that began and did not end.
    """

    target: Target
    state: UpdateState
    reason: str = ""
    message: str = ""
    total_bytes: Annotated[int, Meta(ge=0)] = 0
    since_s: float = 0.0
    tries: Annotated[int, Meta(ge=0)] = 0

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def after(self, state: UpdateState, wall_s: float, reason: str = "", message: str = "") -> UpdateRecord[Target]:
        """Returns the record in its next state.

        Raises:
            ValueError: the state cannot follow.
        """
        if not may_follow(self.state, state):
            raise ValueError(f"{state} does not follow {self.state}")
        return replace(self, state=state, reason=reason, message=message, since_s=wall_s)

    def after_rollback(self, reason: str, message: str, wall_s: float) -> UpdateRecord[Target]:
        """Returns the record after the previous version was restored.

        A rollback on request also cancels an update that was not tried yet.
        """
        if self.state in (_S.TRIAL, _S.COMMITTED):
            return replace(self, state=_S.ROLLED_BACK, reason=reason, message=message, since_s=wall_s)
        if reason == BY_REQUEST and not self.ended:
            return replace(self, state=_S.CANCELLED, reason=reason, message=message, since_s=wall_s)
        return self

    def update(self, received_bytes: int = 0) -> Update:
        """Returns the update as it is reported to the fleet; `received_bytes` counts until the download is complete."""
        return Update(
            self.target.name,
            self.target.version,
            self.state,
            what=UpdateKind.MODEL if isinstance(self.target, DesiredModel) else UpdateKind.CONFIGURATION,
            rollout=self.target.rollout,
            reason=self.reason[:64],
            message=self.message[:SENTENCE_CHARACTERS],
            received_bytes=self.total_bytes if self.state in _DOWNLOADED else received_bytes,
            total_bytes=self.total_bytes,
            since_s=max(0.0, self.since_s),
            tries=self.tries,
        )


class Installed(Struct, Generic[Version, Target], frozen=True, forbid_unknown_fields=True):
    """The content of the file.

    Attributes:
        running: None for the bundle, or the settings, that the device was set up with.
        previous: ran before, and runs again after a rollback; the same as `running` if there is nothing to roll back
            to.
        trial_tries: starts that the trial of `running` may take, which `record.tries` counts; None without a trial.
        staged: the version that an update in progress installs, until its trial begins.
        record: state of the latest update; None if there was none.
    """

    running: Version | None = None
    previous: Version | None = None
    trial_tries: Annotated[int, Meta(ge=1, le=100)] | None = None
    staged: Version | None = None
    record: UpdateRecord[Target] | None = None
    format: Literal[1] = 1

    @property
    def in_trial(self) -> bool:
        return self.trial_tries is not None

    @property
    def can_roll_back(self) -> bool:
        return self.running != self.previous

    def check_rollback(self, subject: str) -> None:
        """Raises RequestError if there is no previous version; `subject` begins its sentence: "Model digits"."""
        if not self.can_roll_back:
            state = f"; its update is {self.record.state.value}" if self.record is not None else ""
            raise RequestError(
                f"{subject} has no previous version to roll back to{state}; see `edge-agent update list`."
            )

    def with_record(self, record: UpdateRecord[Target]) -> Installed[Version, Target]:
        """Returns the state with another record; only an update in progress has something staged."""
        in_progress = not record.ended and record.state is not _S.OFFERED
        return replace(self, record=record, staged=self.staged if in_progress else None)

    def begin_install(self, place: Version, record: UpdateRecord[Target]) -> Installed[Version, Target]:
        """Returns the state before a place is overwritten: it stops being the rollback target.

        Raises:
            ValueError: the running version would be overwritten.
        """
        if place == self.running:
            raise ValueError(f"{place!r} runs and cannot be overwritten")
        previous = self.running if self.previous == place else self.previous
        return replace(self, previous=previous, staged=place, record=record)

    def begin_trial(self, tries: int, wall_s: float) -> Installed[Version, Target]:
        """Returns the state with the staged version on trial for this many starts.

        Raises:
            ValueError: nothing is staged, the rollback target was overwritten, or a trial is in progress.
        """
        if self.staged is None or self.in_trial or self.record is None or tries < 1:
            raise ValueError("nothing is staged that could be tried")
        if self.can_roll_back and self.staged == self.previous:
            raise ValueError(f"{self.staged!r} is still what a rollback leads to")
        record = replace(self.record.after(_S.TRIAL, wall_s), tries=0)
        return replace(self, running=self.staged, previous=self.running, trial_tries=tries, staged=None, record=record)

    def started(self, wall_s: float) -> Installed[Version, Target]:
        """Returns the state after a start of the agent: it counts as a try of a trial, and one too many ends it."""
        if self.trial_tries is None:
            return self
        if self.record is None or self.record.tries >= self.trial_tries:
            message = "The agent was started too often while it was being tried."
            return self.rolled_back("tries", message, wall_s)
        return replace(self, record=replace(self.record, tries=self.record.tries + 1))

    def committed(self, wall_s: float) -> Installed[Version, Target]:
        """Returns the state with the trial accepted; the previous version stays for a rollback."""
        record = self.record.after(_S.COMMITTED, wall_s) if self.record is not None else None
        return replace(self, trial_tries=None, record=record)

    def rolled_back(self, reason: str, message: str, wall_s: float) -> Installed[Version, Target]:
        """Returns the state with the previous version, or what the device was set up with if there is none."""
        record = self.record.after_rollback(reason, message, wall_s) if self.record is not None else None
        staged = self.staged if record is not None and not record.ended else None
        back = self.previous if self.can_roll_back else None
        return replace(self, running=back, previous=back, trial_tries=None, staged=staged, record=record)


class InstalledFile(Generic[Version, Target]):
    """The state of one model or of the configuration: valid in this process, and on the disk as soon as it accepts it.

    The file is written before its copy, and both before any action that they describe. Only the file is read, unless
    it is damaged, unreadable or missing.

    Args:
        path: of the file.
        kind: of the content.
        repair: whether damaged files are set aside and the agent continues without a state; False for commands.

    Attributes:
        state: the valid state; an empty one if there is no file, or neither the file nor its copy can be read.

    Raises:
        IntegrityError: the file and its copy are damaged, and `repair` is False.
        OSError: neither can be read, and `repair` is False.
    """

    def __init__(self, path: Path, kind: type[Installed[Version, Target]] | Any, *, repair: bool = True) -> None:
        self._path = path
        self._paths = (path, path.with_name(path.name + COPY))
        states = list[Installed[Version, Target]]()
        problem: IntegrityError | OSError | None = None
        for each in self._paths:
            try:
                states.append(read_struct(each, kind))
            except FileNotFoundError:
                continue
            except (IntegrityError, OSError) as error:
                log.error("installed versions not read", error=str(error))
                problem = problem or error
                if repair and isinstance(error, IntegrityError):
                    put_aside(each)
        if problem is not None and not states:
            if not repair:
                if isinstance(problem, OSError):
                    raise problem
                raise IntegrityError(
                    f"{problem.message} Start the agent: it runs what the device was set up with until the fleet "
                    "desires another version."
                )
            log.error("installed versions lost; using what the device was set up with", path=str(path))
        self.state: Installed[Version, Target] = states[0] if states else Installed()
        self._on_disk = states in ([], [self.state, self.state])

    def write(self, state: Installed[Version, Target]) -> None:
        """Stores a state, which is valid afterwards.

        Raises:
            OSError: the disk refuses; the previous state stays valid.
        """
        self._on_disk = False  # a refused write may have reached the disk
        for path in self._paths:
            write_struct(path, state)
        self.state, self._on_disk = state, True

    def set_in_memory(self, state: Installed[Version, Target]) -> None:
        """Makes a state valid in this process; `retry_write` stores it."""
        self.state, self._on_disk = state, False

    def retry_write(self) -> bool:
        """Stores the valid state if the disk may have another one; returns whether it did.

        Raises:
            OSError: the disk refuses.
        """
        if self._on_disk:
            return False
        self.write(self.state)
        return True

    def start(self, wall_s: float) -> None:
        """Counts a start of the agent. A trial whose start cannot be stored ends."""
        before, after = self.state, self.state.started(wall_s)
        if after == before:
            return
        self.set_in_memory(after)
        try:
            self.retry_write()
        except OSError as error:
            log.error("start of a trial not counted", path=str(self._path), error=str(error))
            if after.in_trial:
                message = f"A start could not be counted: {system_reason(error)}."
                self.set_in_memory(after.rolled_back("disk", message, wall_s))

    def roll_back(self, reason: str, message: str, wall_s: float) -> None:
        """Rolls back, also if the disk refuses: the rollback is valid until a restart at least."""
        self.set_in_memory(self.state.rolled_back(reason, message, wall_s))
        try:
            self.retry_write()
        except OSError as error:
            log.error("rollback not stored yet", path=str(self._path), error=str(error))
