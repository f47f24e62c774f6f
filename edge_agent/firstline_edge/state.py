"""The state directory of one agent: private, locked, with the path of everything in it."""

from __future__ import annotations

import fcntl
import hmac
import os
import time
from pathlib import Path

from firstline_core.errors import ConfigError
from firstline_core.storage.files import make_folder
from firstline_core.telemetry.logs import logger

log = logger(__name__)

# `edge-agent status` holds the lock for microseconds when it checks whether an agent runs.
_LOCK_TRIES = 20
_LOCK_PAUSE_S = 0.01


class StateDirectory:
    """Makes the directory with mode 0700, and holds its one lock until it is closed.

    Raises:
        ConfigError: it cannot be made or used, or another agent uses it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            make_folder(path)
            self._lock = os.open(_lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"agent.state_dir {path} cannot be used: {error.strerror}; name a directory that this user may write."
            ) from error
        if not _locked(self._lock, tries=_LOCK_TRIES):
            os.close(self._lock)
            raise ConfigError(
                f"agent.state_dir {path} is in use by another agent; stop it, or give this one a directory of its own."
            )
        _remove(url_path(path))  # of an agent that was killed

    @property
    def decisions_path(self) -> Path:
        return decisions_path(self.path)

    @property
    def cache_path(self) -> Path:
        return cache_path(self.path)

    @property
    def spending_path(self) -> Path:
        return self.path / "spending.json"

    @property
    def outbox_path(self) -> Path:
        return outbox_path(self.path)

    @property
    def copies_path(self) -> Path:
        return self.path / "bundles"

    @property
    def fleet_path(self) -> Path:
        return fleet_path(self.path)

    @property
    def configuration_path(self) -> Path:
        return configuration_path(self.path)

    @property
    def updates_path(self) -> Path:
        return updates_path(self.path)

    @property
    def profiling_path(self) -> Path:
        return self.fleet_path / "profiling"

    @property
    def standing_path(self) -> Path:
        return standing_path(self.path)

    @property
    def samples_path(self) -> Path:
        return samples_path(self.path)

    @property
    def hardware_path(self) -> Path:
        return hardware_path(self.path)

    def takes_proof(self, told: str) -> bool:
        """Whether the caller may write here: it left a symbolic link to the secret that it sends. Valid once.

        A wrong guess does not remove the link, because its owner may ask at the same time.
        """
        path = proof_path(self.path)
        try:
            proof = os.fsencode(path.readlink())
        except OSError:
            return False
        if not proof or not hmac.compare_digest(proof, told.encode()):
            return False
        _remove(path)
        return True

    def publish_url(self, url: str) -> None:
        """Writes the agent's address to a file for `edge-agent status`; if the disk refuses, `status` needs `--url`."""
        try:
            url_path(self.path).write_text(url + "\n")
        except OSError as error:
            log.warning("cannot note the agent's address; `status` needs --url", error=str(error))

    def close(self) -> None:
        """Releases the lock."""
        _remove(url_path(self.path))
        os.close(self._lock)


def decisions_path(state_dir: Path) -> Path:
    """The decision log."""
    return state_dir / "decisions.jsonl"


def outbox_path(state_dir: Path) -> Path:
    """Promises of corrections, and their answers."""
    return state_dir / "outbox" / "outbox.db"


def cache_path(state_dir: Path) -> Path:
    """The result cache."""
    return state_dir / "cache"


def fleet_path(state_dir: Path) -> Path:
    """The fleet's desired state of this device, and what the device stores for the fleet."""
    return state_dir / "fleet"


def configuration_path(state_dir: Path) -> Path:
    """The configuration from the fleet that runs, and the state of its update."""
    return fleet_path(state_dir) / "configuration"


def updates_path(state_dir: Path) -> Path:
    """Models from the fleet, and the state of their updates."""
    return state_dir / "models"


def standing_path(state_dir: Path) -> Path:
    """The state of each certificate in the field."""
    return state_dir / "audits" / "standing.json"


def samples_path(state_dir: Path) -> Path:
    """Labelled samples from audits and escalations."""
    return state_dir / "audits" / "samples.jsonl"


def hardware_path(state_dir: Path) -> Path:
    """The measured hardware of this device."""
    return state_dir / "hardware.json"


def device_profile_path(state_dir: Path, bundle: str) -> Path:
    """Measured costs of a bundle's models on this device."""
    return state_dir / "profiles" / f"{bundle}.json"


def url_path(state_dir: Path) -> Path:
    """The file with the address of a running agent."""
    return state_dir / "url"


def proof_path(state_dir: Path) -> Path:
    """The link by which a command proves that it may write here, see `StateDirectory.takes_proof`."""
    return state_dir / "proof"


def leave_proof(state_dir: Path, proof: str) -> None:
    """Proves write access by a symbolic link, whose target is part of its inode and needs no room on a full disk.

    Raises:
        OSError: this user may not write here.
    """
    path = proof_path(state_dir)
    path.unlink(missing_ok=True)
    path.symlink_to(proof)


def is_in_use(state_dir: Path) -> bool:
    """Whether an agent runs with this directory now; a file that a killed agent left does not count.

    Raises:
        OSError: this user may not read here.
    """
    try:
        held = os.open(_lock_path(state_dir), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _locked(held, tries=1)
    finally:
        os.close(held)


def _lock_path(state_dir: Path) -> Path:
    return state_dir / "lock"


def _locked(descriptor: int, tries: int) -> bool:
    for _ in range(tries):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_LOCK_PAUSE_S)
        else:
            return True
    return False


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("cannot remove a file", path=str(path), error=str(error))
