"""The state directory: one agent's own, private, and where each thing lies in it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from firstline_core.errors import ConfigError


class StateDirectory:
    """Makes the directory, with mode 0700, and holds its lock until closed.

    Raises:
        ConfigError: it cannot be made or used, or another agent uses it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"agent.state_dir {path} cannot be used: {error.strerror}; name a directory that this user may write."
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise ConfigError(
                f"agent.state_dir {path} is in use by another agent; stop it, or give this one a directory of its own."
            ) from error

    @property
    def decisions_path(self) -> Path:
        return decisions_path(self.path)

    @property
    def cache_path(self) -> Path:
        return self.path / "cache"

    @property
    def outbox_path(self) -> Path:
        folder = self.path / "outbox"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder / "outbox.db"

    def publish_url(self, url: str) -> None:
        """Notes where the agent listens, for `edge-agent status`."""
        url_path(self.path).write_text(url + "\n")

    def close(self) -> None:
        """Gives the directory free."""
        url_path(self.path).unlink(missing_ok=True)
        os.close(self._lock)


def decisions_path(state_dir: Path) -> Path:
    """The decision log."""
    return state_dir / "decisions.jsonl"


def url_path(state_dir: Path) -> Path:
    """Where a running agent notes its address."""
    return state_dir / "url"
