"""The registry put together from the settings; only a gateway that has one loads python-tuf."""

from __future__ import annotations

from dataclasses import dataclass

from firstline_core.clock import Clock
from firstline_gateway.identity.folder import AuthorityFolder
from firstline_gateway.registry.aliases import Aliases
from firstline_gateway.registry.blobs import open_blobs
from firstline_gateway.registry.bundles import Bundles
from firstline_gateway.registry.files import Files
from firstline_gateway.registry.keeper import RegistryKeeper
from firstline_gateway.registry.registry import Registry
from firstline_gateway.settings.settings import Registry as RegistrySettings
from firstline_gateway.store.readers import Readers
from firstline_gateway.store.writer import StoreWriter


@dataclass(frozen=True, slots=True)
class RegistryRoom:
    """One gateway's registry, and who looks after it."""

    registry: Registry
    files: Files
    bundles: Bundles
    aliases: Aliases
    keeper: RegistryKeeper


def open_registry(
    settings: RegistrySettings,
    readers: Readers,
    writer: StoreWriter,
    folder: AuthorityFolder,
    *,
    clock: Clock,
) -> RegistryRoom:
    """Opens the registry.

    Raises:
        ConfigError: where its files are to be is no good.
    """
    files = Files(
        open_blobs(settings.blobs, endpoint=settings.s3_endpoint, region=settings.s3_region), settings, clock=clock
    )
    bundles = Bundles(readers)
    registry = Registry(readers, writer, files, bundles, folder, clock=clock)
    aliases = Aliases(readers, writer, bundles.catalogue, clock=clock)
    return RegistryRoom(registry, files, bundles, aliases, RegistryKeeper(registry, clock))
