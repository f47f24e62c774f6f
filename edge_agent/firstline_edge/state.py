"""The state directory of one agent: private, locked, with the path of everything in it; and files that it replaces."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from firstline_core.errors import CapacityError, ConfigError, IntegrityError
from firstline_core.storage.files import make_folder, set_aside, system_reason, take_lock, with_checksum, write_whole
from firstline_core.storage.seals import Seal, read_keys
from firstline_core.storage.structs import read_struct, write_struct
from firstline_core.telemetry.logs import logger
from firstline_edge.settings.settings import EncryptionSection

log = logger(__name__)

T = TypeVar("T", bound=Struct)


class StatePaths:
    """The paths in a state directory.

    Args:
        path: of the directory.

    Attributes:
        decisions_path: the decision log.
        spending_path: the spending of the budgets.
        outbox_path: promises of corrections, and their answers.
        cache_path: the result cache.
        copies_path: copies of bundles, for when their files are damaged.
        fleet_path: the fleet's desired state of this device, and what the device stores for the fleet.
        configuration_path: the configuration from the fleet that runs, and the state of its update.
        updates_path: models from the fleet, and the state of their updates.
        certificates_path: the state of each certificate in the field.
        samples_path: labelled samples from audits and escalations.
        hardware_path: the measured hardware of this device.
        url_path: the file with the address of a running agent.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.decisions_path = path / "decisions.jsonl"
        self.spending_path = path / "spending.json"
        self.outbox_path = path / "outbox" / "outbox.db"
        self.cache_path = path / "cache"
        self.copies_path = path / "bundles"
        self.fleet_path = path / "fleet"
        self.configuration_path = path / "fleet" / "configuration"
        self.updates_path = path / "models"
        self.certificates_path = path / "audits" / "certificates.json"
        self.samples_path = path / "audits" / "samples.jsonl"
        self.hardware_path = path / "hardware.json"
        self.url_path = path / "url"
        self.lock_path = path / "lock"

    def device_profile_path(self, bundle: str) -> Path:
        """Returns the path of the measured costs of a bundle's models on this device."""
        return self.path / "profiles" / f"{bundle}.json"


class StateDirectory(StatePaths):
    """Makes the directory with mode 0700, and holds its one lock until it is closed.

    Raises:
        ConfigError: it cannot be made or used, or another agent uses it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            make_folder(path)
            self._lock = _opened_lock(self.lock_path)
        except OSError as error:
            reason = f"cannot be used: {system_reason(error)}" if not path.is_file() else "is not a folder"
            if isinstance(error, FileExistsError):
                reason = "is a link that leads to no folder"
            raise ConfigError(f"agent.state_dir {path} {reason}; name a directory that this user may write.") from error
        if not take_lock(self._lock):  # `edge-agent status` holds it for microseconds to check whether an agent runs
            os.close(self._lock)
            raise ConfigError(
                f"agent.state_dir {path} is in use by another agent; stop it, or give this one a directory of its own."
            )
        _remove(self.url_path)  # of an agent that was killed

    def publish_url(self, url: str) -> None:
        """Writes the agent's address to a file for `edge-agent status`; if the disk refuses, `status` needs `--url`."""
        try:
            self.url_path.write_text(url + "\n")
        except OSError as error:
            log.warning("agent address not stored; `status` needs --url", error=str(error))

    def close(self) -> None:
        """Releases the lock."""
        _remove(self.url_path)
        os.close(self._lock)


def _opened_lock(path: Path) -> int:
    """Opens the lock file; only for reading on a disk that has become read-only, because the device must answer."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS or not path.exists():
            raise
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


class StateFile:
    """A file that is replaced as a whole. Its problems are reported, and the agent continues. Any thread may write it.

    Args:
        path: the file; its directory is created if necessary.
        content: name of the content for log events, such as "spending".
        consequence: sentence about a restart after a refused write.

    Attributes:
        loss: why the earlier content was lost, in sentences; "" if it was not.
        refusal: why the last write failed, in sentences; "" if it did not.
    """

    def __init__(self, path: Path, content: str, consequence: str) -> None:
        self.path = path
        self._content = content
        self._consequence = consequence
        self._writing = threading.Lock()
        self.loss = self.refusal = ""

    @property
    def problem(self) -> str:
        """The problem with the file, in sentences; "" if there is none."""
        return " ".join(filter(None, (self.loss, self.refusal)))

    def write(self, text: bytes) -> None:
        """Replaces the content; a disk error is logged once, and the next call tries again."""
        try:
            with self._writing:
                make_folder(self.path.parent)
                write_whole(self.path, with_checksum(text))
        except OSError as error:
            self.refused(system_reason(error))
        else:
            self.refusal = ""

    def refused(self, why: str) -> None:
        """Notes that the system or the disk did not allow a write."""
        if not self.refusal:
            log.error(f"{self._content} not stored", path=str(self.path), error=why)
        self.refusal = f"{self.path} cannot be written: {why}. {self._consequence}"

    def lost(self, sentences: str) -> None:
        """Notes that the earlier content cannot be used, and sets the file aside if there is one."""
        self.loss = sentences
        log.error(f"{self._content} lost", path=str(self.path), error=sentences)
        put_aside(self.path)


def read_stored(path: Path, kind: type[T], content: str) -> T | None:
    """Returns what `store` wrote; None if there is no file, or it cannot be used, which is logged.

    Args:
        path: of the file.
        kind: type of the value.
        content: name of the content for log events.
    """
    try:
        return read_struct(path, kind)
    except FileNotFoundError:
        return None
    except (OSError, IntegrityError) as error:
        log.warning(f"{content} lost", error=str(error))
        return None


def store(path: Path, value: Struct, content: str) -> bool:
    """Writes a small file; returns whether the disk took it, and logs a refusal.

    Args:
        path: of the file.
        value: its content.
        content: name of the content for log events.
    """
    try:
        write_struct(path, value)
    except OSError as error:
        log.warning(f"{content} not stored", error=str(error))
        return False
    return True


def put_aside(path: Path) -> None:
    """Sets a damaged file aside if there is one; a refusal of the disk is logged."""
    try:
        if path.exists():
            set_aside(path)
    except OSError as error:
        log.error("file not set aside", path=str(path), error=str(error))


def is_refusal(error: BaseException) -> bool:
    """Whether the disk or another process refuses, so that SQLite's file itself may be whole.

    Among SQLite's operational errors only the plain SQLITE_ERROR is about the content: a table or column is missing.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return isinstance(error, OSError) or (isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR)


def open_seal(section: EncryptionSection) -> Seal:
    """Returns what closes the records that hold payloads: a checksum, or encryption if a key is configured.

    Raises:
        CapacityError: a key is configured and cannot be read; then nothing may be stored.
    """
    try:
        return Seal(read_keys(section.key_file, "encryption.key_file"))
    except ConfigError as error:
        raise CapacityError(f"{error.message} Without its key nothing is kept on the disk.") from error


def is_in_use(state_dir: Path) -> bool:
    """Whether an agent runs with this directory now; a file that a killed agent left does not count.

    Raises:
        OSError: this user may not read here.
    """
    try:
        lock = os.open(StatePaths(state_dir).lock_path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not take_lock(lock, tries=1)
    finally:
        os.close(lock)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("file not removed", path=str(path), error=str(error))
