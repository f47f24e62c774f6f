"""Copies of working bundles, used when a bundle's files are damaged: one for each folder with a bundle.

A copy holds what the device needs: the manifest, and the files of the edge variants. It is checked against the
manifest's digests like any bundle, when it is made and when it is used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import IntegrityError
from firstline_core.storage.files import copy_whole, make_folder, sync_folder
from firstline_core.telemetry.logs import logger

log = logger(__name__)

_NAME_CHARS = 16
_SOURCE = ".source"  # no artefact's name begins with a dot


class BundleCopies:
    """The copies below one folder. If the disk refuses it, the agent runs without them.

    Args:
        folder: created with the first copy.
        limit_bytes: the largest bundle that is copied; 0 copies none.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes

    def of(self, source: Path) -> Path | None:
        """Returns the copy of a bundle's folder; None if there is none."""
        copy = self._place(source)
        return copy if os.access(copy / MANIFEST_NAME, os.R_OK) else None

    def keep(self, bundle: Bundle) -> None:
        """Copies a bundle that works, unless it has been copied; a disk error is logged."""
        copy = self._place(bundle.path)
        try:
            manifest = (bundle.path / MANIFEST_NAME).read_bytes()
            if (copy / MANIFEST_NAME).is_file() and (copy / MANIFEST_NAME).read_bytes() == manifest:
                return
            files = _needed(bundle)
            size_bytes = sum((bundle.path / file).stat().st_size for file in files)
            if size_bytes > self._limit_bytes:
                return
            fresh = copy.with_name(copy.name + ".new")
            shutil.rmtree(fresh, ignore_errors=True)
            make_folder(fresh)
            (fresh / _SOURCE).write_bytes(os.fsencode(bundle.path.resolve()))
            for file in (MANIFEST_NAME, *files):
                make_folder((fresh / file).parent)
                copy_whole(bundle.path / file, fresh / file)
            open_bundle(fresh)
            shutil.rmtree(copy, ignore_errors=True)
            fresh.replace(copy)
            sync_folder(self._folder)
        except (OSError, IntegrityError) as error:
            log.warning("bundle copy not stored", path=str(bundle.path), error=str(error))

    def sources(self, directories: Sequence[Path]) -> list[Path]:
        """Returns the existing folders in `directories` (or those themselves) whose bundle has worked before."""
        roots = {folder.resolve() for folder in directories}
        found = []
        for copy in self._all():
            try:
                path = Path(os.fsdecode((copy / _SOURCE).read_bytes()))
            except (OSError, ValueError):
                continue
            if not roots.isdisjoint((path, *path.parents[:2])) and path.is_dir():
                found.append(path)
        return found

    def prune(self, sources: list[Path]) -> None:
        """Deletes the copies of folders that no longer exist."""
        kept = {self._place(source) for source in sources}
        for copy in self._all():
            if copy not in kept:
                shutil.rmtree(copy, ignore_errors=True)

    def _all(self) -> list[Path]:
        """Returns the folders of the copies; none if the disk refuses to list them, which is logged."""
        try:
            return sorted(self._folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            log.warning("bundle copies not read", path=str(self._folder), error=str(error))
            return []

    def _place(self, source: Path) -> Path:
        return self._folder / hashlib.sha256(os.fsencode(source.resolve())).hexdigest()[:_NAME_CHARS]


def _needed(bundle: Bundle) -> list[str]:
    """Returns the existing files, without those that only the full model needs."""
    manifest = bundle.manifest
    of_full = {artefact.file for artefact in manifest.full.artefacts} if manifest.full is not None else set()
    of_edge = {artefact.file for model in manifest.edge for artefact in model.artefacts}
    files = {artefact.file for artefact in manifest.artefacts} - (of_full - of_edge)
    return sorted(file for file in files if (bundle.path / file).is_file())
