"""The content of targets metadata, as devices read it and as the API shows it. No I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from tuf.api.metadata import Targets

from firstline_core.errors import IntegrityError, RequestError
from firstline_core.fleet.configuration import configuration_at
from firstline_core.fleet.registry import BundleEntry, ConfigurationEntry
from firstline_core.fleet.target import bundle_of_target, find_bundle, listed_bundles
from firstline_core.fleet.update import UpdateKind
from firstline_core.storage.artefact import SignedFile
from firstline_core.types import ModelKey
from firstline_gateway.registry import records, signing
from firstline_gateway.store.store import Store


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
    bundles: Mapping[ModelKey, Mapping[str, SignedFile]]
    configurations: tuple[ConfigurationEntry, ...] = ()


class ListedVersion(NamedTuple):
    """A signed version of a model or a configuration.

    Attributes:
        sha256: of the manifest, or of the configuration.
        contracts: number of certified variants; each has a contract of its own.
        full_digest: of the full model; "" without one.
    """

    sha256: str
    contracts: int
    full_digest: str = ""


def catalogue_of(targets: Targets) -> Catalogue:
    """Returns the content of targets, grouped by bundle: there may be thousands of either.

    Raises:
        RequestError: a file is neither a bundle's nor a configuration.
    """
    files, parted = signing.files_of(targets), dict[ModelKey, dict[str, SignedFile]]()
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
    """Checks that devices can use each bundle.

    Raises:
        RequestError: they cannot use one.
    """
    try:
        for key, files in catalogue.bundles.items():
            find_bundle(files, *key)
    except IntegrityError as error:
        raise RequestError(error.message) from error


def entry_of(catalogue: Catalogue, key: ModelKey, aliases: tuple[str, ...]) -> BundleEntry:
    """Returns a bundle as the API shows it.

    Raises:
        NotFoundError: it is not listed.
    """
    bundle = find_bundle(catalogue.bundles.get(key, catalogue.files), *key)  # all files tell what is there instead
    sizes = {file.sha256: file.size_bytes for file, _ in bundle.files.values()}
    return BundleEntry(
        *key,
        size_bytes=bundle.manifest.size_bytes + sum(sizes.values()),
        manifest_sha256=bundle.manifest.sha256,
        variants=bundle.release.variants,
        full_digest=bundle.release.full_digest,
        aliases=aliases,
    )


class CatalogueReader:
    """Reads the bundles and configurations that the current targets list. Used on one event loop.

    Args:
        store: reads it.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._catalogue = Catalogue(0, {}, {})

    async def current(self) -> Catalogue:
        """Returns the catalogue of the current targets."""
        head = (await self._store.read(records.heads)).get("targets")
        if head is not None and head.version != self._catalogue.version:
            document = await self._store.read(lambda connection: records.newest(connection, "targets"))
            if document is not None:
                targets = await asyncio.to_thread(signing.targets_of, document.content)
                self._catalogue = await asyncio.to_thread(catalogue_of, targets)
        return self._catalogue

    async def entries(self, after: ModelKey, limit: int, model: str = "") -> list[BundleEntry]:
        """Returns bundles by name and version, from the one behind `after` on."""
        catalogue = await self.current()
        aliases = await self._store.read(lambda connection: records.aliases(connection, model))
        named: dict[ModelKey, list[str]] = {}
        for alias in aliases:
            named.setdefault(ModelKey(alias.model, alias.version or 0), []).append(alias.alias)
        page = [key for key in catalogue.bundles if key > after and model in ("", key.name)][:limit]
        return [entry_of(catalogue, key, tuple(named.get(key, ()))) for key in page]

    async def entry(self, key: ModelKey) -> BundleEntry:
        """Returns one bundle.

        Raises:
            NotFoundError: it is not listed.
        """
        catalogue = await self.current()
        aliases = await self._store.read(lambda connection: records.aliases(connection, key.name))
        return entry_of(catalogue, key, tuple(one.alias for one in aliases if one.version == key.version))

    async def listed(self, what: UpdateKind, name: str, version: int) -> ListedVersion | None:
        """Returns a model or a configuration; None if it is not listed.

        Args:
            what: whether it is a model or a configuration.
            name: of it.
            version: likewise.
        """
        catalogue, key = await self.current(), ModelKey(name, version)
        if what is UpdateKind.CONFIGURATION:
            found = (one.sha256 for one in catalogue.configurations if (one.name, one.version) == key)
            return next((ListedVersion(sha256, 0) for sha256 in found), None)
        if key not in catalogue.bundles:
            return None
        bundle = find_bundle(catalogue.bundles[key], *key)
        certified = sum(variant.certificate is not None for variant in bundle.release.variants)
        return ListedVersion(bundle.manifest.sha256, certified, bundle.release.full_digest)
