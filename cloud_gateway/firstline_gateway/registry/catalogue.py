"""The content of targets metadata, as devices read it and as the API shows it. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tuf.api.metadata import Targets

from firstline_core.errors import IntegrityError, RequestError
from firstline_core.fleet.configuration import configuration_at
from firstline_core.fleet.registry import BundleEntry, ConfigurationEntry
from firstline_core.fleet.target import bundle_of_target, find_bundle, listed_bundles
from firstline_core.storage.artefact import SignedFile
from firstline_gateway.registry import signing


class Catalogue(NamedTuple):
    """The content of targets metadata.

    Attributes:
        version: of the metadata; 0 where nothing is listed yet.
        files: by path.
        bundles: the files of each bundle by path, by its name and version, in their order.
        configurations: by name and version.
    """

    version: int
    files: Mapping[str, SignedFile]
    bundles: Mapping[tuple[str, int], Mapping[str, SignedFile]]
    configurations: tuple[ConfigurationEntry, ...] = ()


def catalogue_of(targets: Targets) -> Catalogue:
    """Returns the content of targets, grouped by bundle: there may be thousands of either.

    Raises:
        RequestError: a file is neither a bundle's nor a configuration.
    """
    files, parted = signing.files_of(targets), dict[tuple[str, int], dict[str, SignedFile]]()
    configurations = []
    for path, file in files.items():
        if (key := bundle_of_target(path)) is not None:
            parted.setdefault(key, {})[path] = file
        elif (key := configuration_at(path)) is not None:
            configurations.append(ConfigurationEntry(*key, file.sha256, file.size_bytes))
        else:
            raise RequestError(
                f"The target {path!a} is of no bundle and no configuration; paths are NAME/VERSION/FILE and "
                "configurations/NAME@VERSION.toml."
            )
    ordered = sorted(configurations, key=lambda entry: (entry.name, entry.version))
    return Catalogue(targets.version, files, {key: parted[key] for key in listed_bundles(files)}, tuple(ordered))


def check_listed(catalogue: Catalogue) -> None:
    """Whether devices can make something of each bundle.

    Raises:
        RequestError: they cannot.
    """
    try:
        for (name, version), files in catalogue.bundles.items():
            find_bundle(files, name, version)
    except IntegrityError as error:
        raise RequestError(error.message) from error


def entry_of(catalogue: Catalogue, key: tuple[str, int], aliases: tuple[str, ...]) -> BundleEntry:
    """A bundle as the API shows it.

    Raises:
        NotFoundError: it is not listed.
    """
    found = find_bundle(catalogue.bundles.get(key, {}), *key)
    sizes = {file.sha256: file.size_bytes for file, _ in found.files.values()}
    return BundleEntry(
        *key,
        size_bytes=found.manifest.size_bytes + sum(sizes.values()),
        manifest_sha256=found.manifest.sha256,
        variants=found.release.variants,
        full_digest=found.release.full_digest,
        aliases=aliases,
    )


def names(catalogue: Catalogue) -> set[str]:
    """Returns all signed versions in words, for the audit log."""
    bundled = {f"{name} {version}" for name, version in catalogue.bundles}
    return bundled | {f"configuration {entry.name} {entry.version}" for entry in catalogue.configurations}
