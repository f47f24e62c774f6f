"""What was spent, on disk: one small JSON file, replaced as a whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec

from firstline_core.routing.budget import Ledger
from firstline_core.telemetry.logs import logger

log = logger(__name__)


AROUND_BYTES = 2048.0


class Books(msgspec.Struct, frozen=True):
    """All that outlives a restart.

    Args:
        ledgers: by the name of their budget.
        around_bytes: what crosses the link with a payload, headers and answer: as many as the first call may take.
    """

    ledgers: dict[str, Ledger] = msgspec.field(default_factory=dict)
    around_bytes: float = AROUND_BYTES


class LedgerFile:
    """Keeps the books. May be written from any thread.

    Args:
        path: the file; its directory exists.

    Attributes:
        problem: why they are not kept at the moment, in a sentence, or "".
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = threading.Lock()
        self.problem = ""

    def read(self) -> Books:
        """The books as they were written last; empty where there are none, or none that make sense, which is told."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Books)
        except FileNotFoundError:
            return Books()
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("what was spent before is not known", path=str(self._path), error=str(error))
            return Books()

    def write(self, text: bytes) -> None:
        """Replaces the file by encoded `Books`; a disk that refuses is told once, and tried again the next time."""
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            with self._writing:
                descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                with os.fdopen(descriptor, "wb") as stream:  # writes all or raises
                    stream.write(text)
                    stream.flush()
                    os.fsync(descriptor)
                fresh.replace(self._path)
        except OSError as error:
            if not self.problem:
                log.error("cannot write down what is spent", path=str(self._path), error=str(error))
            self.problem = f"What is spent cannot be written down ({error.strerror}); a restart would forget it."
        else:
            self.problem = ""
