"""The file of a backup: a ZIP archive whose last member says what the others are, with the SHA-256 of each.

Nothing is believed of a file but what its manifest vouches for, and nothing is restored before all of it was checked.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from firstline_core.errors import ConfigError
from firstline_gateway import __version__

FORMAT = 1
_MANIFEST = "manifest.json"
_CHUNK_BYTES = 1 << 20


class Member(Struct, frozen=True, forbid_unknown_fields=True):
    """One file in the archive; `mode` is its permissions, where it was a file before."""

    sha256: str
    size_bytes: int
    mode: int = 0o600


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """Describes the archive.

    Attributes:
        format: of the archive.
        firstline: the version that wrote it.
        created: when.
        schema: the store's, as alembic numbers it.
        members: by name, in order.
    """

    format: int
    firstline: str
    created: datetime
    schema: str
    members: dict[str, Member]


class Writing:
    """An archive that is being written."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._members: dict[str, Member] = {}

    def add(self, name: str, parts: Iterator[bytes], mode: int = 0o600) -> None:
        """Adds a member."""
        digest, size_bytes = hashlib.sha256(), 0
        with self._archive.open(name, "w", force_zip64=True) as member:
            for part in parts:
                member.write(part)
                digest.update(part)
                size_bytes += len(part)
        self._members[name] = Member(digest.hexdigest(), size_bytes, mode)

    def finish(self, created: datetime, schema: str) -> Manifest:
        """Says what the members are."""
        manifest = Manifest(FORMAT, __version__, created, schema, self._members)
        self._archive.writestr(_MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        return manifest


@contextmanager
def writing(path: Path) -> Iterator[Writing]:
    """Makes an archive, for this user alone; it is there whole, on the disk, or not at all.

    Raises:
        ConfigError: the file is there already, or cannot be written.
    """
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # of mode 0600
        with os.fdopen(descriptor, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                yield Writing(archive)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # which, unlike a renaming, replaces nothing
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except FileExistsError as error:
        raise ConfigError(f"{path} is there already; a backup overwrites nothing: name another file.") from error
    except OSError as error:
        raise ConfigError(f"The backup {path} cannot be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            Path(temporary).unlink()


class Reading:
    """An archive whose members are as its manifest says."""

    def __init__(self, archive: zipfile.ZipFile, manifest: Manifest) -> None:
        self._archive = archive
        self.manifest = manifest

    def open(self, name: str) -> IO[bytes]:
        """A member's bytes."""
        return self._archive.open(name)


@contextmanager
def reading(path: Path) -> Iterator[Reading]:
    """Opens an archive, after it has checked every byte of it.

    Raises:
        ConfigError: it cannot be read, is damaged or no backup, or a newer version wrote it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            yield Reading(archive, _checked(path, archive))
    except OSError as error:
        raise ConfigError(f"The backup {path} cannot be read: {error.strerror or error}.") from error
    except (zipfile.BadZipFile, msgspec.MsgspecError, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
        raise ConfigError(f"{path} is damaged, or no backup: {error}; use another copy.") from error


def _checked(path: Path, archive: zipfile.ZipFile) -> Manifest:
    content = archive.read(_MANIFEST)
    written = msgspec.json.decode(content, type=dict[str, object]).get("format")
    if written != FORMAT:
        raise ConfigError(
            f"The backup {path} has format {written!r}; this version of Firstline reads {FORMAT}. Restore it with the "
            "version that wrote it."
        )
    manifest = msgspec.json.decode(content, type=Manifest)
    if {_MANIFEST, *manifest.members} != set(archive.namelist()):
        raise zipfile.BadZipFile("it does not hold what its manifest lists")
    for name, member in manifest.members.items():
        digest = hashlib.sha256()
        with archive.open(name) as file:
            while part := file.read(_CHUNK_BYTES):
                digest.update(part)
        if digest.hexdigest() != member.sha256:
            raise zipfile.BadZipFile(f"{name} is not what was backed up")
    return manifest
