"""Profiles from files: a named one, and the one that holds on a machine among several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from firstline_core.errors import ProtocolError
from firstline_core.profile.profile import LIMIT_BYTES, Profile, decode

FOLDER = "profiles"
_MOST = 64
"""Files of one folder that are looked at, in the order of their names."""


def read_profile(path: Path) -> Profile | None:
    """What was measured before; None where nothing was.

    Raises:
        ProtocolError: the file is no profile.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LIMIT_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProtocolError(f"{path} cannot be read: {error.strerror or error}.") from error
    return decode(content, str(path))


def brought(bundle: Path, name: str) -> Iterator[Path]:
    """Where profiles of other machines lie that a bundle brings: in its folder, and beside it.

    Args:
        bundle: its folder.
        name: of the bundle.
    """
    for folder in (bundle, bundle.parent):
        yield from islice(sorted((folder / FOLDER).glob(f"{name}@*.json")), _MOST)


def holding(paths: Iterable[Path], fingerprint: str) -> tuple[Profile | None, dict[Path, str]]:
    """The first profile of this machine, and what is wrong with the files before it.

    Args:
        paths: of profiles, those to be asked first in front.
        fingerprint: of the machine.
    """
    damaged: dict[Path, str] = {}
    for path in paths:
        try:
            found = read_profile(path)
        except ProtocolError as error:
            damaged[path] = error.message
            continue
        if found is not None and found.fingerprint == fingerprint:
            return found, damaged
    return None, damaged
