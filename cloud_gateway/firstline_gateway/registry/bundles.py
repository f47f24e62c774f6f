"""The bundles that the current targets list, as the API shows them."""

from __future__ import annotations

import asyncio

from firstline_core.fleet.registry import BundleEntry
from firstline_gateway.registry import records, signing
from firstline_gateway.registry.catalogue import Catalogue, catalogue_of, entry_of
from firstline_gateway.store.readers import Readers


class Bundles:
    """Asked on one event loop.

    Args:
        readers: of the store.
    """

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._catalogue = Catalogue(0, {}, {})

    async def catalogue(self) -> Catalogue:
        """Returns the catalogue of the current targets."""
        version = (await self._readers.ask(records.heads)).get("targets", (0, 0.0))[0]
        if version != self._catalogue.version:
            found = await self._readers.ask(lambda connection: records.newest(connection, "targets"))
            if found is not None:
                targets = await asyncio.to_thread(signing.targets_of, found.content)
                self._catalogue = await asyncio.to_thread(catalogue_of, targets)
        return self._catalogue

    async def entries(self, after: tuple[str, int], limit: int, model: str = "") -> list[BundleEntry]:
        """Bundles by name and version, from the one behind `after` on."""
        catalogue = await self.catalogue()
        aliases = await self._readers.ask(lambda connection: records.aliases(connection, model))
        named: dict[tuple[str, int], list[str]] = {}
        for alias in aliases:
            named.setdefault((alias.model, alias.version or 0), []).append(alias.alias)
        wanted = [key for key in catalogue.bundles if key > after and model in ("", key[0])][:limit]
        return [entry_of(catalogue, key, tuple(named.get(key, ()))) for key in wanted]

    async def entry(self, name: str, version: int) -> BundleEntry:
        """One bundle.

        Raises:
            NotFoundError: it is not listed.
        """
        catalogue = await self.catalogue()
        aliases = await self._readers.ask(lambda connection: records.aliases(connection, name))
        return entry_of(catalogue, (name, version), tuple(one.alias for one in aliases if one.version == version))

    async def digest(self, what: str, name: str, version: int) -> str | None:
        """The sha256 of a model's manifest, or of a configuration (`twin.Update.what`); None where it is not listed."""
        catalogue, key = await self.catalogue(), (name, version)
        if what == "configuration":
            return next((one.sha256 for one in catalogue.configurations if (one.name, one.version) == key), None)
        return entry_of(catalogue, key, ()).manifest_sha256 if key in catalogue.bundles else None
