"""A profile of this device's own that nobody can read any more must not keep the device from being measured."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from firstline_core.errors import ProtocolError
from firstline_core.profile.reading import read_profile
from firstline_core.storage.files import set_aside
from firstline_core.telemetry.logs import logger

log = logger(__name__)


def make_way(path: Path) -> None:
    """Sets a profile aside that is damaged, or of a newer version; who measures then begins anew.

    Args:
        path: of the device's own: no other place is ours to clear.
    """
    try:
        read_profile(path)
    except ProtocolError as error:
        with suppress(OSError):  # whoever measures finds it there, and says what is wrong
            aside = set_aside(path)
            log.warning("a profile is set aside", moved_to=str(aside), error=error.message)
