"""The configuration that runs, the previous one, and the state of the latest update, in one small file.

The file is replaced as a whole and fsynced before any action that it describes, like a model's pointer; configurations
are small enough to be in it themselves. A trial is on the disk before the configuration is applied, each start during a
trial uses up a try before anything is loaded, and without tries left the device rolls back by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError, IntegrityError, RequestError
from firstline_core.fleet.configuration import parse_configuration
from firstline_core.fleet.twin import DesiredConfiguration, Update
from firstline_core.fleet.update import UpdateState
from firstline_core.storage.structs import read_struct, write_struct
from firstline_core.telemetry.logs import logger
from firstline_edge.fleet.configuration.settings_changes import changed_settings
from firstline_edge.fleet.updates.state_machine import Record
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import put_aside

log = logger(__name__)

_S = UpdateState


class SignedConfiguration(Struct, frozen=True):
    """A configuration: its name, its version, and its text as it was signed."""

    name: str
    version: int
    text: str

    @property
    def sha256(self) -> str:
        """The digest of the stored text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class ConfigurationState(Struct, frozen=True):
    """The content of the file.

    Attributes:
        running: None for the device's own settings alone.
        previous: ran before, and runs again after a rollback; the same as `running` if there is nothing to roll back
            to.
        tries_left: starts that the trial of `running` may still take; None without a trial.
        staged: verified, and waits for its time.
        record: state of the latest update; None if there was none.
    """

    running: SignedConfiguration | None = None
    previous: SignedConfiguration | None = None
    tries_left: Annotated[int, Meta(ge=0, le=100)] | None = None
    staged: SignedConfiguration | None = None
    record: Record[DesiredConfiguration] | None = None
    format: Literal[1] = 1

    @property
    def in_trial(self) -> bool:
        return self.tries_left is not None

    @property
    def can_roll_back(self) -> bool:
        return self.running != self.previous

    def check_rollback(self) -> None:
        """Raises RequestError if there is no previous configuration."""
        if not self.can_roll_back:
            raise RequestError("There is no previous configuration to roll back to; see `edge-agent update list`.")

    def with_record(self, record: Record[DesiredConfiguration]) -> ConfigurationState:
        """Returns the state with another record; only an update in progress has a staged configuration."""
        in_progress = not record.ended and record.state is not _S.OFFERED
        return replace(self, record=record, staged=self.staged if in_progress else None)

    def begin_trial(self, tries: int, wall_s: float) -> ConfigurationState:
        """Returns the state with the staged configuration on trial for this many starts."""
        if self.staged is None or self.in_trial or self.record is None or tries < 1:
            raise ValueError("nothing is staged that could be tried")
        record = replace(self.record.after(_S.TRIAL, wall_s), tries=self.record.tries + 1)
        return replace(self, running=self.staged, previous=self.running, tries_left=tries, staged=None, record=record)

    def started(self, wall_s: float) -> ConfigurationState:
        """Returns the state after a start of the agent: a trial has one try less, and ends without one."""
        if self.tries_left is None:
            return self
        if not self.tries_left:
            message = "The agent was started too often while it was being tried."
            return self.rolled_back("tries", message, wall_s)
        record = replace(self.record, tries=self.record.tries + 1) if self.record is not None else None
        return replace(self, tries_left=self.tries_left - 1, record=record)

    def committed(self, wall_s: float) -> ConfigurationState:
        """Returns the state with the trial accepted; the previous configuration stays for a rollback."""
        record = self.record.after(_S.COMMITTED, wall_s) if self.record is not None else None
        return replace(self, tries_left=None, record=record)

    def rolled_back(self, reason: str, message: str, wall_s: float) -> ConfigurationState:
        """Returns the state with the previous configuration; nothing is left to roll back to."""
        record = self.record.after_rollback(reason, message, wall_s) if self.record is not None else None
        staged = self.staged if record is not None and not record.ended else None
        back = self.previous if self.can_roll_back else None
        return replace(self, running=back, previous=back, tries_left=None, staged=staged, record=record)


