"""Counts the starts of this device's agent, and the processes that ended uncleanly."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from firstline_core.errors import IntegrityError
from firstline_core.storage.files import make_folder, read_checked, with_checksum, write_whole
from firstline_core.telemetry.logs import logger

log = logger(__name__)


class Starts(Struct, frozen=True):
    """Of a state directory.

    Attributes:
        starts: processes so far, the one that runs included.
        unclean: of those before, how many were killed or crashed.
        running: one has begun and not ended.
    """

    starts: int = 0
    unclean: int = 0
    running: bool = False


def begin(path: Path) -> Starts:
    """Notes that a process starts; returns the new counts."""
    before = _read(path)
    now = Starts(before.starts + 1, before.unclean + before.running, running=True)
    _write(path, now)
    return now


def end(path: Path, starts: Starts) -> None:
    """Notes that the process ends cleanly."""
    _write(path, msgspec.structs.replace(starts, running=False))


def _read(path: Path) -> Starts:
    try:
        return msgspec.json.decode(read_checked(path), type=Starts)
    except FileNotFoundError:
        return Starts()
    except (OSError, IntegrityError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("how often the agent was started is not known", error=str(error))
        return Starts()


def _write(path: Path, starts: Starts) -> None:
    try:
        make_folder(path.parent)
        write_whole(path, with_checksum(msgspec.json.encode(starts)))
    except OSError as error:
        log.warning("cannot keep how often the agent was started", error=str(error))
