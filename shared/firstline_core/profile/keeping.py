"""The file of a machine's profile, to which several may add points at the same time: an agent, and somebody by hand."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec.structs import replace

from firstline_core.errors import ConfigError, ProtocolError
from firstline_core.profile.profile import LIMIT_BYTES, POINTS, Key, Point, Profile, Refused, encode
from firstline_core.profile.reading import read_profile
from firstline_core.storage.files import set_aside, write_whole


def changed(path: Path, change: Callable[[Profile | None], Profile], warn: Callable[[str], None]) -> Profile:
    """Reads the profile, changes and writes it, while nobody else does.

    Args:
        path: of the file, whose folder is there.
        change: of what lies there, or of None. What has neither points nor reasons against any is not written: it
            would stand before profiles that have.
        warn: told in a sentence where what lies there is damaged, or of a newer version. It is set aside, for no file
            that nobody can read may keep a machine from being measured.

    Returns:
        What lies there now.

    Raises:
        ConfigError: the disk refuses.
    """
    try:
        with _one_at_a_time(path.parent):
            before = _readable(path, warn)
            found = change(before)
            if found != before and (found.points or found.refused):
                write_whole(path, encode(found) + b"\n")
            return found
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from error


def added(found: Profile, measured: Point | Refused) -> Profile:
    """With a point; or with the reason why it is none, beside what was measured of it before."""
    key = measured.key
    refused = tuple(one for one in found.refused if one.key != key)
    if isinstance(measured, Refused):
        return replace(found, refused=(*refused, measured))
    points = tuple(one for one in found.points if one.key != key)
    outdated = tuple(one for one in found.outdated if one != key)
    return replace(found, points=(*points, measured), refused=refused, outdated=outdated)


def bounded(found: Profile, wanted: Collection[Key]) -> Profile:
    """Without the oldest points beside what is wanted, where all together are more than a reader takes.

    Raises:
        ConfigError: what is wanted is more than that by itself.
    """
    found = replace(found, refused=found.refused[-POINTS:])  # those that are wanted come last
    spare = [point for point in found.points if point.key not in wanted]
    while len(found.points) > POINTS or len(encode(found)) + 1 > LIMIT_BYTES:
        if not spare:
            raise ConfigError(f"That would be more than {LIMIT_BYTES >> 20} MiB; name fewer threads or batches.")
        oldest = spare.pop(0)
        found = replace(
            found,
            points=tuple(point for point in found.points if point is not oldest),
            outdated=tuple(key for key in found.outdated if key != oldest.key),
        )
    return found


def _readable(path: Path, warn: Callable[[str], None]) -> Profile | None:
    try:
        return read_profile(path)
    except ProtocolError as error:
        try:
            aside = set_aside(path)
        except OSError as refused:
            raise ConfigError(
                f"{error.message} It cannot be set aside ({refused.strerror or refused}); remove it, then measure anew."
            ) from error
        warn(f"{error.message} It is set aside as {aside.name}, and the machine is measured anew.")
        return None


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """For as long as a file is read and written, no longer: nobody waits for another's measuring."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks: the last one who writes is right
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
