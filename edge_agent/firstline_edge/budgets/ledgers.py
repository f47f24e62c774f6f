"""The spending on disk: one line of JSON and its checksum, replaced as a whole or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from firstline_core.errors import IntegrityError
from firstline_core.routing.budget import Ledger
from firstline_core.storage.files import read_checked, set_aside, with_checksum, write_whole
from firstline_core.telemetry.logs import logger

log = logger(__name__)


AROUND_BYTES = 2048.0


class Books(msgspec.Struct, frozen=True):
    """All that outlives a restart.

    Args:
        ledgers: by the name of their budget.
        around_bytes: bytes that cross the link in addition to a payload, headers and answer: as many as the first call
            may take.
    """

    ledgers: dict[str, Ledger] = msgspec.field(default_factory=dict)
    around_bytes: float = AROUND_BYTES


class LedgerFile:
    """Keeps the books. May be written from any thread.

    Args:
        path: the file; its directory exists.

    Attributes:
        refusal: why they are not kept at the moment, in a sentence, or "".
        loss: that earlier ones were lost, in a sentence, or "".
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = threading.Lock()
        self.refusal = ""
        self.loss = ""

    @property
    def problem(self) -> str:
        """The problem with the file, in sentences; "" if there is none."""
        return " ".join(filter(None, (self.loss, self.refusal)))

    def read(self) -> Books:
        """Returns the books as they were written last; empty if there are none or they are damaged, which is logged."""
        try:
            return msgspec.json.decode(read_checked(self._path), type=Books)
        except FileNotFoundError:
            return Books()
        except (IntegrityError, OSError, msgspec.MsgspecError) as error:
            self.loss = f"What was spent before could not be read ({error}), so that budgets began anew."
            log.warning("what was spent before is not known", path=str(self._path), error=str(error))
        try:
            set_aside(self._path)
        except OSError as error:
            log.warning("cannot set a file aside", path=str(self._path), error=str(error))
        return Books()

    def write(self, text: bytes) -> None:
        """Replaces the file with encoded `Books`; a disk error is logged once, and the next call tries again."""
        try:
            with self._writing:
                write_whole(self._path, with_checksum(text))
        except OSError as error:
            self.refused(str(error.strerror))
        else:
            self.refusal = ""

    def refused(self, why: str) -> None:
        """Notes that the system or the disk did not allow a write."""
        if not self.refusal:
            log.error("cannot write down what is spent", path=str(self._path), error=why)
        self.refusal = f"What is spent cannot be written down ({why}); a restart would forget it."
