"""Bundles fetched from the registry into a folder: only the files of their full models, and only complete bundles."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.errors import IntegrityError, StoreUnavailableError
from firstline_core.fleet.target import FULL, ListedBundle, files_for, target_path
from firstline_core.storage.artefact import SignedFile
from firstline_core.storage.files import make_folder, naming, sync_folder, system_reason
from firstline_core.types import ModelKey

_RETRY_S = 30.0

Read = Callable[[str, int, int], AsyncIterator[bytes]]
"""Returns the bytes of a file by its sha256, from the first position to before the second."""


class FetchedBundles:
    """One folder, which belongs to one gateway.

    Args:
        folder: its subfolders are bundles; made here.
        read: from the registry.

    Raises:
        ConfigError: the folder cannot be made.
    """

    def __init__(self, folder: Path, read: Read) -> None:
        self.folder = folder
        self._read = read
        with naming(f"registry.full_models {folder}", "written"):
            make_folder(folder)

    def path(self, key: ModelKey) -> Path:
        """Where a version is, or would be."""
        return self.folder / f"{key.name}@{key.version}"

    def has(self, key: ModelKey) -> bool:
        return (self.path(key) / MANIFEST_NAME).exists()

    def keys(self) -> list[ModelKey]:
        """Returns the versions that are here; blocks."""
        names = (manifest.parent.name.rpartition("@") for manifest in self.folder.glob(f"[!.]*@*/{MANIFEST_NAME}"))
        return [ModelKey(name, int(version)) for name, _, version in names if version.isdecimal()]

    async def fetch(self, bundle: ListedBundle) -> Path:
        """Brings a version here, checked file by file.

        Raises:
            IntegrityError: the registry has other bytes than were signed.
            StoreUnavailableError: the disk refuses, or where the registry's files are does.
        """
        key = ModelKey(bundle.release.bundle, bundle.release.version)
        path, coming = self.path(key), self.folder / f".{key.name}@{key.version}"
        inside = target_path(key.name, key.version, "")
        try:
            await asyncio.to_thread(shutil.rmtree, coming, ignore_errors=True)
            for file in files_for(bundle, FULL):
                await self._fetch(file, coming / file.path.removeprefix(inside))
            await asyncio.to_thread(self._install, coming, path)
        except OSError as error:
            raise StoreUnavailableError(
                f"registry.full_models {self.folder} refuses: {system_reason(error)}; make room, or mend its rights.",
                retry_after_s=_RETRY_S,
            ) from error
        return path

    def remove(self, key: ModelKey) -> None:
        """Forgets a version; blocks."""
        shutil.rmtree(self.path(key), ignore_errors=True)

    def _install(self, coming: Path, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
        os.replace(coming, path)  # noqa: PTH105 (a folder)
        sync_folder(self.folder)

    async def _fetch(self, file: SignedFile, path: Path) -> None:
        await asyncio.to_thread(make_folder, path.parent)
        digest = hashlib.sha256()
        with path.open("wb") as stream:
            async for part in self._read(file.sha256, 0, file.size_bytes):
                digest.update(part)
                await asyncio.to_thread(stream.write, part)
            stream.flush()
            await asyncio.to_thread(os.fsync, stream.fileno())
        if digest.hexdigest() != file.sha256:
            raise IntegrityError(
                f"The registry has other bytes of {file.path} than were signed; push the bundle again."
            )
