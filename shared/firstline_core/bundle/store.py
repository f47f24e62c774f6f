"""The directory of a bundle: opens it and verifies every present file against the manifest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from firstline_core.bundle.manifest import MANIFEST_LIMIT_BYTES, MANIFEST_NAME, Manifest, Model, parse_manifest
from firstline_core.errors import IntegrityError, ModelLoadError
from firstline_core.storage.artefact import Artefact
from firstline_core.storage.files import naming, read_limited, system_reason
from firstline_core.types import ModelKey


@dataclass(frozen=True, slots=True)
class Bundle:
    """A verified bundle directory. Files that a device does not need may be absent."""

    path: Path
    manifest: Manifest

    def file(self, artefact: Artefact) -> Path:
        return self.path / artefact.file

    def read(self, artefact: Artefact) -> bytes:
        """Returns the content of a file.

        Raises:
            ModelLoadError: it is absent or cannot be read.
        """
        with naming(self.file(artefact), refusal=ModelLoadError):
            return self.file(artefact).read_bytes()

    def has(self, model: Model) -> bool:
        """Returns whether every file of the model is present."""
        return not self.missing(model)

    def missing(self, model: Model) -> tuple[str, ...]:
        """Returns the absent files of the model."""
        return tuple(artefact.file for artefact in model.artefacts if not self.file(artefact).is_file())


def open_bundle(path: Path) -> Bundle:
    """Reads the manifest and verifies size and sha256 of every present file that it names.

    Raises:
        IntegrityError: no manifest, or a file that differs from the manifest or is outside the directory.
    """
    manifest_path = path / MANIFEST_NAME
    try:
        root = path.resolve(strict=True)
        _stay_inside(root, manifest_path)
        text = read_limited(manifest_path, MANIFEST_LIMIT_BYTES)
    except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError before Python 3.13
        reason = system_reason(error) if isinstance(error, OSError) else error
        raise IntegrityError(f"{manifest_path} cannot be read: {reason}; is {path} a bundle?") from error
    manifest = parse_manifest(text, str(manifest_path))
    for artefact in manifest.artefacts:
        _check(root, path / artefact.file, artefact)
    return Bundle(path, manifest)


def find_bundles(directory: Path) -> list[Path]:
    """Returns the folders with a manifest, in order: `directory` itself, or its subfolders and theirs.

    Hidden folders are passed over, because they may be bundles that are being written, and so is the `lost+found` of a
    disk. Another subfolder that cannot be looked into is among the results: as a bundle it is refused, by its name.

    Raises:
        OSError: there is no such folder, or it cannot be read.
    """
    if (directory / MANIFEST_NAME).exists():
        return [directory]
    return [bundle for folder in _visible_folders(directory) for bundle in _bundles_in(folder, deeper=True)]


def _bundles_in(folder: Path, *, deeper: bool) -> list[Path]:
    try:
        if (folder / MANIFEST_NAME).exists():
            return [folder]
        inner = _visible_folders(folder) if deeper else []
        return [bundle for each in inner for bundle in _bundles_in(each, deeper=False)]
    except OSError:
        return [folder]


def _visible_folders(directory: Path) -> list[Path]:
    visible = (path for path in directory.iterdir() if not path.name.startswith(".") and path.name != "lost+found")
    return sorted(path for path in visible if path.is_dir())


def same_version(path: Path, other: Path, key: ModelKey) -> str:
    """Returns why a bundle is refused: another folder holds the same version."""
    return f"{path} and {other} are both version {key.version} of '{key.name}'; remove one of them."


def manifest_in(path: Path) -> Manifest | None:
    """Returns a folder's manifest without verifying files; None if it cannot be read."""
    try:
        return parse_manifest(read_limited(path / MANIFEST_NAME, MANIFEST_LIMIT_BYTES), str(path))
    except (OSError, IntegrityError):
        return None


def key_at(path: Path) -> ModelKey | None:
    """Returns the name and version in a folder's manifest; None if it cannot be read."""
    manifest = manifest_in(path)
    return None if manifest is None else ModelKey(manifest.name, manifest.version)


def _check(root: Path, file: Path, artefact: Artefact) -> None:
    try:
        if not file.exists() and not file.is_symlink():
            return
        _stay_inside(root, file)
        if not file.is_file():
            raise IntegrityError(f"{file} is not a file.")
        with file.open("rb") as opened:
            size_bytes = opened.seek(0, 2)
            if size_bytes != artefact.size_bytes:
                raise IntegrityError(
                    f"{file} has {size_bytes} bytes, but the manifest says {artefact.size_bytes}; fetch it again."
                )
            opened.seek(0)
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except (OSError, RuntimeError) as error:
        reason = system_reason(error) if isinstance(error, OSError) else error
        raise IntegrityError(f"{file} cannot be read: {reason}.") from error
    if digest != artefact.sha256:
        raise IntegrityError(f"{file} has sha256 {digest}, but the manifest says {artefact.sha256}; fetch it again.")


def _stay_inside(root: Path, file: Path) -> None:
    target = file.resolve()
    if not target.is_relative_to(root):
        raise IntegrityError(f"{file} is a link to {target}, outside the bundle; copy the file into the bundle.")
