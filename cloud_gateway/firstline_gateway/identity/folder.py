"""The authorities' folder as a running gateway sees it: read again where a command has changed it."""

from __future__ import annotations

import threading
from pathlib import Path

from firstline_core.clock import Clock
from firstline_gateway.identity import authorities
from firstline_gateway.identity.authorities import Authorities


class AuthorityFolder:
    """The authorities of one gateway; threads may share it, and everything here blocks.

    Args:
        directory: where they are, or will be.
        clock: dates certificates.
    """

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory = directory
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: object = None
        self._found: Authorities | None = None

    @property
    def exists(self) -> bool:
        """Whether an authority was made or imported."""
        return (self.directory / authorities.BUNDLE_FILE).exists()

    def open(self) -> Authorities:
        """Returns the authorities; creates the first one if missing.

        Raises:
            ConfigError: the folder cannot be used.
        """
        with self._lock:
            present = authorities.signature(self.directory)
            while self._found is None or self._seen != present:  # again where a command changed it meanwhile
                self._found = authorities.open_authorities(self.directory, self._clock.wall_s())
                self._seen, present = present, authorities.signature(self.directory)
            return self._found
