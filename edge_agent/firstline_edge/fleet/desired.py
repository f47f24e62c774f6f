"""The latest desired state on disk: it holds before, and without, any word of the gateway."""

from __future__ import annotations

from pathlib import Path

import msgspec

from firstline_core.errors import IntegrityError, ProtocolError
from firstline_core.fleet.twin import Desired, read_document
from firstline_core.storage.files import make_folder, read_checked, with_checksum, write_whole
from firstline_core.telemetry.logs import logger

log = logger(__name__)


def read_desired(path: Path) -> Desired | None:
    """Returns the latest desired state; None if there is none, or the file cannot be used.

    The gateway sends it again in that case.
    """
    try:
        return read_document(read_checked(path), Desired, str(path))
    except FileNotFoundError:
        return None
    except (OSError, IntegrityError, ProtocolError) as error:
        log.warning("what was desired of this device is not known any more", error=str(error))
        return None


def keep_desired(path: Path, desired: Desired) -> None:
    """Has it on the disk; where that refuses, a restart has to hear it again."""
    try:
        make_folder(path.parent)
        write_whole(path, with_checksum(msgspec.json.encode(desired)))
    except OSError as error:
        log.warning("cannot keep what is desired of this device", error=str(error))
