"""A model's two slots on the disk: filled file by file, the manifest last, so that a slot is a bundle or none."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from firstline_core.bundle.manifest import MANIFEST_LIMIT_BYTES, MANIFEST_NAME
from firstline_core.errors import IntegrityError
from firstline_core.storage.artefact import SignedFile
from firstline_core.storage.files import copy_whole, make_folder, sync_folder
from firstline_edge.fleet.updates.pointer import Slot


class Slots:
    """Of one model.

    Args:
        folder: of the model: `a`, `b`, and `fetch` for what is on its way.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, slot: Slot) -> Path:
        """The folder of a slot that is one."""
        return self.folder / slot

    def partial(self, sha256: str) -> Path:
        """Where a file grows."""
        return self._fetch / sha256

    @property
    def _fetch(self) -> Path:
        return self.folder / "fetch"

    def begin(self, slot: Slot, files: Sequence[tuple[str, SignedFile]]) -> int:
        """Makes a slot no bundle any more, and room: only what the next bundle needs too stays, or is on its way.

        Args:
            slot: that is to be filled.
            files: that are to be in it, with their paths.

        Returns:
            Bytes that are free again.

        Raises:
            OSError: the disk refuses.
        """
        path = self.path(slot)
        make_folder(path)
        freed_bytes = _remove(path, lambda found: found != MANIFEST_NAME)
        sync_folder(path)
        wanted, coming = dict(files), {file.sha256 for _, file in files}
        freed_bytes += _remove(path, lambda found: found in wanted and is_file(path / found, wanted[found]))
        make_folder(self._fetch)
        freed_bytes += _remove(self._fetch, lambda found: found in coming)
        sync_folder(path)
        return freed_bytes

    def lacking(self, slot: Slot, files: Sequence[tuple[str, SignedFile]], elsewhere: Iterable[Path]) -> set[str]:
        """Which of a bundle's files have to be fetched; copies those that lie in another bundle on this device.

        Args:
            slot: that is filled.
            files: with their paths in the bundle.
            elsewhere: bundles' folders.

        Returns:
            Paths in the bundle.

        Raises:
            OSError: the disk refuses.
        """
        places = list(elsewhere)
        return {inside for inside, file in files if not self._is_here(slot, inside, file, places)}

    def _is_here(self, slot: Slot, inside: str, file: SignedFile, places: Sequence[Path]) -> bool:
        own = self.path(slot) / inside
        if inside != MANIFEST_NAME and is_file(own, file):
            return True
        found = next((place / inside for place in places if is_file(place / inside, file)), None)
        if found is None:
            return False
        partial = self.partial(file.sha256)
        copy_whole(found, partial)
        self.place(slot, inside, file)
        return True

    def place(self, slot: Slot, inside: str, file: SignedFile) -> None:
        """Moves a file that is whole into the slot.

        Raises:
            IntegrityError: it is not what was signed; it is gone.
            OSError: the disk refuses.
        """
        partial, target = self.partial(file.sha256), self.path(slot) / inside
        if not is_file(partial, file):
            partial.unlink(missing_ok=True)
            raise IntegrityError(f"{inside} is not what was signed: another sha256 than {file.sha256}.")
        with partial.open("rb+") as stream:
            os.fsync(stream.fileno())
        make_folder(target.parent)
        partial.replace(target)
        sync_folder(target.parent)

    def finish(self, slot: Slot) -> None:
        """The bundle is whole: nothing is on its way any more.

        Raises:
            OSError: the disk refuses.
        """
        self.forget_partial()
        sync_folder(self.path(slot))

    def forget_partial(self) -> None:
        """Removes what was on its way."""
        shutil.rmtree(self._fetch, ignore_errors=True)

    def clear(self, slot: Slot) -> None:
        """Deletes the content of a slot."""
        shutil.rmtree(self.path(slot), ignore_errors=True)

    def partial_bytes(self) -> int:
        """Returns the size of the files that are being downloaded."""
        try:
            return sum(path.stat().st_size for path in self._fetch.iterdir())
        except OSError:
            return 0


def manifest_sha256(path: Path) -> str:
    """Returns the digest of a bundle's manifest; "" if the folder is not a bundle."""
    try:
        with (path / MANIFEST_NAME).open("rb") as stream:
            return hashlib.sha256(stream.read(MANIFEST_LIMIT_BYTES + 1)).hexdigest()
    except OSError:
        return ""


def is_file(path: Path, file: SignedFile) -> bool:
    """Whether the file that was signed lies there."""
    try:
        if path.is_symlink() or path.stat().st_size != file.size_bytes:
            return False
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == file.sha256
    except OSError:
        return False


def _remove(folder: Path, kept: Callable[[str], bool]) -> int:
    """Removes the files of a folder but those of these paths in it, and folders that are empty then; bytes freed."""
    freed_bytes = 0
    for path in sorted(folder.rglob("*"), reverse=True):  # what lies in a folder comes before it
        if path.is_dir() and not path.is_symlink():
            with suppress(OSError):  # something in it stays
                path.rmdir()
        elif not kept(path.relative_to(folder).as_posix()):
            freed_bytes += path.lstat().st_size
            path.unlink()
    return freed_bytes
