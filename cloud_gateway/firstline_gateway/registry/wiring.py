"""The registry put together from the settings; only a gateway that has one loads python-tuf."""

from __future__ import annotations

from dataclasses import dataclass

from firstline_core.clock import Clock
from firstline_gateway.identity.folder import AuthorityFolder
from firstline_gateway.registry.aliases import Aliases
from firstline_gateway.registry.blobs import open_blobs
from firstline_gateway.registry.keeper import RegistryKeeper
from firstline_gateway.registry.registry import Registry
from firstline_gateway.settings import Registry as RegistrySettings
from firstline_gateway.store.readers import Readers
from firstline_gateway.store.writer import GroupWriter


@dataclass(frozen=True, slots=True)
class RegistryRoom:
    """One gateway's registry, and who looks after it."""

    registry: Registry
    aliases: Aliases
    keeper: RegistryKeeper


def open_registry(
    settings: RegistrySettings,
    readers: Readers,
    writer: GroupWriter,
    folder: AuthorityFolder,
    *,
    clock: Clock,
) -> RegistryRoom:
    """Opens the registry.

    Raises:
        ConfigError: where its files are to be is no good.
    """
    blobs = open_blobs(settings.blobs, endpoint=settings.s3_endpoint, region=settings.s3_region)
    registry = Registry(readers, writer, blobs, folder, settings, clock=clock)
    keeper = RegistryKeeper(registry, clock)
    return RegistryRoom(registry, Aliases(readers, writer, registry.catalogue, clock=clock), keeper)
