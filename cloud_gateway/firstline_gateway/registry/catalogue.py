"""What targets metadata lists, read as devices read it, and shown as the API shows it. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from tuf.api.metadata import Targets

from firstline_core.errors import IntegrityError, RequestError
from firstline_core.fleet.configuration import configuration_at
from firstline_core.fleet.registry import BundleEntry, ConfigurationEntry
from firstline_core.fleet.target import SignedFile, bundles, listed, named_by
from firstline_gateway.registry import signing


class Catalogue(NamedTuple):
    """What the current targets list: the files by path, and the version of the metadata; 0 where nothing is."""

    version: int
    files: dict[str, SignedFile]


def listed_files(targets: Targets) -> dict[str, SignedFile]:
    """What targets list, with what is said of each bundle read as devices read it.

    Raises:
        RequestError: a device could make nothing of it.
    """
    files = signing.files_of(targets)
    strange = [path for path in files if named_by(path) is None and configuration_at(path) is None]
    if strange:
        raise RequestError(
            f"The target {strange[0]!a} is of no bundle and no configuration; paths are NAME/VERSION/FILE and "
            "configurations/NAME@VERSION.toml."
        )
    try:
        for name, version in bundles(files):
            listed(files, name, version)
    except IntegrityError as error:
        raise RequestError(error.message) from error
    return files


def entry_of(files: dict[str, SignedFile], key: tuple[str, int], aliases: tuple[str, ...]) -> BundleEntry:
    """A bundle as the API shows it.

    Raises:
        NotFoundError: it is not listed.
    """
    found = listed(files, *key)
    sizes = {file.sha256: file.size_bytes for file, _ in found.files.values()}
    return BundleEntry(
        *key,
        size_bytes=found.manifest.size_bytes + sum(sizes.values()),
        manifest_sha256=found.manifest.sha256,
        variants=found.release.variants,
        full_digest=found.release.full_digest,
        aliases=aliases,
    )


def configurations(files: dict[str, SignedFile]) -> list[ConfigurationEntry]:
    """The configurations that are signed for, by name and version."""
    named = ((configuration_at(path), file) for path, file in files.items())
    found = [ConfigurationEntry(*key, file.sha256, file.size_bytes) for key, file in named if key is not None]
    return sorted(found, key=lambda entry: (entry.name, entry.version))


def names(files: dict[str, SignedFile]) -> set[str]:
    """All that is signed for, in people's words: for the trail."""
    bundled = {f"{name} {version}" for name, version in bundles(files)}
    return bundled | {f"configuration {entry.name} {entry.version}" for entry in configurations(files)}
