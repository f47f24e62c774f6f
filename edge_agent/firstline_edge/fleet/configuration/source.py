"""A configurator's source on the real world: what signed metadata names, and a registry's bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator

from firstline_core.errors import NotFoundError
from firstline_core.fleet.configuration import configuration_path
from firstline_core.storage.artefact import SignedFile
from firstline_edge.fleet.updates.adapters import NoRegistry, SignedCatalogue
from firstline_edge.fleet.updates.ports import ByteSource


class SignedConfigurations:
    """See `fetching.Configurations`; shares the metadata with the models' updates."""

    def __init__(self, catalogue: SignedCatalogue | NoRegistry, source: ByteSource) -> None:
        self._catalogue = catalogue
        self._source = source

    async def configuration(self, name: str, version: int) -> SignedFile:
        """See `fetching.Configurations`."""
        file = (await self._catalogue.files()).get(configuration_path(name, version))
        if file is None:
            raise NotFoundError(
                f"The signed targets list no configuration {name} version {version}; `firstline config ls` shows them."
            )
        return file

    def read(self, sha256: str, offset: int, size_bytes: int) -> AsyncIterator[bytes]:
        """See `updater.ports.ByteSource`."""
        return self._source.read(sha256, offset, size_bytes)
