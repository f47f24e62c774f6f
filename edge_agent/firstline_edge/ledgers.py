"""What was spent, on disk: one small JSON file, replaced as a whole or not at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from firstline_core.routing.budget import Ledger
from firstline_core.telemetry.logs import logger

log = logger(__name__)


class LedgerFile:
    """Keeps ledgers by the name of their budget. May be written from any thread.

    Args:
        path: the file; its directory exists.

    Attributes:
        problem: why they are not kept at the moment, in a sentence, or "".
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = threading.Lock()
        self.problem = ""

    def read(self) -> dict[str, Ledger]:
        """The ledgers as they were written last; none where there are none, or none that make sense, which is told."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Ledger])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("what was spent before is not known", path=str(self._path), error=str(error))
            return {}

    def write(self, ledgers: Mapping[str, Ledger]) -> None:
        """Replaces the file; a disk that refuses is told once, and tried again the next time."""
        fresh = self._path.with_name(self._path.name + ".new")
        text = msgspec.json.encode(ledgers)
        try:
            with self._writing:
                descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                try:
                    os.write(descriptor, text)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                fresh.replace(self._path)
        except OSError as error:
            if not self.problem:
                log.error("cannot write down what is spent", path=str(self._path), error=str(error))
            self.problem = f"What is spent cannot be written down ({error.strerror}); a restart would forget it."
        else:
            self.problem = ""
