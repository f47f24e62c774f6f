"""Downloads bundles and configurations from a registry as a device does: verified, and bundles resumable."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from firstline.fleet.api import read_limited
from firstline.fleet.registry import Registry
from firstline.release.publishing import ReportProgress
from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.bundle.store import open_bundle
from firstline_core.bundle.trust import Trust
from firstline_core.errors import ConfigError, IntegrityError, NotFoundError
from firstline_core.fleet.configuration import configuration_path
from firstline_core.fleet.target import find_bundle
from firstline_core.storage.artefact import SignedFile
from firstline_core.storage.files import naming


class PulledBundle(NamedTuple):
    """The result of a pull: where the bundle is, and the bytes that were fetched for it."""

    path: Path
    fetched_bytes: int


def pull_bundle(
    trust: Trust, registry: Registry, name: str, version: int, folder: Path, *, report: ReportProgress
) -> PulledBundle:
    """Downloads a bundle into a new folder; resumes an earlier pull.

    Args:
        trust: verifies what is signed.
        registry: has the files.
        name: of the bundle.
        version: of the bundle.
        folder: the folder to create.
        report: called with the progress.

    Raises:
        ConfigError: the folder exists or cannot be written, or the earlier pull's folder has a file of another origin.
        UpdateError: the content differs from the signed content.
        FirstlineError: the registry refuses.
    """
    if folder.exists():
        raise ConfigError(f"{folder} exists already; name a folder that is to be made.")
    bundle = find_bundle(trust.refresh(), name, version)
    files = {MANIFEST_NAME: bundle.manifest} | {file: signed for file, (signed, _) in bundle.files.items()}
    unfinished = folder.with_name(f"{folder.name}.{name}@{version}.part")
    total, done, fetched = sum(file.size_bytes for file in files.values()), 0, 0
    with naming(unfinished, "written"):
        for path in unfinished.rglob("*"):
            if path.is_file() and path.relative_to(unfinished).as_posix() not in files:
                raise ConfigError(f"{path} is not a file of this bundle; move it elsewhere, and pull again.")
        for inside, file in files.items():
            path = unfinished / inside
            path.parent.mkdir(parents=True, exist_ok=True)
            before = done
            for size_bytes in _fetch(registry, file, path):
                fetched += size_bytes
                done += size_bytes
                report(done, total)
            done = before + file.size_bytes
            report(done, total)
        open_bundle(unfinished)
        os.replace(unfinished, folder)  # noqa: PTH105 (a folder)
    return PulledBundle(folder, fetched)


def read_configuration(trust: Trust, registry: Registry, name: str, version: int) -> bytes:
    """Returns a configuration's text, verified from the first root on.

    Raises:
        NotFoundError: no signature covers it.
        UpdateError: the metadata or the content does not verify.
    """
    file = trust.refresh().get(configuration_path(name, version))
    if file is None:
        raise NotFoundError(
            f"The gateway has no version {version} of the configuration {name}; `firstline config list` lists them."
        )
    with registry.part(file.sha256, 0) as (_, parts):
        content = read_limited(parts, file.size_bytes)
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise IntegrityError(f"{file.path} came with other bytes than were signed; ask who keeps the gateway.")
    return content


def _fetch(registry: Registry, file: SignedFile, path: Path) -> Iterator[int]:
    """Downloads the missing part of a file and verifies it; yields the size of each part."""
    with path.open("ab") as stream:
        there = stream.tell()
        if there > file.size_bytes:
            there = stream.truncate(0)
        if there < file.size_bytes:
            with registry.part(file.sha256, there) as (start, parts):
                if start != there:
                    there = stream.truncate(0)
                for part in parts:
                    there += len(part)
                    if there > file.size_bytes:
                        break
                    stream.write(part)
                    yield len(part)
    with path.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    if there != file.size_bytes or sha256 != file.sha256:
        if there >= file.size_bytes:
            path.unlink()
        raise IntegrityError(
            f"{file.path} came with {there} of {file.size_bytes} bytes, or with others than were signed; pull again. "
            f"If that repeats, delete the file {file.sha256} of the registry and push the bundle again."
        )
