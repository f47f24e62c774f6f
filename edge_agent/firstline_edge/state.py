"""The state directory: one agent's own, private, and where each thing lies in it."""

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

# `edge-agent status` holds the lock for microseconds when it looks whether somebody else does.
_LOCK_TRIES = 20
_LOCK_PAUSE_S = 0.01


class StateDirectory:
    """Makes the directory, with mode 0700, and holds its lock until closed: the one lock of everything in it.

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
        """Whether the caller may write here: a link of its leads nowhere but to what it tells us. Good for once.

        A wrong guess leaves the link to whom it belongs, who may ask in the same moment.
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
        """Notes where the agent listens, for `edge-agent status`; a disk that refuses costs that comfort only."""
        try:
            url_path(self.path).write_text(url + "\n")
        except OSError as error:
            log.warning("cannot note the agent's address; `status` needs --url", error=str(error))

    def close(self) -> None:
        """Gives the directory free."""
        _remove(url_path(self.path))
        os.close(self._lock)


def decisions_path(state_dir: Path) -> Path:
    """The decision log."""
    return state_dir / "decisions.jsonl"


def outbox_path(state_dir: Path) -> Path:
    """Promises of corrections, and the answers that kept them."""
    return state_dir / "outbox" / "outbox.db"


def cache_path(state_dir: Path) -> Path:
    """What models said of inputs."""
    return state_dir / "cache"


def fleet_path(state_dir: Path) -> Path:
    """What the fleet desires of this device, and what it is to remember for it."""
    return state_dir / "fleet"


def configuration_path(state_dir: Path) -> Path:
    """Which configuration of the fleet runs, and how its update stands."""
    return fleet_path(state_dir) / "configuration"


def updates_path(state_dir: Path) -> Path:
    """Models from the fleet, and how their updates stand."""
    return state_dir / "models"


def standing_path(state_dir: Path) -> Path:
    """How each certificate stands in the field."""
    return state_dir / "audits" / "standing.json"


def samples_path(state_dir: Path) -> Path:
    """Answers whose truth is known, from audits and escalations."""
    return state_dir / "audits" / "samples.jsonl"


def hardware_path(state_dir: Path) -> Path:
    """What was measured of this device."""
    return state_dir / "hardware.json"


def device_profile_path(state_dir: Path, bundle: str) -> Path:
    """What a bundle's models cost on this device."""
    return state_dir / "profiles" / f"{bundle}.json"


def url_path(state_dir: Path) -> Path:
    """Where a running agent notes its address."""
    return state_dir / "url"


def proof_path(state_dir: Path) -> Path:
    """Where a command shows that it may write in the agent's state directory, see `StateDirectory.takes_proof`."""
    return state_dir / "proof"


def leave_proof(state_dir: Path, proof: str) -> None:
    """Shows that one may write here, by a symbolic link: it stands in its inode, and needs no room on a full disk.

    Raises:
        OSError: one may not.
    """
    path = proof_path(state_dir)
    path.unlink(missing_ok=True)
    path.symlink_to(proof)


def is_in_use(state_dir: Path) -> bool:
    """Whether an agent runs with this directory now; a note that a killed one left says nothing.

    Raises:
        OSError: this user may not look.
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
