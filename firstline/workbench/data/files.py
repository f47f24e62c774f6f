"""Files of a folder or a zip archive: images, recordings, masks."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from firstline.workbench.data.sample import Sample
from firstline_core.errors import ConfigError
from firstline_core.storage.files import read_limited
from firstline_core.storage.structs import fault_of

FILE_LIMIT_BYTES = 64 * 1024 * 1024
"""Largest file that is read; of an archive's member, before it is unpacked."""

MEMBERS_LIMIT = 1_000_000
"""Number of files of a folder or an archive."""

DAMAGED_ZIP = (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
"""What a damaged archive raises."""

Where = Callable[[Sample], str]
"""Names the place of a sample, for messages: "labels.csv:3 names 'a.png'"."""


@dataclass(frozen=True, slots=True)
class FileStore:
    """The files below a folder, or in a zip archive. Names are relative, with slashes."""

    place: Path

    def names(self) -> list[str]:
        """Returns the names of all files, in order. Names that start with a dot are ignored.

        Raises:
            ConfigError: the archive cannot be read, or a name leads out of it.
        """
        if self.place.is_dir():
            found = self.place.rglob("*")
            paths = [PurePosixPath(*path.relative_to(self.place).parts) for path in found if path.is_file()]
        else:
            with _opened(self.place) as archive:
                paths = [PurePosixPath(name) for name in archive.namelist() if not name.endswith("/")]
        if len(paths) > MEMBERS_LIMIT:
            raise ConfigError(f"{self.place} holds {len(paths)} files; give at most {MEMBERS_LIMIT}.")
        names = sorted(
            str(path) for path in paths if not any(part.startswith(".") for part in path.parts if part != "..")
        )
        for name in names:
            if not is_inside(name):
                raise ConfigError(f"{self.place} holds the file {name!a}, which leads out of it; make it again.")
        return names

    def read(self, samples: Sequence[Sample], where: Where) -> Iterator[bytes]:
        """Yields the content of each sample's file.

        Raises:
            ConfigError: a file is absent, too large or damaged.
        """
        if self.place.is_dir():
            for sample in samples:
                with _explained(sample, where, self.place):
                    content = read_limited(self.place / sample.file, FILE_LIMIT_BYTES)
                yield content
            return
        with _opened(self.place) as archive:
            for sample in samples:
                with _explained(sample, where, self.place):
                    size_bytes = archive.getinfo(sample.file).file_size
                    if size_bytes > FILE_LIMIT_BYTES:
                        raise ConfigError(
                            f"{where(sample)}, which has {size_bytes} bytes; at most {FILE_LIMIT_BYTES} are read."
                        )
                    content = archive.read(sample.file)
                yield content


def is_inside(name: str) -> bool:
    """Returns whether a path is relative and stays below its folder."""
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


@contextmanager
def _explained(sample: Sample, where: Where, place: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise ConfigError(f"{where(sample)}, which is not in {place}; put it there, or delete the line.") from error
    except (OSError, *DAMAGED_ZIP) as error:
        raise ConfigError(
            f"{where(sample)}, which cannot be read from {place} ({fault_of(error)}); copy it there again."
        ) from error


@contextmanager
def _opened(archive: Path) -> Iterator[zipfile.ZipFile]:
    try:
        opened = zipfile.ZipFile(archive)
    except (OSError, *DAMAGED_ZIP) as error:
        raise ConfigError(f"{archive} cannot be read as a zip archive ({fault_of(error)}); make it again.") from error
    with opened:
        yield opened
