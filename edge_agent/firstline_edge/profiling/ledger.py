"""How far this device is with what the fleet asked it to measure, on disk: what is done is not done again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from firstline_core.errors import IntegrityError
from firstline_core.fleet.profiling import REQUESTS, Profiling
from firstline_core.storage.files import make_folder, read_checked, with_checksum, write_whole
from firstline_core.telemetry.logs import logger

log = logger(__name__)


class Ledger(Struct, frozen=True):
    """All requests that are known.

    Attributes:
        begun: ids of those of which a point was measured: what they measure anew is not measured anew once more.
    """

    entries: Annotated[tuple[Profiling, ...], Meta(max_length=REQUESTS)] = ()
    begun: Annotated[tuple[str, ...], Meta(max_length=REQUESTS)] = ()

    def of(self, id_: str) -> Profiling | None:
        """How far a request came; None where it is not known."""
        return next((one for one in self.entries if one.id == id_), None)

    def only(self, ids: frozenset[str]) -> Ledger:
        """Without those that are wanted no more."""
        kept = tuple(one for one in self.entries if one.id in ids)
        return Ledger(kept, tuple(one for one in self.begun if one in ids))

    def noted(self, entry: Profiling, *, begun: bool = False) -> Ledger:
        """With how far one came."""
        others = tuple(one for one in self.entries if one.id != entry.id)
        began = tuple(dict.fromkeys((*self.begun, entry.id))) if begun else self.begun
        return Ledger((*others, entry), began)


def read_ledger(path: Path) -> Ledger:
    """What is known; nothing where the file cannot be used: what was measured lies elsewhere, and is kept."""
    try:
        return msgspec.json.decode(read_checked(path), type=Ledger)
    except FileNotFoundError:
        return Ledger()
    except (OSError, IntegrityError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("how far profiles came is not known; they are begun again", error=str(error))
        return Ledger()


def keep_ledger(path: Path, ledger: Ledger) -> None:
    """Has it on the disk; where that refuses, a restart begins again."""
    try:
        make_folder(path.parent)
        write_whole(path, with_checksum(msgspec.json.encode(ledger)))
    except OSError as error:
        log.warning("cannot keep how far profiles came", error=str(error))