class ConfigurationStore:
    """The state of one device: valid in this process, and on the disk as soon as it accepts writes.

    Args:
        path: of the file.
        state: the content of the file.
        changed: called whenever the state changes.
        off_loop: runs a blocking call in a thread.

    Attributes:
        state: the valid state.
        is_on_disk: whether the disk has the same state.
    """

    def __init__(
        self,
        path: Path,
        state: ConfigurationState,
        *,
        changed: Callable[[], None] = lambda: None,
        off_loop: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._path = path
        self._changed = changed
        self._off_loop = off_loop
        self.state = state
        self.is_on_disk = False

    def running(self) -> dict[str, Any] | None:
        """Returns name, version and digest of the configuration that runs; None for the device's own settings."""
        running = self.state.running
        return (
            {"name": running.name, "version": running.version, "sha256": running.sha256}
            if running is not None
            else None
        )

    def updates(self) -> tuple[Update, ...]:
        """Returns the latest update; empty if there was none."""
        record = self.state.record
        return (record.update(),) if record is not None else ()

    async def write(self, state: ConfigurationState) -> None:
        """Stores a state, which is valid afterwards.

        Raises:
            OSError: the disk refuses; the previous state stays valid.
        """
        self.is_on_disk = False  # a refused write may have reached the disk
        await self._off_loop(write_struct, self._path, state)
        self.set_in_memory(state)
        self.is_on_disk = True

    def set_in_memory(self, state: ConfigurationState) -> None:
        """Makes a state valid in this process; `retry_write` stores it."""
        self.state, self.is_on_disk = state, False
        record = state.record
        if record is not None:
            log.info(
                "configuration state changed",
                name=record.target.name,
                version=record.target.version,
                state=record.state.value,
            )
        self._changed()

    async def retry_write(self) -> None:
        """Stores the valid state if the disk does not have it.

        Raises:
            OSError: the disk refuses.
        """
        if not self.is_on_disk:
            await self._off_loop(_write_if_different, self._path, self.state)
            self.is_on_disk = True


def read_state(path: Path) -> ConfigurationState:
    """Returns the state on the disk; an empty one if there is no file.

    Raises:
        IntegrityError: the file is damaged.
        OSError: the disk refuses.
    """
    try:
        return read_struct(path, ConfigurationState)
    except FileNotFoundError:
        return ConfigurationState()


def settings_with(own: EdgeSettings, configuration: SignedConfiguration | None) -> EdgeSettings:
    """Returns the device's settings with a configuration; its own settings if there is none.

    Raises:
        ConfigError: the configuration is invalid, or not for this device.
    """
    if configuration is None:
        return own
    where = f"Configuration {configuration.name} version {configuration.version}"
    document = parse_configuration(configuration.text.encode(), where)
    if (document.name, document.version) != (configuration.name, configuration.version):
        raise ConfigError(f"{where} calls itself {document.name} version {document.version}.")
    return changed_settings(own, document)


def start_configuration(path: Path, own: EdgeSettings, clock: Clock) -> tuple[ConfigurationState, EdgeSettings]:
    """Returns the state and the settings to start with; a configuration that cannot run any more is rolled back.

    Args:
        path: of the file.
        own: the device's settings.
        clock: for the time of a rollback.
    """
    try:
        before = read_state(path)
    except (IntegrityError, OSError) as error:
        log.error("configuration lost; using the device's own settings", error=str(error))
        put_aside(path)
        before = ConfigurationState()
    now_s = clock.wall_s()
    state, settings = _usable(before.started(now_s), own, now_s)
    if state != before:
        try:
            write_struct(path, state)
        except OSError as error:  # the store writes it when the disk accepts it
            log.error("configuration not stored", error=str(error))
            if state.in_trial:
                message = f"A start could not be counted: {error.strerror}."
                state, settings = _usable(state.rolled_back("disk", message, now_s), own, now_s)
    return state, settings


def _usable(state: ConfigurationState, own: EdgeSettings, now_s: float) -> tuple[ConfigurationState, EdgeSettings]:
    """Returns the state without configurations that cannot run any more, and its settings."""
    while True:
        try:
            return state, settings_with(own, state.running)
        except ConfigError as error:
            log.error("configuration not applicable any more", error=error.message)
            state = state.rolled_back("invalid", error.message, now_s)


def _write_if_different(path: Path, state: ConfigurationState) -> None:
    with suppress(IntegrityError, OSError):
        if read_state(path) == state:
            return
    write_struct(path, state)
