"""Profile files: read one, find the one of this machine, and update one that several processes write to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from firstline_core.errors import ProtocolError
from firstline_core.profile.profile import LIMIT_BYTES, POINTS, Point, Profile, RefusedPoint, decode, encode
from firstline_core.storage.files import locked_folder, naming, read_limited, set_aside, unreadable, write_whole

FOLDER = "profiles"
_MOST_FILES = 64
"""Most files of a folder that are read, in the order of their names."""


def profile_path(folder: Path, bundle: str, machine: str) -> Path:
    """Returns the path of a bundle's profile of one machine, next to the bundle."""
    return folder / FOLDER / f"{bundle}@{machine}.json"


def read_profile(path: Path) -> Profile | None:
    """Reads a profile; returns None if there is no such file.

    Raises:
        ProtocolError: the file is not a profile.
    """
    try:
        content = read_limited(path, LIMIT_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProtocolError(f"{path} {unreadable(error)}") from error
    return decode(content, str(path))


def bundled_profiles(bundle: Path, name: str) -> Iterator[Path]:
    """Yields the profiles of any machine that lie in a bundle's folder or next to it."""
    for folder in (bundle, bundle.parent):
        yield from islice(sorted((folder / FOLDER).glob(f"{name}@*.json")), _MOST_FILES)


def profile_of_machine(paths: Iterable[Path], fingerprint: str) -> tuple[Profile | None, dict[Path, str]]:
    """Returns the first profile of the machine with this fingerprint, and the errors of the files before it."""
    errors: dict[Path, str] = {}
    for path in paths:
        try:
            found = read_profile(path)
        except ProtocolError as error:
            errors[path] = error.message
            continue
        if found is not None and found.fingerprint == fingerprint:
            return found, errors
    return None, errors


def update_profile(path: Path, change: Callable[[Profile | None], Profile], warn: Callable[[str], None]) -> Profile:
    """Reads, changes and writes a profile under the folder's lock, which is not held while a point is measured.

    Args:
        path: of the file, in an existing folder.
        change: receives the present profile, or None. A result without points and refusals is not written: it would
            take precedence over other profiles.
        warn: receives a sentence if the present file is damaged or of a newer version; it is set aside then, so that
            an unreadable file does not prevent measuring.

    Returns:
        The profile that is in the file now.

    Raises:
        ConfigError: the file cannot be written.
    """
    with naming(path, "written"), locked_folder(path.parent):
        before = _readable(path, warn)
        found = change(before)
        if found != before and (found.points or found.refused):
            write_whole(path, encode(found) + b"\n")
        return found


def with_result(profile: Profile, result: Point | RefusedPoint) -> Profile:
    """Returns the profile with a new result; a refusal leaves the point that was measured before.

    The oldest results are dropped beyond the largest number.
    """
    refused = tuple(one for one in profile.refused if one.key != result.key)
    if isinstance(result, RefusedPoint):
        return replace(profile, refused=(*refused, result)[-POINTS:])
    points = tuple(one for one in profile.points if one.key != result.key)
    return replace(profile, points=(*points, result)[-POINTS:], refused=refused)


def _readable(path: Path, warn: Callable[[str], None]) -> Profile | None:
    try:
        return read_profile(path)
    except ProtocolError as error:
        warn(f"{error.message} It is set aside as {set_aside(path).name}, and the machine is measured again.")
        return None
